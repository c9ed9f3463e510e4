"""`Schedule.explain()`: every derived number of a plan with its formula, the registers of fragments, and bank conflicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tmapipe.base import rank_stride
from tmapipe.errors import PipelineError
from tmapipe.isa.fragment import Fragment, SlotRef
from tmapipe.model.elements import indices_of
from tmapipe.plan.model import WARP, Load, Plan, Store
from tmapipe.plan.rings import Buffer, Exchanged, Matmul, Ring
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout, VectorLayout
from tmapipe.program import Traced, trace
from tmapipe.program.expressions import Call, Expr, For, If, Let, Var, While, of_warp, resolve
from tmapipe.program.python_text import parts

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule


def explain(schedule: Schedule, plan: Plan) -> str:
    """The plan as text: warps, registers, shared memory, barriers, transfers, matmuls. Registers of fragments and bank
    conflicts are left out if bodies cannot be traced: a call or a check will say why."""
    try:
        needed = fragments_need(trace(schedule, plan))
    except PipelineError:
        needed = {}
    lines = [f"{plan.name} for {plan.arch}: {plan.threads} threads ({plan.warps} warps) a CTA"]
    if plan.cluster_size > 1:
        shape = " x ".join(f"{axis}={size}" for axis, size in plan.cluster.items())
        lines.append(f"cluster {shape} = {plan.cluster_size} CTAs, rank = " + _rank_formula(plan))
    if schedule.over is not None:  # the tiles are not those of the first store
        lines.append("output tiles: " + " x ".join(f"{x.elements} along {dim}" for dim, x in schedule.axes.items()))
    lines += [f"dimension {dim.text}" for dim in plan.relations]
    lines.append("roles")
    for part in plan.roles:
        registers = plan.registers.get(part.first_warp // 4)
        text = f"  {part.name}: warps {part.first_warp}..{part.first_warp + part.warps - 1}"
        text += f", {part.teams} teams in turn" if part.teams > 1 else ""
        lines.append(text + (f", setmaxnreg {registers}" if registers else ""))
        needs = [f"{sum(m.registers)} for {m.name}" for m in plan.matmuls if m.first_warp == part.first_warp]
        if part.name in needed and needed[part.name].most.registers:
            needs.append("at most {} at once for fragments ({})".format(*needed[part.name].most))
        lines += [f"    registers a thread: {', '.join(needs)}"] if needs else []
    if plan.registers:
        terms = " + ".join(str(count) for count in plan.registers.values())
        launched = f"{plan.launch_registers} at launch x {len(plan.registers)} warpgroups"
        lines.append(f"  registers a thread by warpgroup: {terms} = {sum(plan.registers.values())} <= {launched}")
    for ring in plan.rings:
        lines += _ring(plan, ring)
    in_rings = {barrier.name for ring in plan.rings for barrier in ring.barriers}
    for barrier in plan.barriers:
        if barrier.name not in in_rings:
            lines.append(f"{barrier.name}: {barrier.stages} barriers of {barrier.count} arrivals = {barrier.formula}")
    lines += [*map(_load, plan.loads), *map(_exchange, plan.exchanges)]
    lines += [*map(_matmul, plan.matmuls), *map(_store, plan.stores)]
    for named in plan.named_barriers:
        ids = f"{named.id}" if named.instances == 1 else f"{named.id}..{named.id + named.instances - 1}"
        lines.append(f"named barrier {named.name}: id {ids}, {named.threads} threads")
    lines.append(f"shared memory: {plan.smem_bytes} bytes")
    count = sum(barrier.stages for barrier in plan.barriers)
    lines.append(f"  barriers: {count} x 8 = {8 * count} at 0")
    for buffer in plan.buffers:
        gap = f" and {buffer.gap} between" if buffer.gap else ""
        where = f"{gap} = {buffer.stages * buffer.pitch} at {buffer.offset}"
        where = where if buffer.over is None else f", in the slots of {buffer.over}"
        lines.append(f"  {buffer.name}: {buffer.stages} x {buffer.slot_bytes}{where}")
    for role, accesses in touched_by(plan, needed).items():
        for stage, what, taken, least in accesses:
            text = f"  {stage} by {role}, {what}: {taken} accesses a warp"
            lines.append(text + (f", {least} without bank conflicts" if taken > least else ", no bank conflicts"))
    return "\n".join(lines)


def _ring(plan: Plan, ring: Ring) -> list[str]:
    chain = " -> ".join("+".join(phase) for phase in ring.phases)
    slots = "filled once a CTA" if ring.held else f"{ring.stages} slots"
    lines = [f"ring {ring.name}: {slots}, {chain}"]
    lines += [f"  {barrier.name}: {barrier.count} arrivals = {barrier.formula}" for barrier in ring.barriers]
    copied = {load.name for load in plan.loads if load.vector}
    times = {each.name: f" x {each.peers} CTAs" for each in plan.exchanges if each.reduce}
    for role, nbytes in ring.armed.items():
        armed = [plan.buffer(name) for name in ring.loads[role] if name not in copied]
        terms = [f"{b.name} {_product(b.tile)} x {b.dtype.bytes}{times.get(b.name, '')}" for b in armed]
        lines.append(f"  expect-tx by {role}: {nbytes} bytes a slot = {' + '.join(terms)}")
    for role, lag in ring.lag.items():
        how = " and ".join(ring.readers[role])
        lines.append(f"  {role} reads by {how}: a slot is released {lag} later, when its read has retired")
    if ring.peers > 1:
        but = f", but that of {' and '.join(ring.local)} its own CTA" if ring.local else ""
        lines.append(f"  a release reaches {ring.peers} CTAs: those that write into this one's slots{but}")
    return lines


def _load(load: Load) -> str:
    share = f"1/{load.peers} each" if load.peers > 1 else "all by the first CTA"
    along = ", ".join(map(str, load.axes))
    also = {
        f"every {_product(load.strides)} element": load.strides,
        f"rows of {load.windows}": load.windows,
        f"through descriptors in {load.through and load.through.name}": load.through,
        "NaN outside": load.outside == "nan",
        f"over the edge in boxes of {load.edge_rows} rows": load.edge_rows,
        f"{share}, multicast along {along} with mask {load.pattern:#06x} << origin": load.axes,
    }
    what = f"{load.vector} bytes a thread by cp.async" if load.vector else f"box {_product(load.box)}"
    text = f"load {load.name} [{' '.join(load.dims)}]: tile {_product(load.tile)} {load.buffer.dtype}"
    return ", ".join((text, f"swizzle {load.buffer.swizzle} bytes", what, *(each for each, so in also.items() if so)))


def _exchange(of: Exchanged) -> str:
    source = f" of {'registers' if of.source is None else of.source.name}" if of.sender else ""
    how = f"{of.reduce or 'copies'} to peers" if of.sender else "reads by peers"
    text = f"{how} {of.name}: {_product(of.buffer.tile)} {of.buffer.dtype}{source}"
    return f"{text}, among {of.peers} CTAs along {', '.join(map(str, of.axes))}"


def _matmul(matmul: Matmul) -> str:
    sums, operand, slot = matmul.registers
    instructions = " and ".join(f"m64n{part}k{32 // matmul.b.dtype.bytes}" for part in matmul.n_instructions)
    text = f"matmul {matmul.name}: {_product(matmul.shape)} over {matmul.warpgroups} warpgroups, {matmul.k_instructions} wgmma"
    text += f" {instructions} a slot and 64 rows, {sums} accumulator registers a thread"
    text += f" and {operand} for a" if operand else ""
    text += f" and {slot} for those of a slot" if slot else ""
    return text + "".join(f", {x} transposed" for x, way in zip("ab", matmul.transposed, strict=True) if way)


def _store(store: Store) -> str:
    text = f"store {store.name} [{' '.join(store.dims)}]: {_product(store.tile)} {store.buffer.dtype}"
    if store.vector:
        wide = " (16 where the address allows)" if store.wide else ""
        return f"{text} by threads from registers, {store.vector} bytes at once{wide}"
    folded = ", ".join(f"{extent} along {d}" for d, extent in zip(store.dims, store.folded, strict=False))
    text += f" from {store.buffer.name}, {store.buffer.stages} buffers of {store.buffer.slot_bytes} bytes"
    text += f", {folded} added to one place" if folded else ""
    return text + (", from transposed accumulators" if store.transposed else "")


def _product(extents: tuple[int, ...]) -> str:
    return " x ".join(str(extent) for extent in extents)


def _rank_formula(plan: Plan) -> str:
    strides = {axis: rank_stride(plan.cluster, axis) for axis in plan.cluster}
    return " + ".join(axis if stride == 1 else f"{stride} {axis}" for axis, stride in strides.items())


# ---- registers -------------------------------------------------------------------------------------------------------
#
# What fragments need, by role, in the traced program: registers, and accesses of shared memory.


Nodes = Sequence[Any]


class Most(NamedTuple):
    """The registers a thread that fragments need at most at one time, and the line at which they need as many."""

    registers: int
    line: str


class Needs(NamedTuple):
    """What the fragments of one role need. most: registers; accesses: of the role's first warp to slots."""

    most: Most
    accesses: Accesses


