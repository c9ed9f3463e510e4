"""A report as text: one paragraph per finding, with its source line, the steps that show it, and what to change."""

from __future__ import annotations

import os

from tmapipe.check.findings import Finding, Report

__all__ = ["as_text"]


def as_text(report: Report) -> str:
    """The verdict, then each finding, errors first."""
    if report.ok:
        head = f"{report.name}: safe for {report.trips}"
    else:
        head = f"{report.name}: {len(report.errors)} error{'s' if len(report.errors) > 1 else ''} found"
    lines = [f"{head} ({report.events} events, {report.seconds:.2f} s)"]
    for finding in report.findings:
        lines += _paragraph(finding)
    return "\n".join(lines)


def _paragraph(finding: Finding) -> list[str]:
    kind = "note" if finding.kind.note else "error"
    head = f"{kind}: {finding.kind.value} [{finding.kind.name}]"
    lines = ["", f"{_shown(finding.where[0])}: {head}" if finding.where else head, f"  {finding.message}."]
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
