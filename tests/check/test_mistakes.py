"""Mistakes that people make in bodies: each report begins with the line that is wrong, and says what to change.

Each is a change of a right program (`PROGRAMS`), whose text marks the line that a reader wants.
"""

from __future__ import annotations

import re

import pytest

import tmapipe as tp
from tests.check.deciding import Tiles, put
from tests.check.mistakes import accesses, barriers, slots, subclasses
from tests.check.mistakes.form import PROGRAMS, Mistake, make
from tmapipe.check import Kind

STORED = "            slot.y.store(tile)\n"
MISTAKES = [mistake for module in (slots, barriers, accesses, subclasses) for mistake in module.MISTAKES]
REPORTED = [pytest.param(mistake, id=mistake.name) for mistake in MISTAKES if mistake.kind is not None]
REFUSED = [pytest.param(mistake, id=mistake.name) for mistake in MISTAKES if mistake.kind is None]


def test_there_are_enough_of_them():
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 60
    assert {mistake.program for mistake in MISTAKES} == set(PROGRAMS)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_the_programs_themselves_are_safe(name, tmp_path):
    report = make(PROGRAMS[name], tmp_path / "mine.py").check()
    assert not report.findings and report.trips == "every trip count", str(report)


@pytest.mark.parametrize("mistake", REPORTED)
def test_the_report_leads_to_the_line(mistake: Mistake, tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    report = make(mistake.text(), path).check()
    first = report.errors[0]
    assert first.kind is mistake.kind, str(report)
    assert first.where[0] in [f"{path}:{line}" for line in mistake.lines()], str(report)
    assert re.search(mistake.fix, first.fix), str(report)
    follows = [found for found in report.errors[1:] if found.kind is Kind.DEADLOCK]
    assert all(found.fix == first.fix for found in follows), f"a deadlock is explained in another way:\n{report}"
    assert (first.agents or first.kind is Kind.OUTPUT_RACE) and all(step.what for step in first.steps)
    monkeypatch.chdir(tmp_path)  # places are shown as a compiler does, relative to the working directory
    number = first.where[0].rpartition(":")[2]
    text = str(report).splitlines()
    head, shown, carets, said, *steps = text[text.index("") + 1 :]
    assert head.startswith(f"mine.py:{number}: error: ")
    text = mistake.text().splitlines()[int(number) - 1]
    assert shown == f"{number:>6} | {text}"
    marked = shown[carets.index("^") : carets.rindex("^") + 1]
    assert carets.startswith("       | ") and marked == marked.strip() and marked in text
    assert said.strip().startswith(first.message.splitlines()[0])
    for step, line in zip(first.steps, (line for line in steps if line.startswith("    step ")), strict=False):
        assert f"{step.agent} {step.what}" in line


@pytest.mark.parametrize("mistake", REFUSED)
def test_the_error_leads_to_the_line(mistake: Mistake, tmp_path):
    """Misuse of the objects is refused at once, in every backend, with the line in the message."""
    path = tmp_path / "mine.py"
    with pytest.raises(tp.errors.PipelineError) as info:
        make(mistake.text(), path).check()
    text, lines = str(info.value), mistake.lines()
    assert re.search(mistake.fix, text), text
    place = re.search(r" At (.*):(\d+)\.$", text)
    assert not lines or (place and place[1] == str(path) and int(place[2]) in lines), text


def test_files_with_equal_code_are_told_apart(tmp_path):
    """Functions of two files whose code is equal, at equal lines."""
    for name in ("one.py", "other.py"):
        report = make(MISTAKES[0].text(), tmp_path / name).check()
        assert all(place.startswith(str(tmp_path / name)) for place in report.errors[0].where), str(report)


@pytest.mark.parametrize(
    ("name", "change", "line", "fix"),
    [
        (
            "copy",
            {STORED: STORED + "            k.isa.fence_proxy_async()\n"},
            "k.isa.fence_proxy_async()",
            "drop this fence",
        ),
        (
            "written",
            {"= slot.x.read()": '= k.full("a", 0.0)', "acc.add(left.a, right.b)": "left.a.read(), right.b.read()"},
            "with k.ring.consume() as slot:",
            "none: a `with` block put it there, and it does no harm",
        ),
    ],
)
def test_redundant_fences(name, change, line, fix, tmp_path):
    """One that a body asks for can go; one that a `with` block derives cannot, and the note says so."""
    text = Mistake("", name, change, None, "").text()
    (note,) = make(text, tmp_path / "mine.py").check().findings
    assert (note.kind, note.fix) == (Kind.REDUNDANT_FENCE, fix)
    assert text.splitlines()[int(note.where[0].rpartition(":")[2]) - 1].strip() == line


def test_classes_and_bodies_without_a_module_are_the_users():
    class Nowhere(Tiles):
        __module__ = None

        @Tiles.load.jit
        def fill(self, k, tile):
            put(k, tile)
            put(k, tile)

    Nowhere.fill.__module__ = None
    assert Nowhere(lambda s, k, tile: 0).check().kinds() >= {Kind.TRIP_COUNTS}