def fragments_held(program: Traced) -> dict[str, Most]:
    """Role -> the registers of its fragments, of roles that have fragments."""
    return {role: needs.most for role, needs in fragments_need(program).items() if needs.most.registers}


def fragments_need(program: Traced) -> dict[str, Needs]:
    """Role -> what its fragments need at most."""
    needs = {}
    for role in program.plan.roles:
        of_warp = _OfWarp(program, role.first_warp)
        accesses: Accesses = {}
        for node in of_warp.calls(program.nodes):
            of = _OF.get(node.method.removeprefix("fragments."))
            if of is not None:
                slot, how, each = of(role.first_warp, *node.args, **node.named)
                if each:
                    accesses.setdefault((slot.buffer.name, f"{how} ({node.where})"), _sum(how, each))
        of_warp.before(program.nodes, set())
        needs[role.name] = Needs(of_warp.most, accesses)
    return needs


class _OfWarp:
    """The program as one warp runs it.

    most: of the places that `before` has seen, the registers of fragments that are live at one place; carrier: by data that
    are only a step of an operation, the fragments that they are made of.
    """

    def __init__(self, program: Traced, warp: int):
        self.made, self.warp = program.isa.fragments.registers, warp
        self.most = Most(0, "")
        self.carrier: dict[Var, set[Var]] = {}

    # ---- structure ------------------------------------------------------------------------------------------------

    def arms(self, node: If) -> Sequence[tuple[Nodes, int]]:
        """The arms that the warp may take, with the place of their values in `node.phis`."""
        holds = of_warp(node.condition, self.warp)
        both = (node.then, 1), (node.other, 2)
        return both if isinstance(holds, Expr) else both[:1] if holds else both[1:]

    def calls(self, nodes: Nodes) -> Iterator[Call]:
        for node in nodes:
            if type(node) is Call:
                yield node
            elif type(node) is If:
                for arm, _ in self.arms(node):
                    yield from self.calls(arm)
            elif type(node) is not Let:
                yield from self.calls(node.body)

    # ---- what is live ---------------------------------------------------------------------------------------------

    def before(self, nodes: Nodes, live: set[Var]) -> set[Var]:
        """The fragments that are live before *nodes*, given the fragments that are live after them."""
        for node in nodes:
            if type(node) is Call:
                self._note_carriers(node)
        for node in reversed(nodes):
            if type(node) is Call:
                self._look(live, node)
                live = live.difference(node.results) | self.used(node.args) | self.used(node.named)
                self._look(live, node)
            elif type(node) is If:
                after = live.difference(phi for phi, _, _ in node.phis)
                chosen = [phi for phi in node.phis if phi[0] in live]
                used = ((arm, self.used([phi[which] for phi in chosen])) for arm, which in self.arms(node))
                live = set().union(*(self.before(arm, after | values) for arm, values in used))
            elif type(node) in (For, While):
                live = self._before_loop(node, live)
        return live

    def _before_loop(self, node: For | While, live: set[Var]) -> set[Var]:
        phis = {phi for phi, _, _, _ in node.carried}
        after = live.difference(last for _, _, _, last in node.carried)
        begins: set[Var] = set()
        while True:
            kept = [each for each in node.carried if each[0] in begins or each[3] in live]
            ends = after | self.used([each[2] for each in kept]) | (begins - phis)
            before = self.before(node.body, ends)
            if before == begins:
                return (begins - phis) | self.used([each[1] for each in kept])
            begins = before

    def _note_carriers(self, node: Call) -> None:
        for result in node.results:
            if result not in self.made:
                self.carrier[result] = self.used(node.args) | self.used(node.named)

    def used(self, x: Any) -> set[Var]:
        """The fragments in an operand."""
        x = resolve(x)
        if isinstance(x, Var):
            return {x} if self.made.get(x) else self.carrier.get(x, set())
        return set() if isinstance(x, Expr) else set().union(*map(self.used, parts(x)))

    def _look(self, live: set[Var], node: Call) -> None:
        registers = sum(self.made[each] for each in live)
        if registers and registers >= self.most.registers:  # the first place of the program, from the end on
            self.most = Most(registers, node.where or "")


