"""Which words in a text identify one machine, one device or one person, and what stands there instead?

A pseudonym has the form of what it replaces and is the same everywhere, so that what was joined by it stays joined:
the third UUID of a recording is ``00000003-0000-0000-0000-000000000003`` in ``nvidia-smi``'s words, in
CUDA_VISIBLE_DEVICES and in the name of a cgroup. Its first eight digits are unique, because CUDA takes any unique
beginning of a UUID.
"""

from __future__ import annotations

import re

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FAMILIES = {
    "uuid": "id",
    "amd": "id",
    "hex": "id",
    "mac": "hardware address",
    "guid": "hardware address",
    "ipv4": "IP address",
    "ipv6": "IP address",
}
"""Family of identifiers -> what people call one of them."""

IDENTIFIER = re.compile(
    "|".join(
        (
            # NVIDIA's GPU-…, MIG-…, MIG-GPU-…/1/0, whole or shortened; AMD's GPU- with 16 digits.
            r"(?P<gpu>\b(?-i:GPU|MIG)-(?-i:GPU-)?[0-9a-f][0-9a-f-]*(?![0-9a-z]))",
            # In the names of Kubernetes' cgroups with "_", and "pod" before it.
            r"(?P<uuid>(?:(?<![0-9a-f])|(?<=pod))[0-9a-f]{8}(?P<cut>[-_])[0-9a-f]{4}(?P=cut)[0-9a-f]{4}(?P=cut)[0-9a-f]{4}(?P=cut)"
            r"[0-9a-f]{12}(?![0-9a-f]))",
            # Containers, machine-id, NGUIDs. The kernel writes masks with a comma after eight digits.
            r"(?P<hex>(?<![0-9a-z])[0-9a-f]{32,128}(?![0-9a-z]))",
            # Ethernet has 6 groups, the hardware address of InfiniBand 20.
            r"(?P<mac>(?<![0-9a-f:])[0-9a-f]{2}(?P<gap>[:-])[0-9a-f]{2}(?:(?P=gap)[0-9a-f]{2}){4,18}(?![0-9a-f:]))",
            # Interfaces named after their address (systemd.net-naming-scheme).
            r"(?P<enx>(?<![0-9a-z])(?:en|wl|ww)x[0-9a-f]{12}(?![0-9a-z]))",
            r"(?P<guid>(?<![0-9a-f:])[0-9a-f]{4}(?::[0-9a-f]{4}){3,7}(?![0-9a-f:]))",
            r"(?P<ipv4>(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.]))",
            r"(?P<ipv6>(?<![\w:.])(?:(?:[0-9a-f]{1,4}:){1,7}(?::[0-9a-f]{1,4}){1,7}|(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|(?:[0-9a-f]{1,4}:){2,7}:)(?![\w:]))",
        )
    ),
    re.IGNORECASE,
)
UNIQUE_ID = re.compile(r"(?m)^(unique_id )(\d+)$")
"""KFD's number of one GPU in decimal; the GPU's UUID is the same number with 16 hexadecimal digits."""
SUSPECT = re.compile(
    r"[0-9a-f]{32}|[0-9a-f]{4}[-_:][0-9a-f]{4}|(?-i:GPU-|MIG-)|(?:[:-][0-9a-f]{2}){5}|::|\d\.\d+\.\d+\.\d|[nlw]x[0-9a-f]{12}|unique_id",
    re.IGNORECASE,
)
"""A text without this holds no identifier; most texts of /sys are left at this one glance."""

LARGE = 1 << 16
"""Characters from which a text is looked at word by word, each word once: /proc/interrupts of 256 CPUs is 6 MB."""

FEWEST_DIGITS = 8
"""Different hexadecimal digits in an id; masks have fewer."""

GENERIC_NAME = re.compile(
    r"(?i)(?:root|user|admin|nobody|host|localhost|node|cpu|gpu|vm|linux|server|worker|default|none|hidden|[a-z]{0,2})"
    r"[-_]?\d*"
)
"""Names that name nobody, and could be a word of the kernel."""


class Identifiers(Value):
    """What identifies somebody or something on one host."""

    numbers: Mapping[tuple[str, str], int]
    """(family, identifier in lower case) -> its number, from 1 in each family."""
    names: tuple[tuple[str, str], ...] = ()
    """(name of a host or a person, what stands there instead), longest first."""


def collect(
    texts: Iterable[str], *, hosts: Iterable[str] = (), people: Iterable[str] = ()
) -> Identifiers:
    """Find the identifiers of all texts and number them in the order in which they come."""
    numbers: dict[tuple[str, str], int] = {}
    counts = dict.fromkeys(FAMILIES, 0)
    for text in texts:
        for key in _keys(text):
            if key not in numbers:
                counts[key[0]] += 1
                numbers[key] = counts[key[0]]
    names = {short: "host" for host in hosts for short in (host, host.partition(".")[0])}
    names |= dict.fromkeys(people, "user")
    usable = [pair for pair in names.items() if pair[0] and not GENERIC_NAME.fullmatch(pair[0])]
    return Identifiers(numbers, tuple(sorted(usable, key=lambda pair: (-len(pair[0]), pair[0]))))


