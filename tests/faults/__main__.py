"""What does a person type to run one command with faults?

``python -m tests.faults FAULT... -- COMMAND``, applied in this order whatever the order of the words:

readonly=PATH    the file system there, and those below, may not be written
hide=PATH        the folder is empty
show=PATH:WITH   the folder or file is another one
limit=NAME:N     RLIMIT_NAME, soft and hard
drop=CAP,...     capabilities that are gone for good; ``all``
user=nobody      another user, without capabilities
deny=CALL:ERRNO,...  system calls that fail
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable


def main(words: list[str]) -> None:
    """Put the faults on this process, and become the command."""
    cut = words.index("--")
    told = [word.partition("=")[::2] for word in words[:cut]]
    command = words[cut + 1 :]
    unknown = {name for name, _ in told} - set(ORDER)
    if unknown:
        raise SystemExit(f"no such fault: {', '.join(sorted(unknown))}")
    # All that has to be imported is, before this process may not read it any more.
    faults = [make(value) for name, make in ORDER.items() for given, value in told if given == name]
    # So is the search for the program done: os.execvp imports while it searches.
    program = shutil.which(command[0]) or command[0]
    for fault in faults:
        fault()
    os.execv(program, command)


def _readonly(path: str) -> Callable[[], None]:
    from tests.faults import namespaces

    return lambda: namespaces.read_only(path)


def _hide(path: str) -> Callable[[], None]:
    from tests.faults import namespaces

    return lambda: namespaces.hide(path)


def _show(text: str) -> Callable[[], None]:
    from tests.faults import namespaces

    path, _, other = text.partition(":")
    return lambda: namespaces.show(path, other)


def _limit(text: str) -> Callable[[], None]:
    from tests.faults import rights

    name, _, value = text.partition(":")
    return lambda: rights.limit(name, int(value))


def _drop(text: str) -> Callable[[], None]:
    from tests.faults import rights

    names = rights.CAPABILITIES if text == "all" else text.split(",")
    return lambda: rights.drop(*names)


def _user(name: str) -> Callable[[], None]:
    from tests.faults import rights

    return lambda: rights.become(name)


def _deny(text: str) -> Callable[[], None]:
    from tests.faults import seccomp

    answers = dict(each.split(":") for each in text.split(","))
    return lambda: seccomp.deny(answers)


ORDER = {
    "readonly": _readonly,
    "hide": _hide,
    "show": _show,
    "limit": _limit,
    "drop": _drop,
    "user": _user,
    "deny": _deny,
}
"""How each word is read; what it gives back does it."""

if __name__ == "__main__":
    main(sys.argv[1:])
