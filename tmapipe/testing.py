"""For test suites of users: assert that a schedule cannot hang, race or corrupt."""

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
        dtypes: Element types by stage name, as of `Schedule.plan`.
        every_trip_count: Whether "safe for up to n" is not enough.
        notes: Whether notes are allowed.

    Raises:
        InputError: *schedule* is none, or an option is neither True nor False.
        NotSafe: The report shows something that is not allowed; its text is the report. An `AssertionError`.
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
    """What `assert_safe` raises.

    Args:
        report: What shows it.
        said: Comes before the report in the message.
    """

    def __init__(self, report: Report, said: str = ""):
        self.report, self.said = report, said
        super().__init__(f"{said}{report}")
