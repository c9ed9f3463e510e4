"""What the machine shows that an operation does, to compare with what its declaration says.

Each operation is executed once in a state in which it can do all that it does, and the state before is compared with the state
after. What only clocks follow (fences, scopes, lanes) leaves no trace in the machine: for that there is the exhaustive oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.machine.parts import Parts
from tmapipe.base.arithmetic import fp16
from tmapipe.errors import HazardError
from tmapipe.isa import (
    Access,
    Accumulators,
    Arm,
    Arrive,
    ArriveAt,
    AwaitGrid,
    AwaitGroup,
    EndGroup,
    Global,
    Group,
    Init,
    Return,
    SetRegisters,
    Start,
    Tile,
    Use,
    Wait,
    WaitAt,
    declared,
    ops,
)
from tmapipe.model import Layout, State
from tmapipe.model.barriers import REGISTERS

__all__ = ["EXAMPLES", "observed", "promised"]

#: One of each operation, with operands that no two effects share. CTA 0 of two, warp 0 of a warpgroup.
EXAMPLES: tuple[Any, ...] = (
    ops.MbarInit(3, 5),
    ops.FenceMbarInit(),
    ops.MbarWait(1, 0),
    ops.MbarArrive(1, 0b111),
    ops.MbarArriveCluster(1, 0b11, "relaxed"),
    ops.MbarArriveTx(1, 48),
    ops.MbarExpectTx(1, 48),
    ops.BarArrive(2, 128, True),
    ops.BarWait(2),
    ops.WarpSync(),
    ops.ClusterArrive("relaxed"),
    ops.ClusterWait(),
    ops.FenceProxyAsync(),
    ops.FenceProxyAsyncGlobal(),
    ops.PrefetchDescriptor("s0"),
    ops.TmaLoad("s0", 0, 1, 1024, 0b11, 1, 2, (0, 0), offsets=(1, 2)),
    ops.TmaGather("s0", 0, 1, 512, 3, 4, (5, 9, 2, 0), (0, 0)),
    ops.TmaPrefetch("s0", 1, (0, 0)),
    ops.BulkLoad("s0", 0, 1, 2048, (0, 0)),
    ops.BulkPrefetch("s0", (0, 0)),
    ops.PeerCopy(0, 1, 1024, 0b10, 1, 0, 1, 2),
    ops.PeerReduce("s0", 0, 1, 512, 0b10, 1, 1, 2),
    ops.DescriptorWrite("s0", 1, (3, 5)),
    ops.DescriptorRelease(1),
    ops.DescriptorAcquire(1),
    ops.TmaLoadThrough("s0", 0, 1, 1024, 0b11, 1, 1, 2, (0, 0)),
    ops.CpAsync("s0", 0, 1, 512, 1, 2, (0, 0), 0b11111),
    ops.TmaStore("y", 0, (0, 0)),
    ops.TmaScatter("y", 0, 1, (5, 9, 2, 0), (0, 0)),
    ops.BulkStore("y", 0, (0, 0)),
    ops.BulkCommit(),
    ops.BulkWait(0, True),
    ops.StAsync(0, 1, 1024, 0b11, (7,), 1, 2),
    ops.RedAsync("s0", 0, 1, 1024, 0b11, (7,), 1, 2),
    ops.AccumulatorWrite("mma"),
    ops.AccumulatorRead("mma"),
    ops.WgmmaFence(),
    ops.Wgmma("mma", 0, 1),
    ops.WgmmaFromRegisters("mma", 1, "mma a1"),
    ops.WgmmaCommit(),
    ops.WgmmaWait(0),
    ops.SlotRead(0, 1, 4, "rows"),
    ops.SlotWrite(0, 1, 4, "rows"),
    ops.PeerRead(1, 0b10),
    ops.SetMaxNreg(72, True),
    ops.Exit(),
    ops.GridWait(),
    ops.GridLaunch(),
    ops.CounterAdd(2, 7),
    ops.CounterStore(2, 0),
    ops.TileStore("y", (0, 0)),
    ops.TableLoad("ends", (3, 4)),
    ops.Ballot(5),
    ops.Shuffle(),
    ops.ReadSmid(),
)
#: What threads do to global memory, by hand: the state of a cluster does not have it.
GLOBAL = {
    ops.CounterAdd: ("atomic", "", ()),
    ops.CounterStore: ("write", "", ()),
    ops.TileStore: ("write", "y", (0, 0)),
    ops.TableLoad: ("read", "", ()),
}
#: The tiles of tensors that the examples move, by hand: load or store, start, rows, whether it must start inside.
TILES: dict[type, tuple[Any, ...]] = {
    **dict.fromkeys((ops.TmaLoad, ops.BulkLoad, ops.CpAsync), ("s0", (0, 0), (), True)),
    **dict.fromkeys((ops.TmaPrefetch, ops.BulkPrefetch, ops.TmaLoadThrough), ("s0", (0, 0), (), False)),
    **dict.fromkeys((ops.TmaStore, ops.BulkStore), ("y", (0, 0), (), True)),
    ops.TmaGather: ("s0", (0, 0), (5, 9, 2, 0), False),
    ops.TmaScatter: ("y", (0, 0), (5, 9, 2, 0), False),
    ops.DescriptorWrite: ("s0", (3, 5), (), False),
}
LOAD, STORE, WGMMA = ops.TmaLoad("s0", 0, 1, 2048), ops.TmaStore("y", 0), ops.Wgmma("mma", 0, 1)


def layout() -> Layout:
    parts = Parts(cluster=2)
    parts.role("work", 4)
    parts.barrier("b", 40, 4)
    buffers = [parts.buffer(f"s{i}", (64, 16), dtype=fp16) for i in range(2)]
    for buffer in buffers:
        parts.load(buffer, vector=16)
    parts.store("y", buffers[0])
    parts.matmul(buffers[0], buffers[1], 1, 0)
    return Layout(parts.plan())


def start() -> State:
    """Barriers 0 to 2 of both CTAs are initialized; nothing is in flight."""
    state = State(layout(), split_loads=True)
    for agent in (0, 4):
        for bar in range(3):
            state.apply(agent, ops.MbarInit(bar, 40))
    return state


# ---- what is seen -----------------------------------------------------------------------------------------------------


def observed(op: Any) -> set[tuple[Any, ...]]:
    """What *op* does to the machine, as facts like those of `promised`."""
    before = _ready_for(op)
    if isinstance(op, ops.BulkCommit):
        before.apply(0, STORE)
    after = before.copy()
    found = set(_blocking(op))
    if not after.enabled(0, op):
        raise AssertionError(f"{op} is not enabled")
    after.apply(0, op)
    found |= {("global memory", *GLOBAL[type(op)])} if type(op) in GLOBAL else set()
    found |= {("moves", *TILES[type(op)])} if type(op) in TILES else set()
    if after.loads and not _refused(op, op):
        found |= {("goes with others like it", load[0]) for load in after.loads.values()}
    return found | set(_counted(before, after)) | set(_started(before, after)) | set(_rest(op, before, after))


def _ready_for(op: Any) -> State:
    state = start()
    if isinstance(op, ops.GridWait):
        state.ended[0] = False
    if isinstance(op, ops.BarWait):
        for warp in range(4):
            state.apply(warp, ops.BarArrive(2, 128, True))
    if isinstance(op, ops.ClusterWait):
        for warp in range(8):
            state.apply(warp, ops.ClusterArrive())
    if isinstance(op, ops.WgmmaFence):
        state.apply(0, ops.AccumulatorWrite("mma"))
    if isinstance(op, ops.SetMaxNreg):
        state.free_registers[0] = 10_000
    if isinstance(op, ops.MbarWait):
        state.phase[1] = 1
    return state


def _blocking(op: Any) -> Iterator[tuple[Any, ...]]:
    """Whether it blocks, and for what: seen in a state in which it cannot go on."""
    state = start()
    if isinstance(op, ops.BarWait):
        state.apply(0, ops.BarArrive(2, 128, True))
        yield from () if state.enabled(0, op) else [("waits at", op.id)]
    elif isinstance(op, ops.ClusterWait):
        state.apply(0, ops.ClusterArrive())
        yield from () if state.enabled(0, op) else [("waits at", None)]
    elif isinstance(op, ops.SetMaxNreg):
        yield "sets registers", op.registers, not state.enabled(0, op)
    elif isinstance(op, ops.BulkWait):
        state.apply(0, STORE)
        state.apply(0, ops.BulkCommit())
        blocked, thread = not state.enabled(0, op), state.enabled(0, op._replace(lanes=0b10)) and op.lanes
        state.apply(next(iter(state.stores)), ops.StoreRead())
        yield from [("awaits", Group.BULK, thread, op.pending, state.enabled(0, op))] if blocked else ()
    elif isinstance(op, ops.WgmmaWait):
        state.apply(0, WGMMA)
        state.apply(0, ops.WgmmaCommit())
        yield from () if state.enabled(0, op) else [("awaits", Group.WGMMA, None, op.pending, False)]
    elif not state.enabled(0, op):
        bar = next(i for i in range(state.layout.nbars) if _completes(state, op, i))
        yield "waits for", bar, state.phase[bar] & 1


def _completes(state: State, op: Any, bar: int) -> bool:
    """Whether it can go on once this mbarrier has completed a phase."""
    after = state.copy()
    after.phase[bar] += 1
    return after.enabled(0, op)


def _counted(before: State, after: State) -> Iterator[tuple[Any, ...]]:
    for bar in range(len(before.count)):
        if before.count[bar] != after.count[bar]:
            yield "initializes", bar, after.count[bar]
        elif before.pending[bar] != after.pending[bar]:
            yield "arrives", bar, before.pending[bar] - after.pending[bar]
        if before.tx[bar] != after.tx[bar]:
            yield "arms", bar, after.tx[bar] - before.tx[bar]
    for id in range(16):
        if before.bar_arrived[id] != after.bar_arrived[id]:
            waits = after.bar_seen[0] is not None
            yield "arrives at", id, after.bar_threads[id], waits
    if before.cluster[0] != after.cluster[0]:
        yield "arrives at", None, None, False


def _started(before: State, after: State) -> Iterator[tuple[Any, ...]]:
    for flight, (slot, share, shares, bar, nbytes, arrivals, source, _) in after.loads.items():
        if flight not in before.loads:
            yield "starts to write", slot, share if shares > 1 else 0, shares, bar, nbytes, arrivals
            yield from [("starts to read", source, 0, 1, bar, nbytes, arrivals)] if source >= 0 else ()
    for flight, (slot, _) in after.stores.items():
        if flight not in before.stores:
            yield "starts to read", slot, Group.BULK
    for queue, older in zip(after.queues, before.queues, strict=True):
        for _, a, b, _ in queue[len(older) :]:
            yield from [("starts to read", a, Group.WGMMA)] if a != REGISTERS else ()
            yield "starts to read", b, Group.WGMMA
    for name, serial in after.latest[0]:
        if serial > before.issued[0]:
            yield "accumulators", Use.UPDATE, name
    for thread in after.committed.keys() - before.committed.keys():
        yield "ends a group", Group.BULK, 1 << thread
    if after.bounds != before.bounds:
        yield "ends a group", Group.WGMMA, None


def _rest(op: Any, before: State, after: State) -> Iterator[tuple[Any, ...]]:
    if before.unfenced != after.unfenced:
        yield "accumulators", Use.WRITE if after.unfenced[0] else Use.FENCE
    if after.returned[0]:
        yield ("returns",)
    if before.ended != after.ended:
        yield ("awaits the kernels before",)
    if isinstance(op, ops.PeerRead):
        for slot in range(2):
            for cta in range(2):
                if _refused(op, LOAD._replace(slot=slot, mask=1 << cta)):
                    yield "accesses", cta * before.layout.nslots + slot, False
    threads = (ops.SlotRead, ops.SlotWrite, ops.DescriptorAcquire, ops.DescriptorWrite)
    if not isinstance(op, (*threads, ops.AccumulatorRead, ops.AccumulatorWrite)):
        return
    for slot in range(2):
        if _refused(op, LOAD._replace(slot=slot)):
            yield "accesses", slot, _refused(op, STORE if slot == 0 else WGMMA)
    if _refused(op, WGMMA) and not before.unfenced[0] and not after.unfenced[0] and "matmul" in op._fields:
        yield "accumulators", Use.READ


def _refused(op: Any, other: Any) -> bool:
    """Whether it is an error while *other* is in flight."""
    state = start()
    state.apply(0, other)
    try:
        state.apply(0, op)
    except HazardError:
        return True
    return False


# ---- what is said -----------------------------------------------------------------------------------------------------


def promised(op: Any) -> set[tuple[Any, ...]]:
    """What the declaration of *op* says that it does to the machine."""
    return {fact for effect in declared(type(op)).effects for fact in _facts(effect, op)}


def _facts(effect: Any, op: Any) -> Iterator[tuple[Any, ...]]:
    nbars, nslots = layout().nbars, layout().nslots

    def of(name: str) -> Any:
        return getattr(op, name)

    if isinstance(effect, Init):
        yield "initializes", of(effect.bar), of(effect.count)
    elif isinstance(effect, Wait):
        yield "waits for", of(effect.bar), of(effect.parity)
    elif isinstance(effect, Arrive):
        ctas = [c for c in range(2) if of(effect.mask) >> c & 1] if effect.mask else [0]
        for cta in ctas:
            yield "arrives", cta * nbars + of(effect.bar), of(effect.lanes).bit_count() if effect.lanes else 1
    elif isinstance(effect, Arm):
        yield "arms", of(effect.bar), of(effect.nbytes)
    elif isinstance(effect, ArriveAt):
        threads = of(effect.threads) if effect.threads else None
        barrier = of(effect.barrier) if effect.barrier else None
        yield "arrives at", barrier, threads, bool(effect.sync and of(effect.sync))
    elif isinstance(effect, WaitAt):
        yield "waits at", of(effect.barrier) if effect.barrier else None
    elif isinstance(effect, SetRegisters):
        yield "sets registers", of(effect.registers), bool(effect.increase and of(effect.increase))
    elif isinstance(effect, Access):
        far = (of(effect.mask).bit_length() - 1) * nslots if effect.mask else 0
        yield "accesses", far + of(effect.slot), effect.write
    elif isinstance(effect, Start) and effect.until.group is not None:
        yield from [("goes with others like it", of(effect.slot))] if effect.reduces else []
        yield "starts to write" if effect.write else "starts to read", of(effect.slot), effect.until.group
    elif isinstance(effect, Start):
        share, shares = (of(effect.share), of(effect.shares)) if effect.shares else (0, 1)
        for cta in [c for c in range(2) if of(effect.mask) >> c & 1] if effect.mask else [0]:
            verb = "starts to write" if effect.write else "starts to read"
            bar = cta * nbars + of(effect.until.bar)
            until = effect.until
            counted = (of(until.nbytes), 0) if until.nbytes else (0, of(until.lanes).bit_count())
            slot = (cta if effect.write else 0) * nslots + of(effect.slot)
            yield verb, slot, share, shares, bar, *counted
            yield from [("goes with others like it", slot)] if effect.reduces else []
    elif isinstance(effect, EndGroup):
        yield "ends a group", effect.group, of(effect.thread) if effect.thread else None
    elif isinstance(effect, AwaitGroup):
        thread = of(effect.thread) if effect.thread else None
        yield "awaits", effect.group, thread, of(effect.pending), bool(effect.read and of(effect.read))
    elif isinstance(effect, Accumulators):
        yield "accumulators", effect.use, *([of(effect.matmul)] if effect.use is Use.UPDATE else [])
    elif isinstance(effect, Global):
        yield "global memory", effect.how, *declared(type(op)).moved(op)
    elif isinstance(effect, Tile):
        yield "moves", *declared(type(op)).moved(op), of(effect.numbers) if effect.numbers else (), effect.inside
    elif isinstance(effect, Return):
        yield ("returns",)
    elif isinstance(effect, AwaitGrid):
        yield ("awaits the kernels before",)