def touched_by(plan: Plan, needs: Mapping[str, Needs]) -> dict[str, list[tuple[str, str, int, int]]]:
    """Role -> what its first warp does to slots: (stage, what, accesses of shared memory, those without conflicts)."""
    accesses: dict[str, list[tuple[str, str, int, int]]] = {}
    copied = {load.name: load for load in plan.loads if load.vector}
    for ring in plan.rings:
        for role, loads in ring.loads.items():
            for load in (copied[name] for name in loads if name in copied):
                warps = plan.role(role).warps if ring.held else plan.role(role).team_warps
                accesses.setdefault(role, []).append((load.name, *copies(load, warps)))
    for role, need in needs.items():
        for (stage, what), access in need.accesses.items():
            accesses.setdefault(role, []).append((stage, what, access.taken, access.least))
    return accesses


# ---- banks ------------------------------------------------------------------------------------------------------------
#
# Bank conflicts: how many accesses of shared memory one instruction of a warp takes.


BANKS, WORD, WIDEST = 32, 4, 16  # of shared memory; bytes; bytes of a lane in one instruction
Places = list[int]  # of the lanes' bytes in a slot


class BankAccess(NamedTuple):
    """What a warp does to one slot of a stage: it takes `taken` accesses of shared memory, `least` without conflicts."""

    what: str
    taken: int
    least: int


