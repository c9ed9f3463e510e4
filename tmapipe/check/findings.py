"""What the checker says: a `Report` of `Finding`s, each of one `Kind`, with the steps that show it."""

from __future__ import annotations

import os
from typing import Any

import attrs

from tmapipe.machine.rules import Kind
from tmapipe.machine.timeline import Event, Timeline, write

__all__ = ["Event", "Finding", "Kind", "Report"]


@attrs.frozen
class Finding:
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
    where: tuple[str, ...] = ()
    barrier: str | None = None
    slot: str | None = None
    phase: int | None = None
    steps: tuple[Event, ...] = ()

    def timeline(self) -> dict[str, Any]:
        """The steps as Chrome trace events (see `tmapipe.machine.timeline`). The last event is the finding itself."""
        made = Timeline(self.kind.name)
        self._draw(made, 0, "")
        return made.document()

    def write_timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes `timeline` as JSON."""
        write(path, self.timeline())

    def _draw(self, made: Timeline, process: int, title: str) -> int:
        """Adds the steps, from process number *process* on; returns how many processes that took."""
        for step in self.steps:
            made.add(step, process, title)
        if self.steps:
            said = {
                "kind": self.kind.name,
                "message": self.message,
                "fix": self.fix,
                "source": next(iter(self.where), ""),
            }
            made.mark(self.steps[-1], self.kind.value, said, process)
        return max([step.cta + 1 for step in self.steps], default=0)


@attrs.frozen
class Report:
    """The verdict on one schedule or program.

    Args:
        name: Of the schedule.
        findings: Errors first, then notes.
        trips: The trip counts for which it holds: "every trip count" or "up to ...".
        events: Transitions executed.
        seconds: How long it took.
        runs: In words, what was shown and how.
        problem: In which the errors were found, if several were run (`tmapipe.check.search.Problem`).
    """

    name: str
    findings: tuple[Finding, ...]
    trips: str
    events: int = 0
    seconds: float = 0.0
    runs: tuple[str, ...] = attrs.field(factory=tuple)
    problem: Any = None

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

    def write_timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes `timeline` as JSON."""
        write(path, self.timeline())

    def __str__(self) -> str:
        from tmapipe.check.report import as_text

        return as_text(self)
