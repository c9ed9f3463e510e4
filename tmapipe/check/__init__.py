"""The checker, which decides without a GPU whether a pipeline can hang, race or corrupt memory.

Here is its answer: a `Report` of `Finding`s, with source lines, as text or data; and the log that collects findings in a run.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from tmapipe.errors import SYNTAX
from tmapipe.isa import Start, declared
from tmapipe.model.layout import Kind, Layout
from tmapipe.model.run import Drawn, Event, Timeline, bar_name, event_of, lines, slot_name, who

__all__ = ["Event", "Finding", "Kind", "Report"]

# ---- excerpt ---------------------------------------------------------------------------------------------------------
#
# A source line as a report shows it, with carets below the call that is wrong.


_ABOVE_LIBRARY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def excerpt(where: str, words: Sequence[str]) -> list[str]:
    """The line at *where* ("file:line") and the carets below it; nothing if its file cannot be read."""
    marked = marked_in(where, words)
    if marked is None:
        return []
    line, first, last = marked
    number = f"{where.rpartition(':')[2]:>6}"
    before = "".join(character if character == "\t" else " " for character in line[:first])
    return [f"{number} | {line}", f"{' ' * len(number)} | {before}{'^' * (last - first)}"]


def marked_in(where: str, words: Sequence[str]) -> tuple[str, int, int] | None:
    """(the line, the first column to mark, the one after the last), counted from 0; None if its file cannot be read.

    Marked is the outermost call that names one of *words*, or else the first call; in a line without calls, the name of the
    function that the line defines, or the whole statement.
    """
    path, _, number = where.rpartition(":")
    lines = linecache.getlines(path) or linecache.getlines(os.path.join(_ABOVE_LIBRARY, path))
    if not 0 < int(number) <= len(lines):
        return None
    line = lines[int(number) - 1].rstrip()
    calls = [(first, last, name) for at, first, last, name in _parts("".join(lines)) if at == int(number)]
    named = [each for each in calls if set(each[2].split(".")) & set(words)]
    for first, last, _ in (*named, *calls):
        return line, len(line.encode()[:first].decode()), len(line.encode()[: last or None].decode())
    first = len(line) - len(line.lstrip())
    return line, first, max(len(line), first + 1)


@functools.lru_cache(maxsize=8)
def _parts(text: str) -> list[tuple[int, int, int, str]]:
    """(line, first byte, byte after the last or 0 if that is on another line, names) of calls and definitions, outer ones
    first."""
    try:
        with SYNTAX:
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            last = node.end_col_offset if node.end_lineno == node.lineno else 0
            found.append((node.lineno, node.col_offset, last or 0, ast.unparse(node.func)))
        elif isinstance(node, ast.FunctionDef):
            first = node.col_offset + len("def ")
            found.append((node.lineno, first, first + len(node.name.encode()), ""))
    return found


# ---- written ---------------------------------------------------------------------------------------------------------
#
# Reports as data: JSON of their own form, and SARIF 2.1.0, which code hosts and editors read (docs/command.md).


_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def _finding(of: Finding) -> dict[str, Any]:
    return {
        "rule": of.kind.name,
        "level": of.level,
        "title": of.kind.value,
        "message": of.message,
        "fix": of.fix,
        "agents": list(of.agents),
        "where": [_place(where) for where in of.where],
        "barrier": of.barrier,
        "slot": of.slot,
        "phase": of.phase,
        "steps": [_step(step) for step in of.steps],
    }


def _step(step: Event) -> dict[str, Any]:
    where = _place(step.where) if step.where else None
    return {"order": step.order, "cta": step.cta, "agent": step.agent, "what": step.what, "where": where}


def _place(where: str) -> dict[str, Any]:
    path, _, line = where.rpartition(":")
    return {"file": path, "line": int(line)}


def _result(of: Finding, rule: int, name: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "ruleId": of.kind.name,
        "ruleIndex": rule,
        "level": of.level,
        "message": {"text": f"{name}: {of.message}. Fix: {of.fix}."},
        "locations": [{"physicalLocation": _physical(where, of.words)} for where in of.where[:1]],
        "relatedLocations": [{"id": i, "physicalLocation": _physical(where)} for i, where in enumerate(of.where[1:])],
        "properties": {"fix": of.fix, "agents": list(of.agents)},
    }
    shown = [step for step in of.steps if step.where]
    if shown:
        made["codeFlows"] = [{"threadFlows": [{"locations": [_flow(step) for step in shown]}]}]
    return made


def _flow(step: Event) -> dict[str, Any]:
    message = {"text": f"{step.agent} {step.what}"}
    return {
        "location": {"physicalLocation": _physical(step.where or ""), "message": message},
        "executionOrder": step.order,
    }


def _physical(where: str, words: tuple[str, ...] | None = None) -> dict[str, Any]:
    """A source line in SARIF, relative to the working directory if the file is below it. With *words*, the part of the line
    that `marked_in` marks."""
    place = _place(where)
    path = Path(os.path.abspath(place["file"]))
    try:
        artifact = {"uri": path.relative_to(Path.cwd()).as_posix(), "uriBaseId": "SRCROOT"}
    except ValueError:
        artifact = {"uri": path.as_uri()}
    region: dict[str, Any] = {"startLine": place["line"]}
    marked = None if words is None else marked_in(where, words)
    if marked is not None:
        line, first, last = marked
        region |= {"startColumn": first + 1, "endColumn": last + 1, "snippet": {"text": line}}
    return {"artifactLocation": artifact, "region": region}


# ---- findings --------------------------------------------------------------------------------------------------------
#
_LIBRARY, _SCHEDULES = f"tmapipe{os.sep}", os.path.join("tmapipe", "schedules")  # as `machine.locate` shows them


def _users_first(places: tuple[str, ...]) -> tuple[str, ...]:
    """Each source line once: first the user's lines, then lines of shipped schedules, then the library's. A line of a shipped
    schedule that a subclass has called brings the subclass's line with it (`model.layout.Place`)."""
    each = dict.fromkeys(line for place in places for line in (getattr(place, "user", ""), place) if line)
    return tuple(sorted(each, key=lambda line: (of_library(line), not line.startswith(_SCHEDULES))))


