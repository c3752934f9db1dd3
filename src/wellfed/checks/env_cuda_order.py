"""Does CUDA number the GPUs as nvidia-smi does?"""

from __future__ import annotations

from collections.abc import Iterable

from wellfed.checks._base import Check, cannot_tell, does_not_apply, ok, warn
from wellfed.model.finding import Finding, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable

RULE = "env.cuda_device_order"
VARIABLE = "CUDA_DEVICE_ORDER"


def judge(snapshot: Snapshot, workload: str) -> Iterable[Finding]:
    """Different models are numbered fastest first unless told otherwise; equal ones are in PCI order anyway."""
    machine = snapshot.machine
    gpus = [gpu for gpu in machine.gpus if gpu.vendor == "nvidia" and gpu.accessible is not False]
    if len(gpus) < 2:
        return (does_not_apply(RULE, "fewer than two NVIDIA GPUs here"),)
    environment = snapshot.answer("environ")
    if isinstance(environment, Unreadable):
        return (cannot_tell(RULE, "environment", environment),)
    value = snapshot.environment.get(VARIABLE)
    found = Proof(f"environment {VARIABLE}", value or "not set", "PCI_BUS_ID")
    ids = {device.address: device.device for device in machine.pci}
    models = dict.fromkeys(gpu.name or ids.get(gpu.pci_address) or "?" for gpu in gpus)
    if len(models) == 1:
        return (ok(RULE, "all GPUs are of one model: either order is the PCI order", found),)
    if value == "PCI_BUS_ID":
        return (ok(RULE, "GPUs of different models, numbered in PCI order", found),)
    summary = f"GPUs of different models ({', '.join(models)}) are numbered fastest first: device 0 may not be GPU 0"
    return (warn(RULE, summary, found, remedy=f"export {VARIABLE}=PCI_BUS_ID"),)


CHECK = Check(
    question="Does CUDA number the GPUs as nvidia-smi does?",
    rules=(RULE,),
    judge=judge,
    why=(
        "With different models CUDA's default order is its own guess of the fastest, so a launcher that counts as nvidia-smi"
        " does binds a rank beside the wrong GPU."
    ),
    sources=(
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables",
        "https://github.com/flux-framework/flux-core/issues/1591",
    ),
    asks=("environ",),
)
