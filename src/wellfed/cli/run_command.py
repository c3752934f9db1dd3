"""How do the options of ``wellfed run`` look to click, which writes help, completion and errors?"""

from __future__ import annotations

import click

from wellfed.cli.run_options import Option, Words, absent_value, convert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Converter = click.ParamType[Any]
else:
    # Generic since click 8.2 only.
    Converter = click.ParamType

HELP = """Launch COMMAND with its CPUs and memory beside its GPU, verified with the kernel.

Under torchrun --no-python, srun, mpirun, Flux or JAX it binds the rank that it is and becomes the command. Without a
launcher it is one process beside all GPUs that it may see; --per-gpu or --ranks N starts all ranks of this host.

\b
    wellfed run -- python train.py
    torchrun --nproc-per-node 8 --no-python wellfed run -- python train.py
    wellfed run --per-gpu --policy exclusive -- python train.py
    wellfed run --explain --per-gpu --host host.tar.xz
"""
EPILOG = (
    "The exit code is the command's own, or 128 plus the signal that ended it; 2 before anything was started, "
    "126 not executable, 127 not found."
)


class Converted(Converter):
    """A value that the small parser's own converter reads, so that both parsers agree."""

    def __init__(self, option: Option) -> None:
        """Take the option from the table."""
        self._option = option
        self.name = option.metavar or "flag"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Turn a word into a value; a default is one already. What is wrong is raised as our own error."""
        return convert(self._option, value) if isinstance(value, str) else value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Offer the choices, or files."""
        from click.shell_completion import CompletionItem

        if self._option.choices:
            found = [each for each in self._option.choices if each.startswith(incomplete)]
            return [CompletionItem(each) for each in found]
        kind = {"FILE": "file", "FOLDER": "dir"}.get(self._option.metavar or "", "plain")
        return [] if kind == "plain" else [CompletionItem(incomplete, type=kind)]


class RunCommand(click.Command):
    """Shows options under headings, in the order of the table."""

    def __init__(self, options: Sequence[Option], callback: Callable[..., None]) -> None:
        """Make click's parameters from the table."""
        self._options = options
        parameters: list[click.Parameter] = [_parameter(option) for option in options]
        parameters.append(click.Argument(["command"], nargs=-1, type=click.UNPROCESSED))
        super().__init__(
            "run",
            params=parameters,
            callback=callback,
            help=HELP,
            epilog=EPILOG,
            short_help="Launch a command beside its GPU, bound and verified.",
            options_metavar="[OPTIONS] [--]",
            context_settings={"allow_interspersed_args": False},
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list a heading."""
        records: dict[str, list[tuple[str, str]]] = {}
        headings = {option.field: option.group for option in self._options}
        for parameter in self.get_params(ctx):
            # The usage line shows the command; since click 8.4 arguments have a record, too.
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                heading = headings.get(parameter.name or "", "Other")
                records.setdefault(heading, []).append(record)
        for heading, rows in records.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def command(options: Sequence[Option], run: Callable[[Words], int]) -> click.Command:
    """Make the command; its exit code is what ``run`` returns."""

    def callback(command: tuple[str, ...], **values: Any) -> None:
        raise SystemExit(run(Words(values, command)))

    return RunCommand(options, callback)


def _parameter(option: Option) -> click.Option:
    names = [*option.names, option.field]
    if option.metavar is None:
        return click.Option(names, is_flag=True, help=option.help)
    default = absent_value(option)
    shown = isinstance(default, (str, float, int)) and default != 0
    return click.Option(
        names,
        type=Converted(option),
        default=default,
        multiple=option.repeats,
        metavar=option.metavar if not option.choices else "|".join(option.choices),
        show_default=shown,
        help=option.help,
    )
