"""Reports as data: JSON of their own form, and SARIF 2.1.0, which code hosts and editors read (docs/command.md)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmapipe.check.excerpt import marked_in

if TYPE_CHECKING:
    from tmapipe.check.findings import Finding, Report
    from tmapipe.machine.timeline import Event

__all__ = ["as_json", "as_sarif"]

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def as_json(report: Report) -> dict[str, Any]:
    """The whole report, in values that `json` writes."""
    return {
        "schedule": report.name,
        "ok": report.ok,
        "holds_for": report.trips,
        "events": report.events,
        "seconds": report.seconds,
        "outputs": list(report.outputs),
        "partly": list(report.partly),
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(of: Finding) -> dict[str, Any]:
    return {
        "rule": of.kind.name,
        "level": _level(of),
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


def _level(of: Finding) -> str:
    return "note" if of.kind.note else "error"


def as_sarif(report: Report) -> dict[str, Any]:
    """A log with one run, in which each finding is a result. A result has the finding's kind as its rule, a message that ends
    with the fix, the line, and the steps as a code flow."""
    kinds = list(dict.fromkeys(finding.kind for finding in report.findings))
    driver = {
        "name": "tmapipe",
        "version": sys.modules["tmapipe"].__version__,
        "rules": [{"id": kind.name, "shortDescription": {"text": kind.value}} for kind in kinds],
    }
    results = [_result(finding, kinds.index(finding.kind), report.name) for finding in report.findings]
    base = Path.cwd().as_uri() + "/"
    run = {"tool": {"driver": driver}, "originalUriBaseIds": {"SRCROOT": {"uri": base}}, "results": results}
    return {"$schema": _SARIF, "version": "2.1.0", "runs": [run]}


def _result(of: Finding, rule: int, name: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "ruleId": of.kind.name,
        "ruleIndex": rule,
        "level": _level(of),
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
    """A line: relative to the working directory if the file is below it, as those who annotate sources want it. With *words*,
    the part of it that is about them."""
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
