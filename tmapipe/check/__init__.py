"""The checker: decides without a GPU whether a pipeline can hang, race or corrupt."""

from tmapipe.check.findings import Event, Finding, Kind, Report

__all__ = ["Event", "Finding", "Kind", "Report"]
