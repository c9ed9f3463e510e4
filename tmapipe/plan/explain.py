"""`Schedule.explain()`: every derived number of a plan, with the formula that it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tmapipe.base import rank_stride
from tmapipe.errors import NOTHING
from tmapipe.plan.model import Load, Plan, Store
from tmapipe.plan.rings import Exchanged, Matmul, Ring

#: A stage, what is done to a slot, accesses that it takes, accesses without conflicts.
Touched = tuple[str, str, int, int]


def explain(
    plan: Plan,
    over: Mapping[str, int] | None = None,
    held: Mapping[str, tuple[int, str]] = NOTHING,
    touched: Mapping[str, Sequence[Touched]] = NOTHING,
) -> str:
    """The plan as text: warps, registers, shared memory, barriers, transfers, matmuls.

    Args:
        over: Elements of an output tile by dimension of the grid, if that is not the first store's.
        held: Role -> registers a thread that its fragments need at most at one time, and the line.
        touched: Role -> what its first warp does to slots.
    """
    lines = [f"{plan.name} for {plan.arch}: {plan.threads} threads ({plan.warps} warps) a CTA"]
    if plan.cluster_size > 1:
        shape = " x ".join(f"{axis}={size}" for axis, size in plan.cluster.items())
        lines.append(f"cluster {shape} = {plan.cluster_size} CTAs, rank = " + _rank_formula(plan))
    if over:
        lines.append("output tiles: " + " x ".join(f"{elements} along {dim}" for dim, elements in over.items()))
    lines += [f"dimension {dim.text}" for dim in plan.relations]
    lines.append("roles")
    for part in plan.roles:
        registers = plan.registers.get(part.first_warp // 4)
        text = f"  {part.name}: warps {part.first_warp}..{part.first_warp + part.warps - 1}"
        text += f", {part.teams} teams in turn" if part.teams > 1 else ""
        lines.append(text + (f", setmaxnreg {registers}" if registers else ""))
        needs = [f"{sum(m.registers)} for {m.name}" for m in plan.matmuls if m.first_warp == part.first_warp]
        needs += ["at most {} at once for fragments ({})".format(*held[part.name])] if part.name in held else []
        lines += [f"    registers a thread: {', '.join(needs)}"] if needs else []
    if plan.registers:
        terms = " + ".join(str(count) for count in plan.registers.values())
        lines.append(
            f"  registers a thread by warpgroup: {terms} = {sum(plan.registers.values())} <= "
            f"{plan.launch_registers} at launch x {len(plan.registers)} warpgroups"
        )
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
    for role, accesses in touched.items():
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
        lines.append(f"  a release reaches {ring.peers} CTAs: those that write into this one's slots")
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
    return (
        f"matmul {matmul.name}: {_product(matmul.shape)} over {matmul.warpgroups} warpgroups, {matmul.k_instructions} wgmma "
        f"{instructions} a slot and 64 rows, {sums} accumulator registers a thread"
        + (f" and {operand} for a" if operand else "")
        + (f" and {slot} for those of a slot" if slot else "")
        + "".join(f", {x} transposed" for x, way in zip("ab", matmul.transposed, strict=True) if way)
    )


def _store(store: Store) -> str:
    text = f"store {store.name} [{' '.join(store.dims)}]: {_product(store.tile)} {store.buffer.dtype}"
    if store.vector:
        wide = " (16 where the address allows)" if store.wide else ""
        return f"{text} by threads from registers, {store.vector} bytes at once{wide}"
    folded = ", ".join(f"{extent} along {d}" for d, extent in zip(store.dims, store.folded, strict=False))
    return (
        f"{text} from {store.buffer.name}, {store.buffer.stages} buffers of {store.buffer.slot_bytes} bytes"
        + (f", {folded} added to one place" if folded else "")
        + (", from transposed accumulators" if store.transposed else "")
    )


def _product(extents: tuple[int, ...]) -> str:
    return " x ".join(str(extent) for extent in extents)


def _rank_formula(plan: Plan) -> str:
    strides = {axis: rank_stride(plan.cluster, axis) for axis in plan.cluster}
    return " + ".join(axis if stride == 1 else f"{stride} {axis}" for axis, stride in strides.items())
