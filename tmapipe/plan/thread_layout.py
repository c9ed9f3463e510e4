"""How the elements of a tile are distributed over threads; and the checks of a plan's matmuls, whose accumulators are
distributed tiles."""

from __future__ import annotations

import math
from typing import Any

import attrs

from tmapipe.barrier import Role
from tmapipe.base.arithmetic import DType, bf16, fp8_e4m3, fp8_e5m2, fp16, fp32, int8, tf32
from tmapipe.errors import InputError, require
from tmapipe.parts import RegisterTile, Wgmma
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.model import WARP, WIDTHS, RoleWarps
from tmapipe.plan.rings import Arch, Distributed, MatmulRegisters, registers_of, widest
from tmapipe.stage import SlotStage

# ---- thread layout ---------------------------------------------------------------------------------------------------
#
# How the elements of a tile are distributed over threads: in short vectors, or as wgmma does with its accumulators.
#
# Both depend on the tile and the threads only, not on the element type. So what is read from a slot of one type can
# be written to a slot of another. A thread's values are numbered from 0 on. Those of one row share a *row slot*: the
# register that holds one number a row. Likewise for columns.


class ThreadLayout:
    """Base of the two ways in which a tile is distributed over threads.

    rows, columns: the extents of the tile; a tile of one extent is a row. values: how many elements a thread has.
    """

    rows: int
    columns: int
    values: int
    row_slots: int
    column_slots: int
    width: int  # values of a thread that lie next to each other along a row
    row_lanes: int  # lanes of a warp that share a row, next to each other; others have the same columns of other rows
    row_warps: int  # likewise warps
    warps: int  # of one team
    first_warp: int
    teams: int

    @property
    def chunks(self) -> int:
        """Into how many chunks a row is cut, side by side. Of each chunk, a thread that has elements of the row has `width`
        elements."""
        return self.column_slots // self.width

    def warp(self, warp: Any) -> Any:
        """The warp (its index in the CTA, of the role) in its team."""
        own = warp - self.first_warp
        return own if self.teams == 1 else own % self.warps

    def row_slot(self, i: int) -> int:
        """The row slot of value *i*."""
        raise NotImplementedError

    def column_slot(self, i: int) -> int:
        """The column slot of value *i*."""
        raise NotImplementedError

    def column_range(self, slot: int) -> tuple[int, int]:
        """The first column that any thread has in a column slot, and the one after the last."""
        return 0, self.columns

    def sharing_warps(self, warp: Any, along: str) -> list[Any]:
        """The warps of the team that have the same rows or columns as the given warp, in order; the given warp is
        among them."""
        if along == "rows":
            first = warp // self.row_warps * self.row_warps
            return [first + i for i in range(self.row_warps)]
        return [warp % self.row_warps + i for i in range(0, self.warps, self.row_warps)]

    def key(self, lines: str) -> object:
        """Layouts of equal keys distribute their "rows" or "columns" alike: one number for each fits the other too."""
        return self

    def check_rows(self) -> None:
        """Raises `InputError` if the values of a row lie in no fixed slots."""

    def slots(self, along: str) -> int:
        """How many values a thread has of a fragment that varies along the "tile", "rows" (also in "parts"), "columns" or
        not: "one"."""
        rows = self.row_slots
        return {"tile": self.values, "rows": rows, "parts": rows, "columns": self.column_slots, "one": 1}[along]


