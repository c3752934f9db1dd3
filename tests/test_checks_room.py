"""Does every check keep the rules of its room?"""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doctoring import DGX, changed, checks
from wellfed.checks import _room
from wellfed.checks._base import UNMEASURED, Check, advise, ok, shown, warn, whole_number
from wellfed.checks._room import all_checks, chosen, judge_all
from wellfed.model.errors import MalformedTextError, UsageError
from wellfed.model.finding import VERDICTS, WORKLOADS, Proof
from wellfed.model.snapshot import Snapshot
from wellfed.model.tree import Unreadable
from wellfed.workflows.machine import know
from wellfed.workflows.snapshot import declared, snapshot_of

CHECKS = all_checks()
RULES = [rule for check in CHECKS for rule in check.rules]


def test_every_file_is_found_once():
    """A check is one file that exposes CHECK; no list names them."""
    assert len(RULES) == len(set(RULES)) >= 20
    assert all_checks() == CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.rules[0])
def test_check_says_what_a_person_needs(check):
    """A question that ends in a question mark, why it matters, a source, and ids that never change their form."""
    assert check.question.endswith("?") and check.question[0].isupper()
    assert len(check.why) > 60 and check.why.endswith(".")
    assert check.sources and all(source.startswith("https://") for source in check.sources)
    for rule in check.rules:
        area, dot, name = rule.partition(".")
        assert (
            dot
            and area.isalpha()
            and name.replace("_", "").replace(".", "").isalnum()
            and rule == rule.lower()
        )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.rules[0])
def test_question_is_the_first_line_of_its_file(check):
    """The caption of the file and the question are one sentence."""
    module = __import__(check.judge.__module__, fromlist=["CHECK"])

    assert (module.__doc__ or "").splitlines()[0] == check.question


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.rules[0])
def test_declared_reads_suffice(check, workload):
    """A check that looks at what it did not declare ends with KeyError: nothing else was read for it."""
    tree = changed(DGX)
    snapshot = snapshot_of(tree, know(tree), [check])

    findings = judge_all(snapshot, workload, [check])

    assert {finding.rule for finding in findings} == set(check.rules)
    for finding in findings:
        assert finding.verdict in VERDICTS and finding.summary and finding.why and finding.sources


def test_undeclared_reading_is_our_own_mistake():
    """A snapshot answers for what was declared, and for nothing else."""
    tree = changed(DGX)
    snapshot = snapshot_of(tree, know(tree), [])

    with pytest.raises(KeyError):
        snapshot.read("/proc/swaps")
    with pytest.raises(KeyError):
        snapshot.match("/sys/devices/system/cpu/cpufreq/policy*/scaling_governor")
    with pytest.raises(KeyError):
        snapshot.answer("rlimit memlock")


TEXTS = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        ["", "0", "-1", "1 2 3", "\x00", "a=b", "[never]", "9" * 40, "é" * 20, "unlimited"]
    ),
    st.binary(max_size=40).map(lambda content: content.decode("utf-8", "replace")),
)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_no_text_of_a_host_breaks_a_check(data):
    """Binary, empty, long and absurd texts lead to a verdict, never to an error; unreadable ones never to `ok`-by-default."""
    tree = changed(DGX)
    machine = know(tree)
    wanted = declared(CHECKS)
    full = snapshot_of(tree, machine, CHECKS)
    text = st.one_of(
        TEXTS, st.sampled_from([Unreadable("EACCES"), Unreadable("EIO"), Unreadable("ENOENT")])
    )
    policy = "/sys/devices/system/cpu/cpufreq/policy0"
    matches = {path: () for path in full.matches} | {
        path: (path.replace("/policy*", "/policy0"),) for path in full.matches if "/policy*" in path
    }
    readings = {path: data.draw(text) for path in wanted.reads if path not in matches}
    readings |= {path: data.draw(text) for paths in matches.values() for path in paths}
    assert policy in "".join(readings)
    snapshot = Snapshot(
        machine,
        readings,
        matches,
        {question: data.draw(text) for question in wanted.asks},
        full.rates,
        data.draw(
            st.dictionaries(
                st.sampled_from(
                    [
                        "OMP_NUM_THREADS",
                        "NCCL_IGNORE_CPU_AFFINITY",
                        "KMP_AFFINITY",
                        "CUDA_VISIBLE_DEVICES",
                        "OMP_PROC_BIND",
                    ]
                ),
                st.text(max_size=20),
            )
        ),
        visible=full.visible,
    )

    findings = judge_all(snapshot, data.draw(st.sampled_from(WORKLOADS)), CHECKS)

    assert {finding.rule for finding in findings} == set(RULES)


def test_text_that_cannot_be_taken_apart_is_unknown():
    """An error of parsing ends one check, not the report."""

    def broken(snapshot, workload):
        raise MalformedTextError("0-x is no list", remedy="look")

    check = Check("What?", ("test.broken",), broken, "Because.", ("https://example.org",))
    tree = changed(DGX)

    (finding,) = judge_all(snapshot_of(tree, know(tree), [check]), "training", [check])

    assert (finding.verdict, finding.summary) == ("unknown", "0-x is no list")


