"""Which faults can a test plan, deterministically, and take back?

========================  ==============================================================================================
a system call fails       `seccomp`: every call of that name, errno per name; `tracing`: the n-th one only
a process is killed       `tracing`: SIGKILL before its n-th system call, every n in turn
somebody else writes      `tracing`: anything at all, between two of its calls; `racing`: a process that never rests
a disk is full or lies    `disks`: ENOSPC on write, or success on write and an error on fsync
/sys may not be written   `namespaces`: read-only, hidden or replaced, for one process
fewer rights, low limits  `rights`: another user, without capabilities, with low limits; `nobody`: the command line of wellfed
less CPU, less memory     `cgroups`: quota, memory limit; `pressure`: a full node, swap (guests only)
========================  ==============================================================================================

``python -m tests.faults deny=set_mempolicy:EPERM limit=memlock:65536 -- COMMAND`` puts several on one command.
"""
