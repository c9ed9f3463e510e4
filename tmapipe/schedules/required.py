"""Parts that a ready-made schedule cannot do without."""

from __future__ import annotations

from tmapipe.errors import InputError
from tmapipe.schedule import Schedule

__all__ = ["check_stages"]


def check_stages(schedule: Schedule, *names: str) -> None:
    """Raises `InputError` unless *schedule* loads or stores something under each of *names*."""
    known = {**schedule.declared.loads, **schedule.declared.stores}
    for name in names:
        if name not in known:
            kind = type(schedule).__name__
            rule = f"is a stage, which every {kind} has"
            raise InputError(f"{kind}.{name}", getattr(schedule, name, None), rule, f"make another {kind}")