def of_library(where: str) -> bool:
    """Whether a line is the library's."""
    return where.startswith(_LIBRARY)


@attrs.frozen
class Finding(Drawn):
    """One thing that is wrong, or noted.

    Args:
        kind: Of the finding.
        message: One sentence of what can happen.
        fix: One sentence of what to change.
        agents: The agents that take part, in words.
        where: Source lines, "file:line"; first the line to change.
        barrier, slot, phase: The mbarrier, the slot and the phase that the finding is about.
        steps: The few steps that show it, in order.
    """

    kind: Kind
    message: str
    fix: str
    agents: tuple[str, ...] = ()
    where: tuple[str, ...] = attrs.field(default=(), converter=_users_first)
    barrier: str | None = None
    slot: str | None = None
    phase: int | None = None
    steps: tuple[Event, ...] = ()

    @property
    def level(self) -> str:
        return "note" if self.kind.note else "error"

    @property
    def words(self) -> tuple[str, ...]:
        """The names of the ring, and of the stage in the slot, that the finding is about, as a source line may have them."""
        ring = next((step.ring for step in self.steps if step.ring), None)
        return tuple(name.partition("[")[0].partition(".")[0] for name in (self.slot, self.barrier, ring) if name)

    def timeline(self) -> dict[str, Any]:
        """The steps as Chrome trace events (see `tmapipe.model.run`). The last event is the finding itself."""
        made = Timeline(self.kind.name)
        self._draw(made, 0, "")
        return made.document()

    def _draw(self, made: Timeline, process: int, title: str) -> int:
        """Adds the steps, from process number *process* on; returns how many processes that took."""
        for step in self.steps:
            made.add(step, process, title)
        if self.steps:
            source = next(iter(self.where), "")
            said = {"kind": self.kind.name, "message": self.message, "fix": self.fix, "source": source}
            made.mark(self.steps[-1], self.kind.value, said, process)
        return max([step.cta + 1 for step in self.steps], default=0)