def replace_identifiers(text: str, known: Identifiers) -> str:
    """Put pseudonyms in place of identifiers; one that was not collected becomes zeros."""
    if len(text) < LARGE:
        return _replaced(text, known)
    for word in sorted(_suspects(text).split(), key=len, reverse=True):
        instead = _replaced(word, known)
        if instead != word:
            text = text.replace(word, instead)
    return text


def _replaced(text: str, known: Identifiers) -> str:
    if not SUSPECT.search(text):
        return text

    def pseudonym(match: re.Match[str]) -> str:
        return _pseudonym(match, known.numbers)

    text = IDENTIFIER.sub(pseudonym, text)
    return UNIQUE_ID.sub(lambda m: f"{m[1]}{known.numbers.get(('amd', m[2]), 0)}", text)


def _suspects(text: str) -> str:
    """Return the words of a large text in which an identifier may stand, each once, in their order."""
    words = (word for word in dict.fromkeys(text.split()) if not word.isdigit())
    return " ".join(word for word in words if SUSPECT.search(word))


def replace_names(text: str, known: Identifiers) -> str:
    """Put ``host`` and ``user`` in place of names, wherever they stand as a word; a host's domain goes with it."""
    for name, instead in known.names:
        if name in text:
            domain = r"(?:\.[A-Za-z0-9-]+)*" if instead == "host" else ""
            word = rf"(?<![A-Za-z0-9]){re.escape(name)}{domain}(?![A-Za-z0-9])"
            text = re.sub(word, instead, text)
    return text


def _keys(text: str) -> Iterable[tuple[str, str]]:
    """Give (family, canonical form) of each identifier in a text."""
    if len(text) >= LARGE:
        text = _suspects(text)
    if not SUSPECT.search(text):
        return
    for match in IDENTIFIER.finditer(text):
        family, body = _family(match)
        if family and not (family == "uuid" and len(body) != 32):
            yield family, body
    for match in UNIQUE_ID.finditer(text):
        yield "amd", str(int(match[2]))


def _family(match: re.Match[str]) -> tuple[str | None, str]:
    """Return what an identifier is and its canonical form; no family: it is a mask, or an address of everybody."""
    kind, text = match.lastgroup, match[0].lower()
    if match["gpu"]:
        body = text.removeprefix("mig-").removeprefix("gpu-")
        digits = body.replace("-", "")
        if len(digits) == 16 and "-" not in body:
            return "amd", str(int(digits, 16))
        return "uuid", digits
    if match["uuid"]:
        return "uuid", text.replace("-", "").replace("_", "")
    if kind == "hex":
        return ("hex" if len(set(text)) >= FEWEST_DIGITS else None), text
    if kind == "enx":
        return "mac", ":".join(text[3 + i : 5 + i] for i in range(0, 12, 2))
    if kind == "mac":
        text = text.replace("-", ":")
        return ("mac" if set(text) - set("0:") and set(text) - set("f:") else None), text
    if kind == "ipv4":
        everybody = text.startswith(("127.", "0.", "255."))
        return (None if everybody else "ipv4"), text
    return kind, text


def _pseudonym(match: re.Match[str], numbers: Mapping[tuple[str, str], int]) -> str:
    family, body = _family(match)
    text = match[0]
    if family is None:
        return text
    number = numbers.get((family, body), 0)
    if match["gpu"]:
        prefix = text[: len(text) - len(text.upper().removeprefix("MIG-").removeprefix("GPU-"))]
        return prefix + _gpu(family, body, number, numbers, len(text) - len(prefix))
    if family == "uuid":
        return _uuid(number, match["cut"] or "-")
    if family == "hex":
        return f"{number:0{len(body)}x}"
    if match["enx"]:
        return f"{text[:3]}{number:012x}"
    if family == "mac":
        grouped = _grouped(number, groups=body.count(":") + 1, digits=2)
        return grouped.replace(":", match["gap"])
    if family == "guid":
        return _grouped(number, groups=body.count(":") + 1, digits=4)
    return (
        f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        if family == "ipv4"
        else f"fd00::{number:x}"
    )


def _gpu(
    family: str, body: str, number: int, numbers: Mapping[tuple[str, str], int], length: int
) -> str:
    """Return a GPU's UUID; a shortened one becomes the beginning of the pseudonym that the whole one has."""
    if family == "amd":
        return f"{number:016x}"
    if len(body) == 32:
        return _uuid(number, "-")
    whole = [n for (kind, known), n in numbers.items() if kind == "uuid" and known.startswith(body)]
    return _uuid(whole[0] if len(whole) == 1 else 0, "-")[: max(length, 8)]


def _uuid(number: int, cut: str) -> str:
    return cut.join((f"{number:08x}", "0000", "0000", "0000", f"{number:012x}"))


def _grouped(number: int, *, groups: int, digits: int) -> str:
    text = f"{number:0{groups * digits}x}"
    return ":".join(text[at : at + digits] for at in range(0, len(text), digits))
