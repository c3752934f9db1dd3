"""How are NVML's answers written down, one call a line?

::

    nvmlDeviceGetHandleByIndex_v2 0 = gpu0
    nvmlDeviceGetUUID gpu0 = "GPU-5f1d8c3e-0a6b-4c1e-9d59-0d6f0f4b7a11"
    nvmlDeviceGetMigMode gpu0 = [0, 0]
    nvmlDeviceGetPciInfo_v3 gpu0 = {"busId": "00000000:1B:00.0", "domain": 0}
    nvmlDeviceGetCpuAffinityWithinScope gpu0 0 = "0-55,112-167"
    nvmlDeviceGetNumaNodeId gpu0 = !NVML_ERROR_NOT_SUPPORTED

Functions are the symbols of ``libnvidia-ml.so.1``, so that a stand-in for that library answers from the same file.
Arguments are inputs only: output pointers and buffer sizes are left out, sets of CPUs and nodes are written as the
kernel writes them. A bare word in lower case is a handle, ``!`` begins an error, ``null`` is success without a value,
everything else is JSON without fractions and without true and false. ``#`` begins a comment. Of two lines for the same
call the later one holds, so that a change can be written down by adding a line.
"""

from __future__ import annotations

from wellfed.model.errors import MalformedTextError
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn, TypeAlias

LONGEST_SHOWN = 80
"""Characters of a damaged line that an error repeats."""

WORDS = {
    "NVML_ERROR_UNINITIALIZED": "Uninitialized",
    "NVML_ERROR_INVALID_ARGUMENT": "Invalid Argument",
    "NVML_ERROR_NOT_SUPPORTED": "Not Supported",
    "NVML_ERROR_NO_PERMISSION": "Insufficient Permissions",
    "NVML_ERROR_NOT_FOUND": "Not Found",
    "NVML_ERROR_INSUFFICIENT_SIZE": "Insufficient Size",
    "NVML_ERROR_DRIVER_NOT_LOADED": "Driver Not Loaded",
    "NVML_ERROR_TIMEOUT": "Timeout",
    "NVML_ERROR_LIBRARY_NOT_FOUND": "NVML Shared Library Not Found",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "Function Not Found",
    "NVML_ERROR_GPU_IS_LOST": "GPU is lost",
    "NVML_ERROR_RESET_REQUIRED": "GPU requires reset",
    "NVML_ERROR_OPERATING_SYSTEM": "GPU access blocked by the operating system",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "Driver/library version mismatch",
    "NVML_ERROR_UNKNOWN": "Unknown Error",
    "NOT_RECORDED": "not recorded",
    "NOT_INSTALLED": "nvidia-ml-py is not installed",
    "NOT_TEXT": "the answer is not text",
}
"""What nvmlErrorString and nvidia-smi print for a code, and the three codes that are ours."""


class Handle(Value):
    """A device as NVML hands it out, by the name a recording gives it: ``gpu0``, ``gpu0mig1``."""

    name: str


class Refused(Value):
    """What NVML said instead of a value."""

    code: str
    """``NVML_ERROR_…``, or ``NOT_RECORDED``, ``NOT_INSTALLED``, ``NOT_TEXT``."""

    def __str__(self) -> str:
        """Say it in the words that nvidia-smi prints."""
        return WORDS.get(self.code, self.code)


if TYPE_CHECKING:
    Argument: TypeAlias = int | str | Handle
    Answer: TypeAlias = int | str | Handle | Refused | tuple[Any, ...] | dict[str, Any] | None


class Call(Value):
    """One question to NVML and its answer."""

    function: str
    arguments: tuple[Argument, ...]
    answer: Answer


def format_calls(calls: Iterable[Call]) -> str:
    """Write calls, one a line; `parse_calls` reads the same calls back."""
    return "".join(f"{_format(call)}\n" for call in calls)


