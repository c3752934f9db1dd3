"""What is this host called, and who works on it? Known so that a recording can leave it out."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.tree import HostTree

HOST_FILES = ("/proc/sys/kernel/hostname", "/etc/hostname", "/proc/sys/kernel/domainname")
PEOPLE_VARIABLES = ("USER", "LOGNAME", "SUDO_USER", "USERNAME")
NO_NAME = ("", "(none)")


def host_names(tree: HostTree) -> tuple[str, ...]:
    """Return every name of a host that its own files know, and of this one what uname says."""
    found = {os.uname().nodename} if tree.live else set()
    for path in HOST_FILES:
        found.update((tree.read(path) or "").split())
    return tuple(sorted(found - set(NO_NAME)))


def people_names() -> tuple[str, ...]:
    """Return the names of the person whose process this is: by user id, by variables, by home directory."""
    import pwd

    found = {os.environ.get(variable, "") for variable in PEOPLE_VARIABLES}
    found.add(os.path.basename(os.environ.get("HOME", "").rstrip("/")))
    for uid in {os.getuid(), os.geteuid()}:
        try:
            found.add(pwd.getpwuid(uid).pw_name)
        except KeyError:
            # A container may run as a number that nobody gave a name.
            continue
    return tuple(sorted(found - set(NO_NAME)))