@attrs.frozen
class VectorLayout(ThreadLayout):
    """Short vectors of a tile, row by row, distributed in one of two ways.

    If the warps can share whole rows evenly (`by_rows`), each warp has some rows, one after another, and lane l of the *lanes*
    that share a row has its vectors l, l + lanes, ... Otherwise thread t of T has the vectors t, t + T, ... of the tile.

    Args:
        tile: The tile's extents (elements), the contiguous extent last.
        width: Elements of a vector, along the last extent.
        warps: How many warps share the tile: one team.
        first_warp: The role's first warp.
        teams: How many teams the role has.
        lanes: Of a warp that share a row, next to each other. 0: 32, where rows have a multiple of so many vectors.
    """

    tile: tuple[int, ...]
    width: int
    warps: int
    first_warp: int
    teams: int = 1
    lanes: int = 0

    def __str__(self) -> str:
        return f"a tile {self.tile} in vectors of {self.width}" + (f", {self.lanes} lanes a row" if self.lanes else "")

    @property
    def columns(self) -> int:  # type: ignore[override]
        return self.tile[-1]

    @property
    def rows(self) -> int:  # type: ignore[override]
        return math.prod(self.tile[:-1])

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def vectors(self) -> int:
        """How many vectors a thread has."""
        return self.rows * self.columns // (self.width * self.threads)

    @property
    def values(self) -> int:  # type: ignore[override]
        return self.vectors * self.width

    @property
    def by_rows(self) -> bool:
        """Whether each row lies in one warp, over all of its lanes or over `lanes` of them."""
        return bool(self.lanes) or (self.rows % self.warps == 0 and self.row_vectors % WARP == 0)

    @property
    def sharing(self) -> int:
        """Threads that go through a row's vectors together."""
        return self.lanes or (WARP if self.by_rows else self.threads)

    @property
    def at_once(self) -> int:
        """Rows that a warp has side by side, if it has whole ones."""
        return WARP // self.sharing if self.by_rows else 1

    @property
    def even(self) -> bool:
        """Whether threads share rows evenly: all elements of a row slot are in one row, and all elements of a column slot in
        one column."""
        return self.sharing % self.row_vectors == 0 or self.row_vectors % self.sharing == 0

    @property
    def row_vectors(self) -> int:
        """Vectors of a row, over all threads."""
        return self.columns // self.width

    @property
    def own(self) -> int:
        """How many vectors of a row one thread has."""
        return max(1, self.row_vectors // self.sharing)

    @property
    def row_slots(self) -> int:  # type: ignore[override]
        return self.vectors // self.own

    @property
    def column_slots(self) -> int:  # type: ignore[override]
        return self.own * self.width

    @property
    def row_lanes(self) -> int:  # type: ignore[override]
        return self.lanes or min(self.row_vectors, WARP)

    @property
    def row_warps(self) -> int:  # type: ignore[override]
        return 1 if self.by_rows else min(max(1, self.row_vectors // WARP), self.warps)

    def row_slot(self, i: int) -> int:
        return i // self.width // self.own

    def column_slot(self, i: int) -> int:
        return i % self.width + self.width * (i // self.width % self.own)

    def column_range(self, slot: int) -> tuple[int, int]:
        vector, i = divmod(slot, self.width)
        if not self.even:
            return i, self.columns - self.width + i + 1
        last = min((vector + 1) * self.sharing, self.row_vectors) - 1
        return vector * self.sharing * self.width + i, last * self.width + i + 1

    @property
    def regular(self) -> bool:
        """Whether the values of a row lie in fixed slots."""
        return self.even and WARP % self.row_lanes == self.row_vectors % self.row_lanes == 0

    def check_rows(self) -> None:
        if self.regular:
            return
        rule = f"has rows of {self.row_vectors} vectors of {self.width} elements, which {self.threads} threads share unevenly"
        fix = "choose a last extent that is a power of two, or that many elements a thread"
        raise InputError("tile", self.tile, rule, fix)


@attrs.frozen
class AccumulatorLayout(ThreadLayout):
    """A tile as wgmma distributes its accumulators (PTX ISA, "Register fragments for wgmma.mma_async").

    The warpgroups of a team share the rows in blocks of 64. Lane i of warp w holds two of each 8 columns, from column 2 (i %
    4) on. It holds them in two rows of each block: row 16 w + i / 4, and the row 8 further.

    Args:
        rows, columns: Elements of the tile.
        warpgroups: How many warpgroups a team has.
        first_warp: The role's first warp.
        teams: How many teams the role has.
    """

    rows: int
    columns: int
    warpgroups: int
    first_warp: int
    teams: int = 1
    width = 2
    row_lanes = 4
    row_warps = 1

    def __str__(self) -> str:
        return f"a tile {(self.rows, self.columns)} as accumulators of {self.warpgroups} warpgroups"

    @property
    def warps(self) -> int:  # type: ignore[override]
        return 4 * self.warpgroups

    @classmethod
    def of(cls, held: Distributed) -> AccumulatorLayout:
        """That of a matmul's accumulators, or of a `RegisterTile`."""
        return cls(held.shape[0], held.shape[1], held.warpgroups, held.first_warp, held.teams)

    def piece(self, columns: int) -> AccumulatorLayout:
        """The layout of a piece: one block of rows and *columns* columns."""
        return attrs.evolve(self, rows=64 * self.warpgroups, columns=columns)

    def group(self, warp: Any) -> Any:
        """Which of its team's warpgroups the warp (its index in the CTA, of the role) belongs to."""
        own = warp // 4 - self.first_warp // 4
        return 0 if self.warpgroups == 1 else own if self.teams == 1 else own % self.warpgroups

    @property
    def blocks(self) -> int:
        """How many blocks of 64 rows one warpgroup has."""
        return self.rows // (64 * self.warpgroups)

    @property
    def values(self) -> int:  # type: ignore[override]
        return self.blocks * self.columns // 2

    @property
    def row_slots(self) -> int:  # type: ignore[override]
        return 2 * self.blocks

    @property
    def column_slots(self) -> int:  # type: ignore[override]
        return self.columns // 4

    def row_slot(self, i: int) -> int:
        block, rest = divmod(i, self.columns // 2)
        return 2 * block + rest // 2 % 2

    def column_slot(self, i: int) -> int:
        rest = i % (self.columns // 2)
        return rest % 2 + rest // 4 * 2

    def key(self, lines: str) -> object:
        return self.rows if lines == "rows" else self.columns, self.warpgroups, self.first_warp, self.teams


def vectors_of(stage: str, tile: tuple[int, ...], role: RoleWarps, most: int = 8, lanes: int = 0) -> VectorLayout:
    """How a tile is distributed over the threads of one team of *role*: in vectors of 8, 4, 2 or 1 elements.

    Args:
        stage: Its name.
        tile: Its extents (elements).
        role: Whose threads share it.
        most: Elements of a vector.
        lanes: As of `VectorLayout`.

    Raises:
        InputError: If they cannot share it evenly.
    """
    threads = WARP * role.team_warps
    elements = math.prod(tile)
    for width in (each for each in WIDTHS if each <= most):
        if tile[-1] % width == 0 and elements % (width * threads) == 0:
            layout = VectorLayout(tile, width, role.team_warps, role.first_warp, role.teams, lanes)
            if not lanes or layout.row_vectors % lanes == layout.rows % (layout.at_once * layout.warps) == 0:
                return layout
    rule = f"has {elements} elements, which the {threads} threads of role {role.name} cannot share evenly"
    fix = f"choose a tile of a multiple of {threads} elements, or another number of warps"
    raise InputError(f"{stage}.tile", tile, rule, fix)


def transposed_of(stage: str, tile: tuple[int, ...], role: RoleWarps) -> AccumulatorLayout:
    """How the transpose of a tile is distributed over one team of *role*, as accumulators are. The arguments are those of
    `vectors_of`.

    Raises:
        InputError: The team has no whole warpgroups, or they cannot share the tile evenly.
    """
    groups = role.team_warps // 4
    if role.team_warps % 4 or role.first_warp % 4 or len(tile) != 2 or tile[1] % (64 * groups) or tile[0] % 8:
        rule = f"is read transposed in blocks of 8 rows and {64 * max(groups, 1)} columns by whole warpgroups"
        fix = "give the role warpgroups= instead of warps=, and the tile such extents, e.g. (64, 64)"
        rule = f"{rule}; role {role.name} has {role.warps} warps"
        raise InputError(f"{stage}.read(transposed=True)", tile, rule, fix)
    return AccumulatorLayout(tile[1], tile[0], groups, role.first_warp, role.teams)


def compared(
    layout: ThreadLayout, slot: int, by_column: bool, first: Any, end: Any, surely: tuple[int, int]
) -> tuple[bool, bool]:
    """Whether the index of an element in a column slot or row slot must be compared with *first*, and whether with *end*.
    Elements count from *first* to *end* - 1.

    Args:
        first, end: Plain numbers, or numbers that only the kernel knows. first: None if all elements from 0 on count.
        surely: (the first, the one after the last) of elements that count in any case; there are none if the two are equal.
    """
    least, beyond = layout.column_range(slot) if by_column else (0, layout.rows)
    low, high = surely
    if isinstance(end, int) and (first is None or isinstance(first, int)):  # known here
        low, high = first or 0, end
    some = low < high
    after_first = first is not None and not (some and least >= low) and not (isinstance(first, int) and least >= first)
    before_end = not (some and beyond <= high) and not (isinstance(end, int) and beyond <= end)
    return after_first, before_end


# ---- matmuls ---------------------------------------------------------------------------------------------------------
#
# The matmuls of a plan: which role executes each, and what wgmma takes.


FEW_SUMS = 8  # a thread, as was seen for tiles of every 64 to 256 rows and 8 to 32 columns


def multiplies(a: DType, b: DType) -> bool:
    """Whether wgmma multiplies elements of these types."""
    return (a == b and a in (bf16, fp16, tf32, int8)) or {a, b} <= {fp8_e4m3, fp8_e5m2}


def check_matmuls(
    declared: Declarations, types: dict[str, DType], target: Arch, launch: int, shared: bool = False
) -> dict[str, str]:
    """The role that executes each matmul. Raises `InputError` for shapes, types or roles that wgmma does not take.

    Args:
        launch: Registers a thread at launch.
        shared: Whether these are all that it has, since several CTAs share a multiprocessor.
    """
    roles: dict[str, str] = {}
    for name, mma in declared.matmuls.items():
        require(target.wgmma, f"Wgmma({name})", target.name, "wgmma exists on sm_90a only", "plan for sm_90a")
        role, (m, k), (n, kb) = _role_of(declared, name, mma), *mma.extents
        of_a, of_b = declared.name_of(mma.a), declared.name_of(mma.b)
        b = types[of_b]
        a = b if mma.in_registers else types[of_a]
        if mma.in_registers and b not in (bf16, fp16):
            rule = "takes a from registers, where sums lie as wgmma wants them, of 16-bit types alone"
            raise InputError(f"Wgmma({name})", f"{of_a} x {b}", rule, "use bf16 or fp16, or a through a SharedStage")
        warpgroups = role.warps // 4 // role.teams
        require(k == kb, f"{of_b}.tile", mma.b.tile, f"its k extent differs from {of_a}'s {k}", "use one k")
        rule = "takes two operands of one type, bf16, fp16, tf32 or int8, or two of fp8_e4m3 and fp8_e5m2"
        to_tf32 = 'give both stages dtype="tf32" (a Gemm\'s a and b: Operand(dtype="tf32"))'
        fix = to_tf32 if {a, b} == {fp32} else "convert the tensors"
        require(multiplies(a, b), f"Wgmma({name})", f"{a} x {b}", rule, fix)
        if any(mma.transposed) and a.bytes != 2:
            rule = "takes operands of 8 and 32 bits contiguous along k only (PTX ISA, wgmma.mma_async: imm-trans)"
            raise InputError(f"Wgmma({name})", f"{a} x {b}", rule, "transpose them in memory, or use bf16")
        rule = "is only for sums in fp32; sums of int8 are exact"
        require(not mma.promote or not a.integer, f"Wgmma({name}, promote)", True, rule, "leave it out")
        if m % (64 * warpgroups):
            rule = f"wgmma takes 64 rows, so a multiple of 64 x {warpgroups} warpgroups"
            raise InputError(f"{of_a}.tile[{int(mma.transposed[0])}]", m, rule, f"e.g. {64 * warpgroups}")
        rule = "wgmma takes n a multiple of 8 up to 256"
        require(n % 8 == 0 and n <= 256, f"{of_b}.tile[{int(mma.transposed[1])}]", n, rule, "e.g. 128 or 256")
        rule = "of int8, wgmma takes n a multiple of 16, 8 or 24 (PTX ISA, wgmma shapes)"
        require(not a.integer or n % 16 == 0 or n in (8, 24), f"{of_b}.tile[0]", n, rule, "e.g. 128 or 256")
        rule = "wgmma takes 32 bytes of k an instruction"
        require(k * a.bytes % 32 == 0, f"{of_a}.tile[{1 - int(mma.transposed[0])}]", k, rule, "e.g. 64")
        _check_width(name, mma, m // (64 * warpgroups), launch)
        registers = _registers(mma, role)
        if mma.promote and registers.sums <= FEW_SUMS:
            rule = f"has {registers.sums} sums a thread, and of so few that are promoted ptxas serializes the wgmmas (C7511)"
            raise InputError(f"Wgmma({name}) tile", mma.shape[:2], rule, "use a larger tile, or no promotion")
        _check_accumulators(name, mma, sum(registers), role, launch if shared else None)
        roles[name] = declared.name_of(role)
    _check_together(declared, roles)
    return roles


def _role_of(declared: Declarations, name: str, mma: Wgmma) -> Role:
    """The role that executes a matmul. Raises `InputError` unless it is clear which."""
    candidates = _after(mma.b)
    if isinstance(mma.a, Wgmma):
        other = _role_of(declared, declared.name_of(mma.a), mma.a)
        candidates = [role for role in candidates if role is other]
    elif isinstance(mma.a, RegisterTile):
        candidates = [role for role in candidates if role is mma.a.role]
    else:
        candidates = [role for role in candidates if role in _after(mma.a)]
    if len(candidates) > 1:
        candidates = [role for role in candidates if all(role in stage.ring.phases[-1] for stage in mma.stages)]
    if len(candidates) != 1:
        rings = dict.fromkeys(declared.name_of(stage.ring) for stage in mma.stages)
        roles = [
            declared.name_of(role) for ring in rings for phase in declared.rings[ring].phases[1:] for role in phase
        ]
        rule = f"needs one role of warpgroups that reads the slots of {' and '.join(rings)}, after whoever fills them"
        raise InputError(f"Wgmma({name})", list(dict.fromkeys(roles)), rule, "Role(warpgroups=2)")
    return candidates[0]


def _after(stage: SlotStage) -> list[Role]:
    """The roles of warpgroups that use a stage's slots in phases after the phase that fills them."""
    phases = stage.ring.phases
    filled = next(i for i, phase in enumerate(phases) if stage.filler in phase)
    return [role for phase in phases[filled + 1 :] for role in phase if role.by_warpgroup]


def _check_width(name: str, mma: Wgmma, blocks: int, launch: int) -> None:
    """Raises `InputError` for a tile so wide that it would take two instructions, where it cannot be cut."""
    n, most = mma.shape[1], widest(launch)
    if n <= most:
        return
    if most < 8:  # the narrowest instruction
        rule = f"needs more than the {launch} registers a thread that CTAs that share an SM leave"
        raise InputError(f"Wgmma({name}) tile", mma.shape[:2], rule, "use GridTiles of fewer CTAs")
    rule = f"n is at most {most} with {launch} registers a thread at launch: wider tiles take two instructions, "
    fix = "use fewer warpgroups in all, or a narrower tile"
    if mma.transposed[1]:
        rule = rule + "between which rows of b, contiguous along n, are not cut"
        raise InputError(f"Wgmma({name}) tile", mma.shape[:2], rule, fix)
    if blocks > 1 or n > 2 * most:
        raise InputError(f"Wgmma({name}) tile", mma.shape[:2], rule + "of one block of 64 rows a warpgroup", fix)


def _check_together(declared: Declarations, roles: dict[str, str]) -> None:
    """Raises `InputError` if the accumulators of one role, such as a gate and the values that it gates, leave a thread too few
    registers for an epilogue that combines them. *roles*: the role of each matmul."""
    for role_name in dict.fromkeys(roles.values()):
        names = [name for name in roles if roles[name] == role_name]
        role = declared.roles[role_name]
        matmuls = [declared.matmuls[name] for name in names]
        room = {4: 192, 8: 184}.get(role.warps, 112)  # more spills, as the compiler was seen to report
        if any(mma.in_registers for mma in matmuls):  # whose sums become a, where both are counted
            room = 200 if role.warps <= 8 else 132
        needs = [_registers(mma, role) for mma in matmuls]
        slots = max(need.slot for need in needs)
        if slots and all(mma.shape[0] <= 16 * role.warps // role.teams for mma in matmuls):
            room += 8  # of the sums of a slot, the epilogue has the registers
        needed = sum(need.sums + need.a for need in needs) + slots
        several, shapes = " and ".join(f"Wgmma({name})" for name in names), [mma.shape[:2] for mma in matmuls]
        rule = f"need {needed} accumulator registers a thread together; {room} leave room for work with several"
        require(len(names) <= 1 or needed <= room, several, shapes, rule, "use a smaller tile or more warpgroups")


def _registers(mma: Wgmma, role: Role) -> MatmulRegisters:
    sets = mma.in_flight + 1 if mma.in_registers else 0
    return registers_of(mma.shape, role.warps // 4 // role.teams, mma.promote, sets)


def _check_accumulators(name: str, mma: Wgmma, needed: int, role: Role, launch: int | None) -> None:
    """Raises `InputError` if the accumulators leave a thread too few registers. It has 232 (with one or two warpgroups) or 160
    (with three) and needs some 32 besides the accumulators. With fewer registers, the compiler makes wgmmas wait for each
    other. *launch*: registers of a thread at launch, if the roles do not set them."""
    room = _room(role) if launch is None else min(_room(role), launch - LEFT)
    if needed > room and launch is not None:
        rule = f"needs {needed} accumulator registers a thread and {LEFT} more; CTAs that share an SM leave {launch}"
        raise InputError(f"Wgmma({name}) tile", mma.shape[:2], rule, "use a smaller tile, or GridTiles of fewer CTAs")
    twice = f", twice {needed // 2} since sums are promoted" if mma.promote else ""
    rule = f"needs {needed} accumulator registers a thread{twice}; "
    rule += f"{room} leave room to work with {role.warps // 4} warpgroups"
    require(needed <= room, f"Wgmma({name}) tile", mma.shape[:2], rule, "use a smaller tile or more warpgroups")


LEFT = 24  # registers of a thread beside accumulators, where several CTAs share a multiprocessor


def _room(role: Role) -> int:
    """Registers that the accumulators of one matmul may take."""
    return 200 if role.warps <= 8 else 128
