"""Verdicts are kept: a kernel is proved once, in all processes, however many schedules it belongs to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tmapipe import disk
from tmapipe.dtypes import DType
from tmapipe.program.trace import Traced
from tmapipe.prove.trips import require_safe

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["known", "require_safe_once"]

known: dict[str, tuple[str, ...]] = {}  #: of what has been found safe in this process, by identity


def require_safe_once(
    schedule: Schedule, dtypes: Mapping[str, DType], program: Traced | None, identity: str | None
) -> tuple[str, ...]:
    """As `require_safe`, unless this version of the library has found a kernel of this identity safe. Returns the outputs of
    which some shapes store a part.

    Args:
        program: The schedule's, if it could be traced.
        identity: As of `tmapipe.program.identity`; None: it is proved each time.

    Raises:
        UnsafeError: It can hang, race or corrupt. The message is the report.
    """
    if not schedule.checked or os.environ.get("TMAPIPE_CHECK", "1") == "0":
        return ()
    if identity is None:
        return _proved(schedule, dtypes, program)
    if identity not in known:
        name = hashlib.sha256(f"{identity} {disk.library()}".encode()).hexdigest()
        found = _kept(name)
        if found is None:
            found = _proved(schedule, dtypes, program)
            disk.keep("verdicts", name, {"safe": True, "partly": found})
        known[identity] = found
    return known[identity]


def _proved(schedule: Schedule, dtypes: Mapping[str, DType], program: Traced | None) -> tuple[str, ...]:
    report = require_safe(schedule, dtypes, program)
    return () if report is None else report.partly


def _kept(name: str) -> tuple[str, ...] | None:
    facts, _ = disk.recall("verdicts", name) or ({}, b"")
    partly = facts.get("partly")
    sound = facts.get("safe") is True and isinstance(partly, list) and all(isinstance(each, str) for each in partly)
    return tuple(partly) if sound and partly is not None else None
