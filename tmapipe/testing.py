"""Assertions for test suites of users: that a schedule cannot hang, race or corrupt."""

from __future__ import annotations

from collections.abc import Mapping

from tmapipe.base.arithmetic import DType
from tmapipe.check import Report
from tmapipe.errors import check_bool, check_type
from tmapipe.schedule import Schedule

__all__ = ["NotSafe", "assert_safe"]


def assert_safe(
    schedule: Schedule,
    dtypes: Mapping[str, DType | str] | None = None,
    *,
    every_trip_count: bool = True,
    notes: bool = True,
) -> Report:
    """Runs `schedule.check` and returns its report.

    Args:
        schedule: The schedule.
        dtypes: Element types by stage name, as in `Schedule.plan`.
        every_trip_count: Whether the proof must cover every trip count, so that "safe for up to n" is not enough.
        notes: Whether the report may have notes.

    Raises:
        InputError: *schedule* is no schedule, or an option is neither True nor False.
        NotSafe: The report has a finding, or something else that is not allowed. Its text is the report. It is an
            `AssertionError`.
    """
    check_type("assert_safe(schedule)", schedule, Schedule, "make one of the class, e.g. Gemm()")
    check_bool("assert_safe(every_trip_count)", every_trip_count)
    check_bool("assert_safe(notes)", notes)
    report = schedule.check(dtypes)
    wrong = [finding for finding in report.findings if not (finding.kind.note and notes)]
    said = ""
    if every_trip_count and report.trips != "every trip count":
        said = f"shown for {report.trips} only, not for every trip count\n"
    if wrong or said:
        raise NotSafe(report, "" if wrong else said)
    return report


class NotSafe(AssertionError):
    """The error of `assert_safe`.

    Args:
        report: The report that was not good enough.
        said: A text that comes before the report in the message.
    """

    def __init__(self, report: Report, said: str = ""):
        self.report, self.said = report, said
        super().__init__(f"{said}{report}")
