"""Does each GPU's PCIe link have all its lanes?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wellfed.checks._base import Check, does_not_apply, gpus_word, not_known, ok, usable_gpus, warn
from wellfed.model.finding import Finding, Proof
from wellfed.model.machine import Gpu, PciDevice
from wellfed.model.snapshot import Snapshot

RULE = "pci.link"
WIDEST = 32
"""PCI Express has 1, 2, 4, 8, 12, 16 or 32 lanes; virtual machines write 0, 63 or 255 for "no link"."""


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Only width is judged: an idle GPU lowers its speed, and that is no fault."""
    gpus = usable_gpus(snapshot)
    if not gpus:
        return (does_not_apply(RULE, "no GPU is seen here"),)
    tree = {device.address: device for device in snapshot.machine.pci}
    widths = {gpu: _widths(gpu, tree) for gpu in gpus}
    shown = {gpu: pair for gpu, pair in widths.items() if pair is not None}
    if not shown:
        return (not_known(RULE, f"the link width of {gpus_word(gpus)} is not shown here"),)
    narrow = [gpu for gpu, (width, most) in shown.items() if width < most]
    if not narrow:
        said = ", ".join(sorted({f"×{width}" for width, _ in shown.values()}))
        return (
            ok(
                RULE,
                f"{gpus_word(shown)}: all lanes in use ({said})",
                *(_proof(gpu, shown[gpu]) for gpu in shown),
            ),
        )
    width, most = shown[narrow[0]]
    summary = f"{gpus_word(narrow)}: {width} of {most} lanes in use, so copies take {most / width:.3g} times as long"
    proofs = [_proof(gpu, shown[gpu]) for gpu in narrow]
    return (
        warn(
            RULE,
            summary,
            *proofs,
            remedy=f"lspci -vv -s {narrow[0].pci_address} | grep Lnk\n# then reseat the card, or move it to a slot with all lanes",
        ),
    )


def _widths(gpu: Gpu, tree: Mapping[str, PciDevice]) -> tuple[int, int] | None:
    """Return the width of the link and the widest that both its ends can have; None where the host does not show it.

    A card of 16 lanes in a slot of 8 has all that there is: only what both ends can do is expected.
    """
    device = tree.get(gpu.pci_address)
    if device is None or not _real(device.link.width) or not _real(device.link.max_width):
        return None
    most = device.link.max_width or 0
    above = tree.get(device.parents[0]) if device.parents else None
    if above is not None and _real(above.link.max_width):
        most = min(most, above.link.max_width or most)
    return device.link.width or 0, most


def _real(width: int | None) -> bool:
    return width is not None and 0 < width <= WIDEST


def _proof(gpu: Gpu, widths: tuple[int, int]) -> Proof:
    path = f"/sys/bus/pci/devices/{gpu.pci_address}/current_link_width"
    return Proof(path, str(widths[0]), str(widths[1]))


CHECK = Check(
    question="Does each GPU's PCIe link have all its lanes?",
    rules=(RULE,),
    judge=judge,
    why=(
        "A link that came up with half its lanes halves every copy between host and GPU, without any error. Idle links lower"
        " their speed, so speed is judged under load only."
    ),
    sources=(
        "https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci",
        "https://github.com/NVIDIA/NVSentinel/issues/890",
        "https://github.com/Syllo/nvtop/issues/6",
    ),
)
