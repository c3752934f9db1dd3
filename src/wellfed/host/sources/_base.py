"""What is a source, and what do all of them need: safe XML, and CPUs from what is known of nodes?"""

from __future__ import annotations

from wellfed.model.cpuset import EMPTY, CpuSet
from wellfed.model.errors import MalformedTextError
from wellfed.model.machine import GPU_VENDORS, Cpu, NumaNode
from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from xml.etree.ElementTree import Element

    from wellfed.model.machine import Machine

MAX_DEPTH = 128
"""Elements inside elements. A PCI tree behind ten switches is 30 deep; hwloc itself refuses few more."""

MAX_ELEMENTS = 500_000
"""A host of 2048 CPUs with every device has some 50 000."""

MAX_PROLOG = 2**20
"""Characters before the first element; licences in comments are some kB."""

GPU_CLASSES = ("0300", "0302", "0380", "1200")
"""VGA, 3D and display controller, processing accelerator (include/linux/pci_ids.h)."""

INTEL_INTEGRATED = ":00:02.0"
"""Where every Intel processor has its own graphics unit; a card is never there."""


class Source(Value):
    """One format. A file of this room exposes one as ``SOURCE``; its room finds it."""

    name: str
    """For sentences: ``an hwloc XML topology``."""
    recognises: Callable[[str], bool]
    """Whether a text is of this format, by its content."""
    read: Callable[[str, str], Machine]
    """(text, name) -> machine with GPU evidence, before `placement.locate`. MalformedTextError where it is damaged."""


class NodeClaims(Value):
    """CPUs and nodes as far as a description that only says which CPUs each node has can tell."""

    cpus: tuple[Cpu, ...]
    nodes: tuple[NumaNode, ...]
    notes: tuple[str, ...] = ()


def claim(claims: Mapping[int, CpuSet | None], *, homeless: CpuSet = EMPTY) -> NodeClaims:
    """Make CPUs and nodes of what each node claims; None: the node is named and its CPUs are not.

    A CPU that two nodes claim belongs to neither: to choose one would be a guess. ``homeless`` CPUs exist
    without anybody saying on which node.
    """
    seen, contested = EMPTY, EMPTY
    for cpus in claims.values():
        contested |= seen & (cpus or EMPTY)
        seen |= cpus or EMPTY
    home: dict[int, int] = {}
    nodes = []
    for node, cpus in sorted(claims.items()):
        own = (cpus or EMPTY) - contested
        home.update(dict.fromkeys(own, node))
        nodes.append(NumaNode(node, own, cpus_recorded=cpus is not None and not cpus & contested))
    notes = (
        (f"CPUs {contested} are claimed by more than one node, so their node is unknown",)
        if contested
        else ()
    )
    return NodeClaims(
        tuple(Cpu(cpu, node=home.get(cpu)) for cpu in seen | homeless), tuple(nodes), notes
    )


def gpu_vendor(address: str, vendor: str, class_code: str) -> str | None:
    """Name the maker of a PCI function that is a GPU for computing, None where it is none."""
    maker = GPU_VENDORS.get(vendor) if class_code[:4] in GPU_CLASSES else None
    return None if maker == "intel" and address.endswith(INTEL_INTEGRATED) else maker


def damaged(name: str, found: str, wanted: str, remedy: str) -> MalformedTextError:
    """Say what is wrong with a description, in one sentence."""
    return MalformedTextError(f"{name}: found {found}, wanted {wanted}", remedy=remedy)


def root_tag(text: str) -> str | None:
    """Name the first element of a text that begins as XML does, None where it does not begin so.

    Only declarations, comments and white space may stand before it, so an answer costs no parsing.
    """
    text = text[:MAX_PROLOG]
    at, size = 0, len(text)
    while True:
        while at < size and text[at] in "\ufeff \t\r\n":
            at += 1
        if text.startswith("<!--", at):
            mark = "-->"
        elif text.startswith("<!", at) and "[" in text[at : text.find(">", at)]:
            mark = "]>"
        elif text.startswith(("<?", "<!"), at):
            mark = ">"
        else:
            break
        at = text.find(mark, at) + len(mark)
        if at < len(mark):
            return None
    name = text[at + 1 : at + 81].replace("/", " ").replace(">", " ").split(None, 1)
    return name[0] if text.startswith("<", at) and name else None


def parse_xml(text: str, name: str, *, remedy: str) -> Element:
    """Read an XML document that anybody may have written, and give its root.

    Entities are refused with the document type's internal subset that would declare them, so nothing
    expands ("billion laughs"), and expat itself opens no other file. Depth and number of elements are bounded.
    """
    from xml.etree.ElementTree import TreeBuilder
    from xml.parsers import expat

    parser, builder = expat.ParserCreate("UTF-8"), TreeBuilder()
    depth = count = 0

    def doctype(_name: str, _system: str | None, _public: str | None, internal: bool) -> None:
        if internal:
            raise damaged(name, "a document type with declarations", "plain elements", remedy)

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth, count
        depth, count = depth + 1, count + 1
        if depth > MAX_DEPTH or count > MAX_ELEMENTS:
            limit = f"{MAX_DEPTH} levels and {MAX_ELEMENTS} elements"
            raise damaged(name, "more XML than a host has", f"at most {limit}", remedy)
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    parser.StartDoctypeDeclHandler = doctype
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(text.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise damaged(name, f"broken XML ({error})", "a whole XML document", remedy) from None
    return builder.close()
