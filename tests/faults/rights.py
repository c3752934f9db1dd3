"""How does a process lose rights: its user, its capabilities, its limits? For good, and what it starts with it."""

from __future__ import annotations

import ctypes
import os
import pwd
import resource

PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
CAPABILITY_VERSION_3 = 0x20080522
# include/uapi/linux/capability.h, from 0
CAPABILITIES = (
    "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap",
    "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner",
    "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice",
    "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap",
    "mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf",
    "checkpoint_restore",
)  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)


def drop(*names: str) -> None:
    """Take capabilities away, from the bounding set too: without that root has them back with the next exec."""
    numbers = [CAPABILITIES.index(name) for name in names]
    for number in numbers:
        _prctl(PR_CAPBSET_DROP, number)
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    # effective, permitted and inheritable, first for capabilities 0-31, then for 32-63
    sets = (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, sets), "capget")
    for number in numbers:
        for each in range(3):
            sets[3 * (number // 32) + each] &= ~(1 << number % 32) & 0xFFFFFFFF
    _check(_libc.capset(header, sets), "capset")


def become(name: str) -> None:
    """Become another user, without supplementary groups and, by the kernel's rules, without capabilities."""
    user = pwd.getpwnam(name)
    os.setgroups([])
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)


def limit(name: str, value: int) -> None:
    """Set a limit, ``memlock`` or ``nofile``, soft and hard, in the kernel's units."""
    resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (value, value))


def _prctl(option: int, argument: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(
        _libc.prctl(option, ctypes.c_ulong(argument), zero, zero, zero),
        f"prctl {option} {argument}",
    )


def _check(failed: int, what: str) -> None:
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