def parse_calls(text: str) -> tuple[Call, ...]:
    """Read a recording; MalformedTextError names the damaged line."""
    found = []
    # Not splitlines(): it also cuts at U+2028 and friends, which may stand inside a quoted name.
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if line and not line.startswith("#"):
            try:
                found.append(_parse(line))
            except (ValueError, RecursionError) as damage:
                raise _malformed(number, line, str(damage)) from None
    return tuple(found)


def _format(call: Call) -> str:
    words = [call.function, *map(_format_term, call.arguments), "=", _format_term(call.answer)]
    return " ".join(words)


def _format_term(term: Answer) -> str:
    if isinstance(term, Handle):
        return term.name
    if isinstance(term, Refused):
        return f"!{term.code}"
    if term is None:
        return "null"
    if isinstance(term, int):
        return str(term)
    import json  # 7 ms that a launch without NVML must not pay

    return json.dumps(term, ensure_ascii=False)


def _parse(line: str) -> Call:
    """Read one line; ValueError says what was wanted."""
    function, _, rest = line.partition(" ")
    if not (function.isascii() and function.isidentifier()):
        raise ValueError("a function name first")
    arguments: list[Argument] = []
    while not rest.startswith("= "):
        argument, rest = _parse_argument(rest)
        arguments.append(argument)
    return Call(function, tuple(arguments), _parse_answer(rest[2:]))


def _parse_argument(text: str) -> tuple[Argument, str]:
    """Take one argument off the front of ``0 gpu1 = …``."""
    if text.startswith('"'):
        import json

        quoted, end = json.JSONDecoder().raw_decode(text)
        if not text.startswith(" ", end):
            raise ValueError("a space behind an argument")
        return str(quoted), text[end + 1 :]
    word, space, rest = text.partition(" ")
    if not space:
        raise ValueError("' = ' before the answer")
    if _is_handle(word):
        return Handle(word), rest
    return _integer(word), rest


def _parse_answer(text: str) -> Answer:
    if text == "null":
        return None
    if text.startswith("!"):
        code = text[1:]
        if not (code.isascii() and code.isidentifier() and code.isupper()):
            raise ValueError("an error name such as !NVML_ERROR_NOT_SUPPORTED")
        return Refused(code)
    if _is_handle(text):
        return Handle(text)
    if text[:1] in "-0123456789":
        return _integer(text)
    import json

    found: Answer = _frozen(
        json.loads(
            text,
            parse_int=_integer,
            parse_float=_no_fraction,
            parse_constant=_no_fraction,
            object_pairs_hook=_object,
        )
    )
    return found


def _is_handle(word: str) -> bool:
    """Say whether a bare word can name a device: lower case letters and digits, a letter first."""
    plain = word.isascii() and word.isalnum() and word == word.lower()
    return plain and not word[:1].isdigit() and word not in ("null", "true", "false")


def _integer(text: str) -> int:
    """Read what fits into 64 bits, signed or not: no answer of NVML is larger."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        raise ValueError("a number, a handle, a quoted text, !ERROR, or JSON")
    value = int(text)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError("a number of 64 bits")
    return value


def _no_fraction(text: str) -> NoReturn:
    raise ValueError(f"whole numbers, not {text[:20]}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("each field once")
    return made


def _frozen(found: Any) -> Any:
    """Turn arrays into tuples, and refuse true and false, which no answer of NVML is."""
    if isinstance(found, bool):
        raise ValueError("0 and 1, not false and true")
    if isinstance(found, list):
        return tuple(map(_frozen, found))
    if isinstance(found, dict):
        return {field: _frozen(value) for field, value in found.items()}
    return found


def _malformed(number: int, line: str, wanted: str) -> MalformedTextError:
    shown = line if len(line) <= LONGEST_SHOWN else f"{line[:LONGEST_SHOWN]}…"
    return MalformedTextError(
        f"line {number} of the NVML recording reads {shown!r}; wanted: {wanted}",
        remedy='write one call a line, such as `nvmlDeviceGetName gpu0 = "NVIDIA H200"`, or record the host again',
    )
