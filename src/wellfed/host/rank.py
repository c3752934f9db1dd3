"""How is a rank that runs reached, and what of it is left when it has ended?"""

from __future__ import annotations

import os

from wellfed.host.signals import exit_code_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.host.launch import Child


class Rank:
    """A rank that runs, and what is known of its end."""

    def __init__(self, child: Child, *, own_group: bool) -> None:
        """Take a child."""
        self.child = child
        self.pid = child.pid
        self.own_group = own_group
        self.code: int | None = None
        """Exit code once it has ended."""
        self.group_gone = not own_group

    def send(self, number: int) -> None:
        """Send a signal to all of its group, or to it alone; a rank that is gone is none's fault."""
        try:
            if not self.own_group:
                if self.code is None:
                    os.kill(self.pid, number)
            elif not self.group_gone:
                os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def look_at_group(self) -> None:
        """Learn whether anything of an ended rank's group is left.

        We are the reaper of its orphans: as long as one of them is not waited for, the number of the group
        cannot pass to strangers, and a signal to it reaches nobody else.
        """
        while self.code is not None and not self.group_gone:
            try:
                pid, _ = os.waitpid(-self.pid, os.WNOHANG)
            except ChildProcessError:
                self.group_gone = True
                return
            if pid == 0:
                return

    def wait(self) -> None:
        """Wait until it has ended, unless that is known."""
        if self.code is not None:
            return
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return
        self.code = exit_code_of(status)
