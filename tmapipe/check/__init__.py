"""The checker: decides without a GPU whether a pipeline can hang, race or corrupt."""

from tmapipe.check.findings import Finding, Report
from tmapipe.model.layout import Kind
from tmapipe.model.run import Event

__all__ = ["Event", "Finding", "Kind", "Report"]
