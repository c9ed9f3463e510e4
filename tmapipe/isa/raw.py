"""Calls of raw functions by the backends: what they are told of their role, and the lines of their errors."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tmapipe.errors import InputError, PipelineError, ScopeError
from tmapipe.plan.model import RoleWarps

if TYPE_CHECKING:
    from tmapipe.isa.interface import Isa

__all__ = ["RawRole", "call_raw"]


class RawRole:
    """What a raw function is told of its role, if it has a parameter ``role``.

    name: of the role; warp: the calling one, counted from 0 in its team; warps: of the team.
    """

    def __init__(self, isa: Isa, role: RoleWarps):
        self.isa, self.name, self.warps = isa, role.name, role.team_warps
        self.warp: Any = (isa.warp - role.first_warp) % role.team_warps

    def extent(self, dim: str) -> Any:
        """Elements along a dimension of the tensors, by its name; a Python number if it is fixed."""
        for part in self.isa.plan.transfers:
            if dim in part.dims:
                return self.isa.extent(part.argument, part.dims.index(dim))
        known = ", ".join(dict.fromkeys(d for part in self.isa.plan.transfers for d in part.dims))
        raise InputError("role.extent", dim, f"names a dimension of a tensor ({known})", "name one of those")


def call_raw(function: Callable[..., None], tensors: list[Any], isa: Isa, role: RoleWarps) -> None:
    """Calls *function* with its tensors, and with its role if it takes that. Raises `ScopeError` for an error of it, with the
    line."""
    try:
        told = {"role": RawRole(isa, role)} if "role" in inspect.signature(function).parameters else {}
        function(*tensors, **told)
    except PipelineError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        code = getattr(inspect.unwrap(function), "__code__", None)
        inside = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
        where = f"{inside[-1].filename}:{inside[-1].lineno}: " if inside else ""
        name = getattr(function, "__name__", type(function).__name__)
        raise ScopeError(f"{where}{name}() of k.raw raised {type(error).__name__}: {error}") from error
