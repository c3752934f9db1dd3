"""Does the README say what is so?"""

from __future__ import annotations

import pathlib
import re

from tests.doctoring import POD
from tests.hosts.assemble import write

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_example_is_what_doctor_prints(tmp_path, monkeypatch):
    """The output on the first screen is the real one, from the assembled pod."""
    from wellfed.report import doctor_text
    from wellfed.report.terminal import Terminal
    from wellfed.workflows.doctor import examine

    write(POD, tmp_path / "pod")
    monkeypatch.chdir(tmp_path)
    printed = doctor_text.render(examine("pod"), Terminal(width=80))
    example = README.split("$ wellfed doctor --host pod\n")[1].split("```")[0]

    assert printed.startswith(example)


def test_there_are_exactly_two_set_up_commands():
    """One runs the main job, one the tests; the second is the one that CI runs."""
    commands = re.findall(r"<!-- (\w+) -->\n```sh\n(.*)\n```", README)

    assert [name for name, _ in commands] == ["use", "test"]
    assert commands[0][1].endswith("wellfed doctor") and commands[1][1].endswith("pytest")
    assert README.count("python3 -m venv") == 2


def test_every_link_leads_somewhere():
    """Relative links of the documentation name files that exist."""
    missing = [
        (page.name, target)
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / target).exists()
    ]

    assert missing == []