Accesses = dict[tuple[str, str], BankAccess]  # by stage and by what is done, with the line


def times(places: Places, width: int) -> tuple[int, int]:
    """How many accesses one instruction takes, and how many it would take without conflicts.

    Args:
        places: The first byte of each lane that takes part.
        width: Bytes of a lane, at most 16.
    """
    together = WARP * WORD // max(width, WORD)
    groups = [places[i : i + together] for i in range(0, len(places), together)]
    taken = 0
    for group in groups:
        words = {word for place in group for word in range(place // WORD, (place + width - 1) // WORD + 1)}
        banks = [word % BANKS for word in words]
        taken += max(banks.count(bank) for bank in set(banks))
    return taken, len(groups)


def copies(load: Load, warps: int) -> BankAccess:
    """The copies of one tile by the first of *warps* warps."""
    buffer, row = load.buffer, load.buffer.tile[-1] * load.buffer.dtype.bytes
    vectors = buffer.slot_bytes // load.vector
    starts = range(0, vectors, WARP * warps)
    lanes = [list(range(first, min(first + WARP, vectors))) for first in starts]
    placed = [[buffer.byte_in_slot(*divmod(i * load.vector, row)) for i in some] for some in lanes]
    return _sum(f"copied, {load.vector} bytes a lane", [(places, load.vector) for places in placed])


#: A slot, what is done to it, and of each instruction the lanes' places and bytes.
_Found = tuple[SlotRef, str, list[tuple[Places, int]]]


def _read_part(
    warp: int, slot: SlotRef, layout: ThreadLayout, at: tuple[Any, Any], pitch: int | None = None, each: int = 1
) -> _Found:
    first = tuple(x if isinstance(x, int) else 0 for x in at)
    apart = slot.buffer.tile[1] if pitch is None else pitch
    aligned = isinstance(at[1], int) and not (at[1] % layout.width or apart % layout.width)
    width = layout.width if aligned else 1
    return slot, "read in part", _elements(slot.buffer, layout, "tile", warp, first, width, (pitch, each))


def _read_joined(warp: int, slot: SlotRef, layout: ThreadLayout, at: Any, gaps: Any) -> _Found:
    first, size = (at[1] if isinstance(at[1], int) else 0), slot.buffer.dtype.bytes

    def byte(column: int) -> int:
        place = first + column
        return (place + sum(place // length * further for length, further in gaps)) * size

    return slot, "read without gaps", [([byte(c) for _, c in lanes], size) for lanes in _lanes(layout, warp)]


def _read_rows_as_columns(warp: int, slot: SlotRef, layout: VectorLayout, starts: Any, pitch: int) -> _Found:
    size, (columns, many) = slot.buffer.dtype.bytes, (slot.buffer.tile[-1], len(starts))

    def place(row: int, column: int) -> int:
        place = starts[column % many] + column // many * pitch + row
        return slot.buffer.byte_in_slot(place // columns, place % columns * size)

    each = [([place(r, c) for r, c in lanes], size) for lanes in _lanes(layout, warp)]
    return slot, "read with rows as columns", each


def _write_columns(warp: int, values: Fragment, slot: SlotRef, *, transposed: bool = False) -> _Found:
    buffer, warp = slot.buffer, warp % 4
    columns, size = buffer.tile[-2 if transposed else -1], buffer.dtype.bytes
    piece = AccumulatorLayout(64, columns, 1, 0)
    if size == 2:  # stmatrix: 8 rows of 16 bytes at a time
        starts = [(16 * warp + 8 * half, 8 * i) for half in range(2) for i in range(columns // 8)]
        along = [(n, m) for m, n in starts] if transposed else starts
        matrices = [[buffer.byte_in_slot(row + i, column * size) for i in range(8)] for row, column in along]
        return slot, "written by stmatrix", [(places, WIDEST) for places in matrices]
    if transposed:
        return slot, "written transposed", _transposed(buffer, piece, warp)
    return slot, "written", _elements(buffer, piece, "tile", warp)


_OF: dict[str, Callable[..., _Found]] = {
    "read": lambda warp, slot, layout, along="tile": (slot, "read", _elements(slot.buffer, layout, along, warp)),
    "read_transposed": lambda warp, slot, layout: (slot, "read transposed", _transposed(slot.buffer, layout, warp)),
    "read_part": _read_part,
    "read_joined": _read_joined,
    "read_rows_as_columns": _read_rows_as_columns,
    "write": lambda warp, slot, values, at=None: (
        slot,
        "written",
        _elements(slot.buffer, values.layout, values.along, warp, at or (0, 0)),
    ),
    "write_columns": _write_columns,
}


def _sum(what: str, each: Sequence[tuple[Places, int]]) -> BankAccess:
    counts = [times(places, width) for places, width in each]
    return BankAccess(what, sum(taken for taken, _ in counts), sum(least for _, least in counts))


def _elements(
    buffer: Buffer,
    layout: ThreadLayout,
    along: str,
    warp: int,
    at: tuple[int, ...] = (0, 0),
    width: int | None = None,
    rows: tuple[int | None, int] = (None, 1),
) -> list[tuple[Places, int]]:
    """The lanes' places and bytes, of each instruction that moves a warp's part of a tile, or a number a row or column.

    Args:
        at: Where a part of the tile begins.
        width: Elements that lie together; None: as many as the layout says.
        rows: (pitch, each) as of `Fragments.read_part`.
    """
    size = buffer.dtype.bytes
    lanes = _lanes(layout, warp)
    if along == "tile":
        step = width or layout.width
        wide = min(step * size, WIDEST)
        parts = range(0, step * size, wide)

        def place(row: int, byte: int) -> tuple[int, int]:
            pitch, each = rows
            return (row, byte) if pitch is None else (0, row // each * pitch * size + byte)

        return [
            ([buffer.byte_in_slot(*place(r + at[0], (c + at[1]) * size + part)) for r, c in lanes[i]], wide)
            for i in range(0, layout.values, step)
            for part in parts
        ]
    slot = layout.row_slot if along == "rows" else layout.column_slot
    which, step = (0, 1) if along == "rows" else (1, layout.width)
    first = {slot(i): i for i in reversed(range(layout.values))}
    starts = [first[s] for s in range(0, layout.slots(along), step)]
    return [([place[which] * size for place in lanes[i]], min(step * size, WIDEST)) for i in starts]


def _transposed(buffer: Buffer, layout: AccumulatorLayout, warp: int) -> list[tuple[Places, int]]:
    """The lanes' places and bytes, of each instruction that moves one value of each lane of a transposed tile."""
    size = buffer.dtype.bytes
    return [([buffer.byte_in_slot(c, r * size) for r, c in value], size) for value in _lanes(layout, warp)]


def _lanes(layout: ThreadLayout, warp: int) -> list[list[tuple[int, int]]]:
    """By value of a lane, the (row, column) of each lane."""
    extents: tuple[int, ...]
    order: tuple[int, ...]
    if isinstance(layout, VectorLayout):
        extents, order = (layout.vectors, WARP, layout.width), (0, 2, 1)
    else:
        assert isinstance(layout, AccumulatorLayout)  # of blocks of 16 x 8, a lane has two values each in two rows
        extents, order = (layout.blocks, 2, 8, layout.columns // 8, 4, 2), (0, 3, 1, 5, 2, 4)
    by_value = [each.reshape(extents).transpose(order).reshape(-1, WARP) for each in indices_of(layout, warp)]
    return [list(zip(*lanes, strict=True)) for lanes in zip(*(each.tolist() for each in by_value), strict=True)]
