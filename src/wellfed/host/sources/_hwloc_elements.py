"""How does hwloc spell sets, numbers and facts in its XML?"""

from __future__ import annotations

import re

from wellfed.model.cpuset import CpuSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element

REMEDY = "write it again on the host: lstopo --of xml FILE"
UNKNOWN_INDEX = 2**32 - 1
"""What hwloc writes for a number it does not know: (unsigned) −1."""


def of_type(top: Element, *types: str) -> Iterator[Element]:
    return (element for element in top.iter("object") if element.get("type") in types)


def read_set(element: Element, attribute: str) -> CpuSet | None:
    """Read hwloc's mask; None where it is absent or means everything (``0xf...f``)."""
    text = element.get(attribute)
    return None if text is None or text.startswith("0xf...f") else CpuSet.parse_mask(text)


def read_number(element: Element, attribute: str = "os_index") -> int | None:
    text = element.get(attribute, "")
    number = int(text) if re.fullmatch(r"\d{1,19}", text) else None
    return None if number == UNKNOWN_INDEX else number


def read_infos(element: Element) -> dict[str, str]:
    return {info.get("name", ""): info.get("value", "") for info in element.findall("info")}


def cpus_inside(element: Element) -> CpuSet:
    """Return the CPUs that are recorded below an object."""
    return CpuSet(cpu for pu in of_type(element, "PU") if (cpu := read_number(pu)) is not None)
