"""Where each rank goes: its CPUs, its memory, its roles and its threads."""

from __future__ import annotations

from wellfed.model.cpuset import EMPTY, CpuSet, NodeSet
from wellfed.model.value import Value

POLICIES = ("node", "exclusive", "core-complex", "socket", "none")
"""How CPUs are shared among ranks; `placement/policies` says what each does."""

MEMORY_MODES = ("preferred", "bind", "interleave", "weighted", "local", "none")
"""``preferred`` is soft: pages spill to the next node instead of killing the job."""

ROLES = ("main", "loader", "pin", "nccl", "checkpoint")

SMT_MODES = ("on", "off", "first")
"""``on``: all threads of a core; ``off``: one thread a core; ``first``: first threads for main, siblings for the rest."""


class Wishes(Value):
    """What the person asked of a placement."""

    policy: str = "node"
    smt: str = "on"
    memory: str = "preferred"
    reserve: CpuSet = EMPTY
    """CPUs that stay with the operating system."""
    reserve_cores_per_node: int = 0
    roles: tuple[tuple[str, int], ...] = ()
    """(role, cores) that a rank sets apart from its main threads; empty: no split."""
    gpus: tuple[int, ...] | None = None
    """GPU indices (PCI order) to use, one a rank in turn; None: choose by visibility and locality."""
    taken: CpuSet = EMPTY
    """CPUs to which processes of other jobs are bound."""
    wanted_bytes: int | None = None
    """Host memory that one rank will use, for the check before a hard ``bind``; None: not said."""


class MemoryPolicy(Value):
    """A memory policy for every page a rank touches first."""

    mode: str
    """One of MEMORY_MODES."""
    nodes: NodeSet = EMPTY
    """Nodes with memory; empty for ``local`` and ``none``."""


class RankPlacement(Value):
    """Where one rank goes."""

    local_rank: int
    gpus: tuple[str, ...]
    """PCI addresses of its GPUs, first is its own; several for one process beside all GPUs; empty without GPU."""
    cpus: CpuSet
    """CPUs of all its threads. Empty under the policy ``none`` and without a GPU: leave the mask alone."""
    memory: MemoryPolicy
    num_cores: int = 0
    """Physical cores in ``cpus``."""
    num_threads: int = 1
    """Threads for OpenMP and MKL: cores, bounded by its share of ``cpu.max``."""
    roles: tuple[tuple[str, CpuSet], ...] = ()
    cpu_nodes: NodeSet = EMPTY
    """Nodes its CPUs are on."""
    local: bool | None = None
    """True: CPUs beside the GPU; False: elsewhere, a note says why; None: where the GPU is cannot be known."""
    nics: tuple[str, ...] = ()
    """RDMA devices or interfaces nearest to its GPU."""
    notes: tuple[str, ...] = ()


class Placement(Value):
    """The plan for all ranks of a job on one host. The same input gives the same plan."""

    policy: str
    ranks: tuple[RankPlacement, ...]
    notes: tuple[str, ...] = ()
    """What holds for the whole plan, one sentence each."""

    def rank(self, local_rank: int) -> RankPlacement | None:
        """Return where one rank goes; None where the plan does not hold it (others' GPUs may be invisible)."""
        return next((rank for rank in self.ranks if rank.local_rank == local_rank), None)
