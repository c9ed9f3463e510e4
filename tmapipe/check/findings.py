"""What the checker says: a `Report` of `Finding`s, each of one `Kind`, with the steps that show it."""

from __future__ import annotations

import os
from typing import Any

import attrs

from tmapipe.check.excerpt import excerpt
from tmapipe.check.written import as_json, as_sarif
from tmapipe.machine.rules import Kind
from tmapipe.machine.timeline import Drawn, Event, Timeline

__all__ = ["Event", "Finding", "Kind", "Report", "of_library"]


_LIBRARY, _SCHEDULES = f"tmapipe{os.sep}", os.path.join("tmapipe", "schedules")  # as `machine.locate` shows them


def _users_first(places: tuple[str, ...]) -> tuple[str, ...]:
    """Each line once: the user's own, then those of shipped schedules, then the library's. A line of a shipped schedule to
    which a subclass has led also stands for the subclass's (`machine.locate.Place`)."""
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
        agents: Who takes part, in words.
        where: Source lines, "file:line"; the one to change first.
        barrier, slot, phase: What it is about.
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
    def words(self) -> tuple[str, ...]:
        """Names of what it is about, as a source line may have them: of its ring and of what lies in the slot."""
        ring = next((step.ring for step in self.steps if step.ring), None)
        return tuple(name.partition("[")[0].partition(".")[0] for name in (self.slot, self.barrier, ring) if name)

    def timeline(self) -> dict[str, Any]:
        """The steps as Chrome trace events (see `tmapipe.machine.timeline`). The last event is the finding itself."""
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
        trips: The trip counts for which it holds: "every trip count" or "up to ...".
        events: Transitions executed.
        seconds: How long it took.
        runs: In words, what was shown and how.
        problem: In which the errors were found, if several were run (`tmapipe.prove.problem.Problem`).
        outputs: In words, which outputs were looked at in a few problems alone, and why; of all others it is shown, for every
            shape that `trips` covers, that each element is stored once.
        partly: Outputs of which some elements are stored by nobody.
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
        """All findings that have steps, as Chrome trace events (see `tmapipe.machine.timeline`). Each has CTAs of its own."""
        made = Timeline(self.name)
        process = 0
        for number, finding in enumerate(self.findings, 1):
            process += finding._draw(made, process, f"{number}. {finding.kind.name}: ")
        return made.document()

    def to_json(self) -> dict[str, Any]:
        """The report in values that `json` writes; docs/command.md has the form."""
        return as_json(self)

    def to_sarif(self) -> dict[str, Any]:
        """The report as a SARIF 2.1.0 log, in values that `json` writes. Lines are relative to the working directory."""
        return as_sarif(self)

    def __str__(self) -> str:
        return _text(self)


def _text(report: Report) -> str:
    """The verdict, then one paragraph per finding, with its source line, the steps that show it, and what to change."""
    if report.ok:
        head = f"{report.name}: safe for {report.trips}"
    else:
        head = f"{report.name}: {len(report.errors)} error{'s' if len(report.errors) > 1 else ''} found"
    lines = [f"{head} ({report.events} events, {report.seconds:.2f} s)"]
    lines += [f"  {each}" for each in report.outputs]
    for finding in report.findings:
        lines += _paragraph(finding)
    return "\n".join(lines)


def _paragraph(finding: Finding) -> list[str]:
    kind = "note" if finding.kind.note else "error"
    head = f"{kind}: {finding.kind.value} [{finding.kind.name}]"
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
