"""Which commands are there? Each is loaded when it is named; ``wellfed --help`` loads none of them."""

from __future__ import annotations

import click

from wellfed.model.errors import WellfedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

COMMANDS = {
    "doctor": "What on this host starves its GPUs, how is that known, what to type?",
    "topo": "Where are CPUs, memory, GPUs, NICs and disks? Text, SVG or JSON.",
    "run": "Launch a command beside its GPU, bound and verified.",
    "capture": "Record this host into one file, to be asked elsewhere.",
    "explain": "What is a rule of `doctor`, what does it do to a GPU job?",
}
"""Name and summary. ``wellfed.cli.NAME`` holds the command as ``COMMAND``."""


class Commands(click.Group):
    """Loads a command when it is named, and turns every error of ours into two lines and exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order in which a person meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the file of one command."""
        if cmd_name not in COMMANDS:
            return None
        from importlib import import_module

        found = import_module(f"wellfed.cli.{cmd_name}").COMMAND
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the one that was probably meant."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1)
            meant = f" Did you mean `wellfed {near[0]}`?" if near else ""
            ctx.fail(f"There is no command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what a person can mend is told with what to type."""
        try:
            return super().invoke(ctx)
        except WellfedError as problem:
            end_with(problem)


def end_with(problem: WellfedError) -> NoReturn:
    """Print an error and its remedy on stderr, and leave with 2."""
    click.echo(f"wellfed: {problem.message}", err=True)
    click.echo(f"  what to do: {problem.remedy}", err=True)
    raise SystemExit(2)


GROUP = Commands(
    "wellfed",
    help="Keep GPUs fed: find out why they wait for their host, launch jobs beside them, prove it.",
    epilog=(
        "Every command that reads takes --host FILE, a host that `wellfed capture` recorded."
        ' Completion: eval "$(_WELLFED_COMPLETE=bash_source wellfed)"'
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
GROUP = click.version_option(package_name="wellfed", message="%(prog)s %(version)s")(GROUP)
