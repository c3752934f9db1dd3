"""What does a person type to run one command in a guest?"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

from tests.lab import guest, kernel, topology


def main() -> int:
    """Run ``python -m tests.lab run TOPOLOGY [options] -- COMMAND``; the exit code is the command's."""
    words = sys.argv[1:]
    command: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, command = words[:cut], words[cut + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab",
        description="Run one command in a throw-away Linux guest with a chosen topology. The host's root is there, "
        "read-only; what the guest writes is gone afterwards, except under /lab.",
        epilog="exit code: the command's own; 124 timed out; 125 the guest died or never reported",
    )
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="name the topologies")
    running = actions.add_parser(
        "run",
        help="run a command",
        usage="python -m tests.lab run TOPOLOGY [options] -- COMMAND ...",
    )
    running.add_argument("topology", help=f"one of {', '.join(topology.names())}, or a .json file")
    running.add_argument("--timeout", type=float, default=300, metavar="SECONDS")
    running.add_argument(
        "--append",
        default="",
        metavar="ARGUMENTS",
        help="more kernel arguments, such as isolcpus=2-3",
    )
    running.add_argument(
        "--modules", default="", metavar="NAMES", help="kernel modules to load first, with commas"
    )
    running.add_argument(
        "--out",
        type=pathlib.Path,
        metavar="FOLDER",
        help="the guest's /lab (default: a temporary one)",
    )
    said = parser.parse_args(words)
    if said.action == "list":
        for name in topology.names():
            print(f"{name:10} {topology.read(name).about}")
        return 0
    if not command:
        parser.error("no command: write it after --")
    try:
        known = topology.read(said.topology)
        booted = kernel.prepare()
    except (topology.TopologyMistakeError, kernel.LabUnavailableError) as reason:
        print(f"lab: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="wellfed-lab-out-") as scratch:
        outcome = guest.run(
            booted,
            known,
            command,
            folder=(said.out or pathlib.Path(scratch)).resolve(),
            kernel_arguments=said.append,
            modules=[module for module in said.modules.split(",") if module],
            timeout_seconds=said.timeout,
            follow=True,
        )
    if outcome.exit_code in (guest.TIMED_OUT, guest.GUEST_DIED):
        print(f"lab: {outcome.reason()}", file=sys.stderr)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
