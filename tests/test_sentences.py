"""Does what our sentences tell a person to type exist?"""

from __future__ import annotations

import ast
import pathlib
import re

import click
import pytest

import wellfed
from wellfed.cli.commands import GROUP
from wellfed.cli.run_options import OPTIONS

ROOT = pathlib.Path(wellfed.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OF_OTHERS = {
    "--cap-add", "--collect", "--cpus", "--cpuset-cpus", "--cpuset-mems", "--expand-environment", "--gpu-bind",
    "--gpus-per-task", "--long", "--no-python", "--of", "--scope", "--security-opt", "--shm-size", "--sort", "--sparse",
    "--ulimit", "--unit", "--upgrade", "--user",
}  # fmt: skip
"""Options of docker, Slurm, systemd-run, torchrun, lstopo, tar, zstd, ps and pip."""


def sentences(file: pathlib.Path) -> str:
    """Give every text of a module, docstrings included."""
    found = ast.walk(ast.parse(file.read_text()))
    return "\n".join(
        each.value
        for each in found
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )


def ours() -> set[str]:
    """Give every option of every command."""
    found = {name for option in OPTIONS for name in option.names} | {"--help"}
    context = click.Context(GROUP)
    for name in GROUP.list_commands(context):
        command = GROUP.get_command(context, name)
        found |= {each for parameter in command.params for each in parameter.opts}
    return found | {each for parameter in GROUP.params for each in parameter.opts}


@pytest.mark.parametrize("room", ["placement", "host", "gpus", "workflows", "checks", "model"])
def test_every_option_that_a_sentence_names_exists(room):
    """A remedy that names an option which nobody takes is worse than none."""
    known = ours() | OF_OTHERS
    named = {
        f"{file.name}: {option}"
        for file in (ROOT / room).rglob("*.py")
        for option in OPTION.findall(sentences(file))
        if option not in known
    }

    assert named == set()