@attrs.frozen
class Report(Drawn):
    """The verdict on one schedule or program.

    Args:
        name: Of the schedule.
        findings: Errors first, then notes.
        trips: The trip counts for which the verdict holds: "every trip count" or "up to ...".
        events: Transitions executed.
        seconds: How long the check took.
        runs: In words, what was shown and how.
        problem: The problem in which the errors were found, if several were run (`tmapipe.prove.problem.Problem`).
        outputs: In words, which outputs were looked at in a few problems alone, and why; or on which property of a table it
            depends that each element is stored once. Of all other outputs this is shown for every shape that `trips` covers.
            Likewise loads, which start inside of a tensor.
        partly: Outputs of which some elements are stored by nobody.
        unfinished: Whether the check was ended by the limit of time that was given.
    """

    name: str
    findings: tuple[Finding, ...]
    trips: str
    events: int = 0
    seconds: float = 0.0
    runs: tuple[str, ...] = attrs.field(factory=tuple)
    problem: Any = None
    outputs: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()
    unfinished: bool = False

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if not f.kind.note)

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.kind.note)

    @property
    def ok(self) -> bool:
        """Whether no interleaving can hang, race or corrupt."""
        return not self.errors

    def kinds(self) -> set[Kind]:
        """The kinds of the errors."""
        return {finding.kind for finding in self.errors}

    def timeline(self) -> dict[str, Any]:
        """All findings that have steps, as Chrome trace events (see `tmapipe.model.run`). Each has CTAs of its own."""
        made = Timeline(self.name)
        process = 0
        for number, finding in enumerate(self.findings, 1):
            process += finding._draw(made, process, f"{number}. {finding.kind.name}: ")
        return made.document()

    def to_json(self) -> dict[str, Any]:
        """The report in values that `json` writes; docs/command.md has the form."""
        return {
            "schedule": self.name,
            "ok": self.ok,
            "holds_for": self.trips,
            "events": self.events,
            "seconds": self.seconds,
            "outputs": list(self.outputs),
            "partly": list(self.partly),
            "findings": [_finding(finding) for finding in self.findings],
        }

    def to_sarif(self) -> dict[str, Any]:
        """The report as a SARIF 2.1.0 log, in values that `json` writes. Each finding is a result: its rule is the kind of the
        finding, its message ends with the fix, its code flow has the steps. Lines are relative to the working directory."""
        kinds = list(dict.fromkeys(finding.kind for finding in self.findings))
        driver = {
            "name": "tmapipe",
            "version": sys.modules["tmapipe"].__version__,
            "rules": [{"id": kind.name, "shortDescription": {"text": kind.value}} for kind in kinds],
        }
        results = [_result(finding, kinds.index(finding.kind), self.name) for finding in self.findings]
        base = {"SRCROOT": {"uri": Path.cwd().as_uri() + "/"}}
        run = {"tool": {"driver": driver}, "originalUriBaseIds": base, "results": results}
        return {"$schema": _SARIF, "version": "2.1.0", "runs": [run]}

    def __str__(self) -> str:
        """The verdict, then a paragraph a finding, with its source line, the steps that show it, and what to change."""
        head = f"{self.name}: safe for {self.trips}"
        if not self.ok:
            head = f"{self.name}: {len(self.errors)} error{'s' if len(self.errors) > 1 else ''} found"
        lines = [f"{head} ({self.events} events, {self.seconds:.2f} s)", *(f"  {each}" for each in self.outputs)]
        for finding in self.findings:
            lines += _paragraph(finding)
        return "\n".join(lines)


