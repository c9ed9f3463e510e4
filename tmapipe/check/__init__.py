"""The checker: decides without a GPU whether a pipeline can hang, race or corrupt."""

from tmapipe.check.findings import Event, Finding, Kind, Report
from tmapipe.check.trips import check_schedule

__all__ = ["Event", "Finding", "Kind", "Report", "check_schedule"]
