"""Where a kernel makes operations, and a warp's program in which one such place does something else.

A *site* is one place in the source as one role reaches it: the operation's class, the part of the plan that it names (an array
of barriers or of slots, a load, a matmul), and the lines of the library and of the schedule on the way there. A `Change` says
what happens instead, and when: at every execution, or at the first or last one of each warp.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import attrs

import tmapipe
from tmapipe.isa import Kind, declared
from tmapipe.kernel import kernel_main
from tmapipe.model import MachineIsa
from tmapipe.model.layout import Layout

__all__ = ["Change", "Program", "Site", "array_of", "is_second", "program_of"]

_LIBRARY = os.path.dirname(os.path.abspath(tmapipe.__file__)) + os.sep
_LOWERING = (os.path.join(_LIBRARY, "isa") + os.sep, os.path.join(_LIBRARY, "model") + os.sep)
_OUTERMOST = "program_of"


@attrs.frozen
class Site:
    """One place in the source, as one role reaches it.

    role: of the warps that come here ("set-up" before any; of a branch that a warpgroup's roles share, that of its first
    warp); op: class of the operation; part: name of the part of the plan that its first such operand stands for, if it has
    one; path: lines from the instruction's call outwards, as "file:line"; tail: whether it belongs to what a role does after
    its last tile.
    """

    role: str
    op: type
    part: str
    path: tuple[str, ...]
    tail: bool

    def __str__(self) -> str:
        return f"{self.op.__name__}({self.part}) in {self.role} at {self.path[0] if self.path else '?'}"


@attrs.frozen
class Change:
    """What one site does instead.

    how: one of `mutant_changes.CHANGES`; operand: which operand is changed, if any ("stages": all that name a barrier or a
    slot); by: its number, if it takes one; when: "all", "first" or "last" execution by each warp; warps: "all", "last": the
    last warp of the role (in the set-up: of any role) in the first CTA, or "first": its first warp in the last CTA.
    """

    site: Site
    how: str
    operand: str = ""
    by: int = 0
    when: str = "all"
    warps: str = "all"

    def __str__(self) -> str:
        how = f"{self.how} ({self.operand})" if self.operand else self.how
        by = f" by {self.by:+d}" if self.by else ""
        when = "" if self.when == "all" else f", {self.when} time"
        return f"{how}{by} {self.site}{when}{'' if self.warps == 'all' else f', {self.warps} warp'}"


def is_second(op: type) -> bool:
    """Whether an operation is the second half of the instruction before it: it blocks, but has no instruction of its own."""
    return declared(op).blocks and not declared(op).ptx


@attrs.define
class Program:
    """One warp's program. instructions: the operations of each, one or two; sites: where each site's are, as (number of the
    instruction, number of the operation in it)."""

    instructions: list[tuple[Any, ...]] = attrs.Factory(list)
    sites: dict[Site, list[tuple[int, int]]] = attrs.Factory(dict)

    def add(self, site: Site, op: Any) -> None:
        if is_second(type(op)):
            self.instructions[-1] += (op,)
        else:
            self.instructions.append((op,))
        here = len(self.instructions) - 1, len(self.instructions[-1]) - 1
        self.sites.setdefault(site, []).append(here)

    def operations(self, site: Site) -> list[Any]:
        """Those of one site."""
        return [self.instructions[i][j] for i, j in self.sites.get(site, ())]


def program_of(isa: MachineIsa, schedule: Any) -> Program:
    """What the calling warp does in the kernel of *schedule*, without local operations: they only change the result."""
    program = Program()

    def emit(op: Any, *data: Any, when: bool = True) -> None:
        if not declared(type(op)).local:
            program.add(_site(isa, op), op)

    def load_entry(table: str, i: int, without_data: int) -> int:
        return MachineIsa.load_entry(isa, table, i, without_data or i * (i + 1) // 2)  # groups of 1, 2, 3, ... rows

    isa.emit, isa.load_entry = emit, load_entry  # type: ignore[method-assign]
    kernel_main(isa, schedule)
    return program


def _site(isa: MachineIsa, op: Any) -> Site:
    path: list[str] = []
    in_branch = in_role = tail = False
    frame: Any = sys._getframe(2)
    while frame.f_code.co_name != _OUTERMOST:
        code = frame.f_code
        in_branch = in_branch or code.co_name == "_run_branch"
        in_role = in_role or code.co_name == "_run_role"
        tail = tail or code.co_name == "finish"
        instruction = not path and code.co_filename.startswith(_LOWERING)
        if not instruction and (code.co_filename.startswith(_LIBRARY) or not path):
            path.append(f"{os.path.basename(code.co_filename)}:{frame.f_lineno}")
        frame = frame.f_back
    warp = isa.warp if in_role else isa.warp // 4 * 4
    role = isa.layout.roles[warp] if in_branch else "set-up"
    return Site(role, type(op), _part(isa.layout, op), tuple(path), tail)


def _part(layout: Layout, op: Any) -> str:
    """Name of the part of the plan that the first such operand stands for."""
    for operand, kind in declared(type(op)).operands.items():
        value: Any = getattr(op, operand)
        if kind is Kind.NAME:
            return str(value)
        if kind in (Kind.BAR, Kind.SLOT):
            return str(array_of(layout, kind, value)[0].name)
        if kind is Kind.BARRIER_ID:
            named = layout.plan.named_barriers
            return next((b.name for b in named if b.id <= value < b.id + b.instances), "")
    return ""


def array_of(layout: Layout, kind: Kind, number: int) -> tuple[Any, int]:
    """The array of barriers or slots that a flat number belongs to, and the stage in it."""
    parts: Sequence[tuple[Any, int]] = layout.bars if kind is Kind.BAR else layout.slots
    return parts[number]