def _paragraph(finding: Finding) -> list[str]:
    head = f"{finding.level}: {finding.kind.value} [{finding.kind.name}]"
    lines = ["", f"{_shown(finding.where[0])}: {head}" if finding.where else head]
    if finding.where:
        lines += excerpt(finding.where[0], finding.words)
    lines.append(f"  {finding.message}.")
    for event in finding.steps:
        location = f"  ({_shown(event.where)})" if event.where else ""
        lines.append(f"    step {event.order}: {event.agent} {event.what}{location}")
    lines.append(f"  Fix: {finding.fix}.")
    return lines


def _shown(location: str) -> str:
    """A source line as compilers print it: relative if it is below the working directory."""
    path, _, line = location.rpartition(":")
    try:
        short = os.path.relpath(path)
    except ValueError:  # on another drive
        return location
    return location if short.startswith(os.pardir) else f"{short}:{line}"


# ---- log -------------------------------------------------------------------------------------------------------------
#
# The findings of one run: one for each kind, pair of source lines, and ring or buffer.


class Step(NamedTuple):
    """An operation of a warp that a finding may show.

    order: its number in the run; phase: the phase that the operation counted in, or saw complete; what: words that say more
    than the operation does; time: the number of the operation among the warp's own.
    """

    order: int
    agent: int
    op: Any
    phase: int | None = None
    what: str = ""
    time: int = 0

    def in_phase(self, phase: int | None) -> Step:
        """The same step, of this phase."""
        return Step(self.order, self.agent, self.op, phase, self.what, self.time)

    @property
    def thread(self) -> int:
        """The thread in whose bulk groups the work is that the operation starts."""
        start = declared(type(self.op)).effect(Start)
        assert start is not None
        return 32 * self.agent + int(getattr(self.op, start.until.thread)).bit_length() - 1


def events_of(layout: Layout, steps: Iterable[Step]) -> tuple[Event, ...]:
    """The steps of a timeline."""
    return tuple(event_of(layout, s.order, s.agent, s.op, s.what, s.phase) for s in steps)


class FindingLog:
    """Collects `Finding`s. order: the number of the present transition."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.order = 0
        self.found: dict[Any, Finding] = {}

    def add(
        self,
        kind: Kind,
        text: str,
        fix: str,
        last: Step,
        *others: Step,
        bar: int | None = None,
        slot: int | None = None,
        phase: int | None = None,
        blame: Step | None = None,
        line: str | None = None,
    ) -> None:
        """Adds a finding, unless one like it has been found.

        Args:
            kind: Of the finding.
            text: One sentence of what can happen.
            fix: One sentence of what to change.
            last: The operation that shows it.
            others: Earlier operations, shown in order.
            bar, slot: Flat indices in the cluster of the mbarrier and the slot that the finding is about.
            phase: Of the mbarrier.
            blame: The step at which to change something, if that is not the last one.
            line: The source line at which to change something, if no step has it.
        """
        layout = self.layout
        places = tuple((layout.role(s.agent), type(s.op), s.op.where) for s in (last, *others[:1]))
        array = None if bar is None else layout.barrier(bar).name
        buffer = None if slot is None else layout.slots[slot % layout.nslots][0].name
        key = kind, places, array, buffer
        if key in self.found:
            return
        steps = {(step.order, step.agent): step for step in (*others, last)}
        shown = events_of(layout, sorted(steps.values(), key=lambda step: step.order))
        self.found[key] = Finding(
            kind=kind,
            message=text,
            fix=fix,
            agents=tuple(dict.fromkeys(who(layout, s.agent) for s in (last, *others))),
            where=lines((line, blame and blame.op.where, *(e.where for e in reversed(shown)))),
            barrier=None if bar is None else bar_name(layout, bar),
            slot=None if slot is None else slot_name(layout, slot),
            phase=phase,
            steps=shown,
        )
