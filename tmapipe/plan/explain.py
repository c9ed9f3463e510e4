"""`Schedule.explain()`: every derived number of a plan, with the formula that it came from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tmapipe.plan.frozenmap import NOTHING
from tmapipe.plan.model import Plan

__all__ = ["explain"]


Touched = tuple[
    str, str, int, int
]  # a stage, what is done to a slot, accesses that it takes, accesses without conflicts


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
    lines += [f"dimension {dim.name} = {dim.formula}" for dim in plan.relations]
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
        chain = " -> ".join("+".join(phase) for phase in ring.phases)
        slots = "filled once a CTA" if ring.held else f"{ring.stages} slots"
        lines.append(f"ring {ring.name}: {slots}, {chain}")
        for barrier in ring.barriers:
            lines.append(f"  {barrier.name}: {barrier.count} arrivals = {barrier.formula}")
        for role, nbytes in ring.armed.items():
            copied = {load.name for load in plan.loads if load.vector}
            armed = [plan.buffer(name) for name in ring.loads[role] if name not in copied]
            times = {peer.name: f" x {peer.peers} CTAs" for peer in plan.sends if peer.reduce}
            terms = " + ".join(
                f"{buffer.name} {_product(buffer.tile)} x {buffer.dtype.bytes}{times.get(buffer.name, '')}"
                for buffer in armed
            )
            lines.append(f"  expect-tx by {role}: {nbytes} bytes a slot = {terms}")
        for role, lag in ring.lag.items():
            how = " and ".join(ring.readers[role])
            lines.append(f"  {role} reads by {how}: a slot is released {lag} later, when its read has retired")
        if ring.peers > 1:
            lines.append(f"  a release reaches {ring.peers} CTAs: those that write into this one's slots")
    in_rings = {barrier.name for ring in plan.rings for barrier in ring.barriers}
    for barrier in plan.barriers:
        if barrier.name not in in_rings:
            lines.append(f"{barrier.name}: {barrier.stages} barriers of {barrier.count} arrivals = {barrier.formula}")
    for load in plan.loads:
        text = f"load {load.name} [{' '.join(load.dims)}]: tile {_product(load.tile)} {load.buffer.dtype}"
        text += f", swizzle {load.buffer.swizzle} bytes, "
        text += f"{load.vector} bytes a thread by cp.async" if load.vector else f"box {_product(load.box)}"
        if load.strides:
            text += ", every " + " x ".join(map(str, load.strides)) + " element"
        if load.windows is not None:
            text += f", rows of {load.windows}"
        if load.through is not None:
            text += f", through descriptors in {load.through.name}"
        if load.outside == "nan":
            text += ", NaN outside"
        if load.edge_rows:
            text += f", over the edge in boxes of {load.edge_rows} rows"
        if load.axes:
            text += f", 1/{load.peers} each" if load.peers > 1 else ", all by the first CTA"
            text += f", multicast along {', '.join(map(str, load.axes))} with mask {load.pattern:#06x} << origin"
        lines.append(text)
    for peer in plan.sends:
        lines.append(
            f"{peer.reduce or 'copies'} to peers {peer.name}: {_product(peer.buffer.tile)} {peer.buffer.dtype} of "
            f"{'registers' if peer.source is None else peer.source.name}, among "
            f"{peer.peers} CTAs along {', '.join(map(str, peer.axes))}"
        )
    for matmul in plan.matmuls:
        m, n, k = matmul.shape
        sums, operand, slot = matmul.registers
        instructions = " and ".join(f"m64n{part}k{32 // matmul.b.dtype.bytes}" for part in matmul.n_instructions)
        lines.append(
            f"matmul {matmul.name}: {m} x {n} x {k} over {matmul.warpgroups} warpgroups, {matmul.k_instructions} wgmma "
            f"{instructions} a slot and 64 rows, {sums} accumulator registers a thread"
            + (f" and {operand} for a" if operand else "")
            + (f" and {slot} for those of a slot" if slot else "")
            + "".join(f", {x} transposed" for x, way in zip("ab", matmul.transposed, strict=True) if way)
        )
    for store in plan.stores:
        if store.vector:
            how = f"by threads from registers, {store.vector} bytes at once"
            lines.append(
                f"store {store.name} [{' '.join(store.dims)}]: {_product(store.tile)} {store.buffer.dtype} {how}"
            )
            continue
        folded = ", ".join(f"{extent} along {d}" for d, extent in zip(store.dims, store.folded, strict=False))
        lines.append(
            f"store {store.name} [{' '.join(store.dims)}]: {_product(store.tile)} {store.buffer.dtype} from "
            f"{store.buffer.name}, {store.buffer.stages} buffers of {store.buffer.slot_bytes} bytes"
            + (f", {folded} added to one place" if folded else "")
            + (", from transposed accumulators" if store.transposed else "")
        )
    for named in plan.named_barriers:
        ids = f"{named.id}" if named.instances == 1 else f"{named.id}..{named.id + named.instances - 1}"
        lines.append(f"named barrier {named.name}: id {ids}, {named.threads} threads")
    lines.append(f"shared memory: {plan.smem_bytes} bytes")
    count = sum(barrier.stages for barrier in plan.barriers)
    lines.append(f"  barriers: {count} x 8 = {8 * count} at 0")
    for buffer in plan.buffers:
        if buffer.over is not None:
            lines.append(f"  {buffer.name}: {buffer.stages} x {buffer.slot_bytes}, in the slots of {buffer.over}")
            continue
        total = buffer.stages * buffer.pitch
        gap = f" and {buffer.gap} between" if buffer.gap else ""
        lines.append(f"  {buffer.name}: {buffer.stages} x {buffer.slot_bytes}{gap} = {total} at {buffer.offset}")
    for role, accesses in touched.items():
        for stage, what, taken, least in accesses:
            text = f"  {stage} by {role}, {what}: {taken} accesses a warp"
            lines.append(text + (f", {least} without bank conflicts" if taken > least else ", no bank conflicts"))
    return "\n".join(lines)


def _product(extents: tuple[int, ...]) -> str:
    return " x ".join(str(extent) for extent in extents)


def _rank_formula(plan: Plan) -> str:
    terms = []
    stride = 1
    for axis, size in plan.cluster.items():
        terms.append(axis if stride == 1 else f"{stride} {axis}")
        stride *= size
    assert stride == math.prod(plan.cluster.values())
    return " + ".join(terms)
