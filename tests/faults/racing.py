"""Who else writes a file, all the time, while we read and write it?"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from types import TracebackType

WRITER = """
import os, sys
path, how, texts = sys.argv[1], sys.argv[2], [text.encode() for text in sys.argv[3:]]
print(flush=True)
while True:
    for text in texts:
        if how == "replace":
            with open(path + ".racer", "wb") as file:
                file.write(text)
            os.rename(path + ".racer", path)
        else:
            descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
            os.write(descriptor, text)
            os.close(descriptor)
"""


class Racer:
    """A process that writes texts to a file in turn without rest, while the ``with`` block runs.

    In place, as the files of /proc and /sys are written (a reader may see an ordinary file empty), or, with
    ``replace``, by renaming another file over it.
    """

    def __init__(self, path: pathlib.Path | str, *texts: str, replace: bool = False) -> None:
        self.path = str(path)
        self.texts = texts
        self.how = "replace" if replace else "in place"

    def __enter__(self) -> Racer:
        command = [sys.executable, "-c", WRITER, self.path, self.how, *self.texts]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        ended_alone = self.process.poll()
        self.process.kill()
        self.process.wait()
        pathlib.Path(self.path + ".racer").unlink(missing_ok=True)
        if ended_alone is not None:
            raise AssertionError(f"the racing writer ended by itself: {ended_alone}")

    def pause(self) -> str:
        """Let it stand still and return what the file says meanwhile; `go_on` ends the pause."""
        os.kill(self.process.pid, signal.SIGSTOP)
        while _state_of(self.process.pid) != "T":
            time.sleep(0.001)
        return pathlib.Path(self.path).read_text()

    def go_on(self) -> None:
        """End a pause."""
        os.kill(self.process.pid, signal.SIGCONT)


def _state_of(pid: int) -> str:
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
