"""The gate before the compiler: a schedule is checked each time before it is compiled for launching.

Nothing is remembered. A compiled kernel is kept by the schedule that it was compiled for, and two schedules that look alike
may differ in a helper function, a closure or an attribute that their bodies read.

Set ``schedule.checked = False``, or TMAPIPE_CHECK=0 in the environment, to switch it off.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tmapipe.check.findings import Report
from tmapipe.check.trips import check_schedule
from tmapipe.dtypes import DType
from tmapipe.errors import UnsafeError

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["require_safe"]


def require_safe(schedule: Schedule, dtypes: Mapping[str, DType | str] | None = None) -> Report | None:
    """The report on *schedule*, or None if it is not to be checked.

    Raises:
        UnsafeError: It can hang, race or corrupt. The message is the report.
    """
    if not schedule.checked or os.environ.get("TMAPIPE_CHECK", "1") == "0":
        return None
    report = check_schedule(schedule, dtypes)
    if not report.ok:
        raise UnsafeError(str(report))
    return report
