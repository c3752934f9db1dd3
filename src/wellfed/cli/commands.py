"""Which commands are there? Each is loaded when it is named; ``wellfed --help`` loads none of them."""

from __future__ import annotations

import click

from wellfed.cli.streams import tell_error
from wellfed.model.errors import UsageError, WellfedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
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
    """Loads a command when it is named, and turns every error, ours and click's, into two lines and exit code 2."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run a command line and leave with its exit code; nothing but the name shows the help."""
        words = None if args is None else list(args) or ["--help"]
        try:
            code = super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
        except click.Abort:
            raise KeyboardInterrupt from None
        except click.ClickException as problem:
            end_with(in_our_words(problem))
        raise SystemExit(code if isinstance(code, int) else 0)

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
            near = _nearest(args[0], COMMANDS)
            remedy = f"did you mean `wellfed {near}`? " if near else ""
            raise UsageError(
                f"there is no command {args[0]!r}", remedy=f"{remedy}`wellfed --help` lists them"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what a person can mend is told with what to type."""
        try:
            return super().invoke(ctx)
        except WellfedError as problem:
            end_with(problem)


def end_with(problem: WellfedError) -> NoReturn:
    """Print an error and its remedy on stderr, and leave with 2."""
    tell_error(problem)
    raise SystemExit(2)


def in_our_words(problem: click.ClickException) -> UsageError:
    """Turn what click says of a command line into a sentence and what to type instead."""
    context = getattr(problem, "ctx", None)
    path = "wellfed" if context is None else context.command_path
    remedy = f"`{path} --help` shows what it takes"
    if isinstance(problem, click.NoSuchOption):
        near = _nearest(problem.option_name, problem.possibilities or ())
        remedy = (f"did you mean {near}? " if near else "") + remedy
        return UsageError(f"`{path}` has no option {problem.option_name}", remedy=remedy)
    said = problem.format_message().rstrip(".")
    return UsageError(said[:1].lower() + said[1:], remedy=remedy)


def _nearest(word: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, known, 1)), None)


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
