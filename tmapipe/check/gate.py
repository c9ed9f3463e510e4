"""The gate before the compiler: a schedule is checked before it is first compiled, once for its content.

Set ``schedule.checked = False``, or TMAPIPE_CHECK=0 in the environment, to go without.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from tmapipe.check.findings import Report
from tmapipe.check.trips import check_schedule
from tmapipe.dtypes import DType
from tmapipe.errors import UnsafeError
from tmapipe.role import body_of

__all__ = ["require_safe"]

_passed: set[str] = set()


def require_safe(schedule: Any, dtypes: Mapping[str, DType | str] | None = None) -> Report | None:
    """Raises `UnsafeError` with the report if *schedule* can hang, race or corrupt. None if it need not be checked (again)."""
    if not schedule.checked or os.environ.get("TMAPIPE_CHECK", "1") == "0":
        return None
    key = _content(schedule, dtypes)
    if key in _passed:
        return None
    report = check_schedule(schedule, dtypes)
    if not report.ok:
        raise UnsafeError(str(report))
    _passed.add(key)
    return report


def _content(schedule: Any, dtypes: Mapping[str, DType | str] | None) -> str:
    """The plan, the bodies' code and the plain attributes that they may read."""
    bodies = [body_of(schedule, role) for role in schedule.declared.roles.values()]
    code = [(b.__qualname__, b.__code__.co_code, repr(b.__code__.co_consts), b.__code__.co_names) for b in bodies if b]
    plain = {n: v for n, v in vars(schedule).items() if isinstance(v, (int, str, float, bool, tuple))}
    text = repr((schedule.plan(dtypes), type(schedule).__qualname__, code, sorted(plain.items())))
    return hashlib.sha256(text.encode()).hexdigest()