def test_check_that_forgets_a_rule_is_our_own_mistake():
    """Each declared rule gets a finding, and no other does."""
    check = Check(
        "What?",
        ("test.a", "test.b"),
        lambda s, w: [ok("test.a", "x")],
        "Because.",
        ("https://example.org",),
    )
    tree = changed(DGX)

    with pytest.raises(AssertionError):
        judge_all(snapshot_of(tree, know(tree), [check]), "training", [check])


def test_urgent_findings_come_first():
    """fail, warn, unknown, n/a, ok."""
    tree = changed(DGX, answers={"rlimit memlock": "65536 65536", "rlimit nofile": "1024 4096"})

    verdicts = [
        each.verdict
        for each in judge_all(snapshot_of(tree, know(tree), checks()), "training", checks())
    ]

    assert verdicts == sorted(verdicts, key=VERDICTS.index)
    assert verdicts[:2] == ["fail", "warn"]


@pytest.mark.parametrize(
    ("select", "ignore", "wanted"),
    [
        (["mem.*"], [], {rule for rule in RULES if rule.startswith("mem.")}),
        ([], ["mem.*", "env.*"], {rule for rule in RULES if not rule.startswith(("mem.", "env."))}),
        (["mem.swap*"], ["mem.swappiness"], {"mem.swap.devices"}),
        ([], [], set(RULES)),
    ],
)
def test_rules_are_chosen_by_glob(select, ignore, wanted):
    """As in a shell; what is ignored wins."""
    assert {rule for check in chosen(CHECKS, select, ignore) for rule in check.rules} == wanted


def test_glob_that_fits_nothing_is_an_error():
    """A typing mistake must not make a host look clean."""
    with pytest.raises(UsageError):
        chosen(CHECKS, ["mem.swapping"], [])


def test_a_new_check_is_one_new_file(tmp_path, monkeypatch):
    """Dropped into the room it is found, judged and can be selected; nothing else was touched."""
    (tmp_path / "aaa_new.py").write_text(
        '"""Is it new?"""\n'
        "from wellfed.checks._base import Check, ok\n"
        "CHECK = Check('Is it new?', ('test.new',), lambda s, w: [ok('test.new', 'yes')], 'Because.', ('https://example.org',))\n"
    )
    monkeypatch.setattr(
        _room.wellfed.checks, "__path__", [*_room.wellfed.checks.__path__, str(tmp_path)]
    )

    monkeypatch.delitem(sys.modules, "wellfed.checks.aaa_new", raising=False)

    found = all_checks()
    monkeypatch.delitem(sys.modules, "wellfed.checks.aaa_new")

    assert "test.new" in {rule for check in found for rule in check.rules}
    assert len(found) == len(CHECKS) + 1


def test_long_and_odd_texts_are_shown_short():
    """A quoted value stays on one line."""
    assert shown("x" * 500) == repr("x" * 57 + "...")
    assert shown("a\nb") == "'a\\nb'"
    assert [whole_number(text) for text in ("7", " -7 ", "", "--7", "7.0", "٣", "9" * 30)] == [
        7,
        -7,
        None,
        None,
        None,
        None,
        None,
    ]


def test_proof_is_a_value():
    """Where, found, wanted."""
    assert Proof("/x", "1").wanted is None


def test_finding_carries_what_its_check_knows():
    """Trap, effect, how undone and when checked come from the check, unless the finding says it itself."""
    knows = Check(
        question="Is it?",
        rules=("mem.it",),
        judge=lambda snapshot, workload: [
            warn("mem.it", "it is", remedy="mend it", undo="as it was"),
            warn("mem.it", "it is twice", remedy="mend it"),
            ok("mem.it", "it is not"),
        ],
        why="It hurts.",
        sources=("https://docs.kernel.org/",),
        trap="People set it twice.",
        checked_on="Linux 6.18, 2026-12-04",
        undo="take it back",
    )
    tree = changed(DGX)

    said = judge_all(snapshot_of(tree, know(tree), [knows]), "training", [knows])

    assert [finding.undo for finding in said] == ["as it was", "take it back", None]
    assert {(each.trap, each.effect, each.checked_on) for each in said} == {
        ("People set it twice.", UNMEASURED, "Linux 6.18, 2026-12-04")
    }
    assert knows.area == "mem"


def test_pedantic_findings_come_last():
    """What nothing on the host gives weight to stands behind what is fine."""
    pedant = Check(
        question="Is it?",
        rules=("mem.it", "mem.that"),
        judge=lambda snapshot, workload: [advise("mem.it", "it is"), ok("mem.that", "fine")],
        why="It hurts.",
        sources=("https://docs.kernel.org/",),
    )
    tree = changed(DGX)

    said = judge_all(snapshot_of(tree, know(tree), [pedant]), "training", [pedant])

    assert [(each.rule, each.pedantic) for each in said] == [("mem.that", False), ("mem.it", True)]
