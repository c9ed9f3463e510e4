"""For your own test suites: assert that a schedule cannot hang, race or corrupt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tmapipe.check import Kind, Report
from tmapipe.dtypes import DType

__all__ = ["assert_safe"]


def assert_safe(
    schedule: Any,
    dtypes: Mapping[str, DType | str] | None = None,
    *,
    every_trip_count: bool = True,
    notes: bool = True,
    allow: tuple[Kind, ...] = (),
) -> Report:
    """Runs `schedule.check` and raises AssertionError with its text if it found an error (of a kind not in *allow*), if it
    could not show the result for every trip count (unless *every_trip_count* is False), or if there are notes (unless
    *notes* is True). Returns the report."""
    report = schedule.check(dtypes)
    wrong = [finding for finding in report.findings if finding.kind not in allow and not (finding.kind.note and notes)]
    if wrong:
        raise AssertionError(str(report))
    if every_trip_count and report.trips != "every trip count":
        raise AssertionError(f"shown for {report.trips} only, not for every trip count\n{report}")
    return report
