"""The GPU backend's instruction set: a traced program is carried out on `GpuIsa` while CuTe DSL traces the kernel."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Int16, Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects.nvvm import MemScopeKind
from cutlass.cute.nvgpu import warpgroup

from tmapipe.errors import InputError, ScopeError
from tmapipe.gpu import L2_POLICIES, control, moved_extents, pieces_of
from tmapipe.gpu.control import EMITTERS, Values, emits
from tmapipe.gpu.copies import load_encoded
from tmapipe.gpu.fragments import GpuWarp, load_edge
from tmapipe.gpu.matmuls import store_words
from tmapipe.gpu.watchdog import WAIT, Stamping, emit_wait, sites
from tmapipe.isa import ALL_LANES, ops
from tmapipe.isa.fragment import ClusterExchange, Fragment
from tmapipe.plan.model import Load
from tmapipe.plan.rings import Barrier
from tmapipe.program import Traced
from tmapipe.program.expressions import Call, Expr, For, Function, If, Let, While
from tmapipe.program.python_text import mapped

# ---- isa -------------------------------------------------------------------------------------------------------------
#
# The GPU backend's instruction set: each operation is emitted as CuTe DSL while the kernel is traced.


class GpuIsa(GpuWarp):
    """The instructions of a warp, as `tmapipe.isa` documents them. Their operations go to the emitters. The arguments are
    those of `GpuWarp`."""

    emitters = EMITTERS

    def emit(self, op: Any, *data: Any, when: Any = True) -> None:
        emitter = self.emitters[type(op)]
        if when is True:
            emitter(self, op, *data)
        else:  # one predicate with that of the lane
            emitter(self, op, *data, when=when)

    def may_hold(self, when: Any) -> bool:
        return when is not False

    def answer(self, op: Any, in_machine: Any, *data: Any) -> Any:
        return self.emitters[type(op)](self, op, *data)

    ask = answer  # type: ignore[assignment]

    def share_bytes(self, load: Load, share: Any, shares: int) -> Any:
        return None  # nobody asks

    # ---- instructions that only together are what CuTe DSL emits --------------------------------------------------

    def mbarrier_init(self, barrier: Barrier, count: int) -> None:
        with cute.arch.elect_one():
            super().mbarrier_init(barrier, count)

    def lane_0(self, body: Callable[[], None], when: Any = True) -> None:
        self.when(control.both(self.lane == 0, when), body)

    def launch_words(self, in_machine: Callable[[int], Sequence[int]]) -> Sequence[Any]:
        return self.kept

    def ballot(self, table: str, first: Any, count: Any, holds: Callable[[Any, Any], Any], without_data: int) -> Any:
        entries, mine = self.addressed[table], first + self.lane
        (vote,) = control.choice(mine < count, lambda: [Boolean(holds(mine, entries[mine]))], lambda: [Boolean(False)])
        return cute.arch.popc(cute.arch.vote_ballot_sync(vote))


# ---- emitters --------------------------------------------------------------------------------------------------------
#
# Emitters of barriers, fences, wgmma, TMA, registers, counters and tables. `copies` has the emitters of other copies.


#: Whether `cute.copy` elects the issuing lane by itself, as its PTX shows (CuTe DSL 4.8.1; tests/emit checks it).
COPY_ELECTS = {"load": True, "store": False, "reduce": True}


EMITTERS |= {
    ops.FenceMbarInit: lambda isa, op: cute.arch.mbarrier_init_fence(),
    ops.GridWait: lambda isa, op: cute.arch.griddepcontrol_wait(),
    ops.GridLaunch: lambda isa, op: cute.arch.griddepcontrol_launch_dependents(),
    ops.WarpSync: lambda isa, op: cute.arch.sync_warp(),
    ops.ClusterArrive: lambda isa, op: (
        cute.arch.cluster_arrive_relaxed if op.scope == "relaxed" else cute.arch.cluster_arrive
    )(),
    ops.ClusterWait: lambda isa, op: cute.arch.cluster_wait(),
    ops.FenceProxyAsync: lambda isa, op: cute.arch.fence_proxy("async.shared", space="cta"),
    ops.FenceProxyAsyncGlobal: lambda isa, op: cute.arch.fence_proxy("async.global"),
    ops.ReadSmid: lambda isa, op: cute.arch.smid(),
    ops.Shuffle: lambda isa, op, value: cute.arch.shuffle_sync(value, 0),
    ops.MbarInit: lambda isa, op: cute.arch.mbarrier_init(isa.mbarrier(*op.bar), op.arrivals),
    ops.MbarWait: lambda isa, op: cute.arch.mbarrier_wait(isa.mbarrier(*op.bar), op.parity),
    ops.MbarArriveTx: lambda isa, op: control.elected(
        lambda: cute.arch.mbarrier_arrive_and_expect_tx(isa.mbarrier(*op.bar), op.nbytes)
    ),
    ops.MbarExpectTx: lambda isa, op: control.elected(
        lambda: cute.arch.mbarrier_expect_tx(isa.mbarrier(*op.bar), op.nbytes)
    ),
    ops.BarWait: lambda isa, op: None,  # a part of `BarArrive`
    ops.BulkCommit: lambda isa, op: control.elected(cute.arch.cp_async_bulk_commit_group),
    ops.SetMaxNreg: lambda isa, op: (
        cute.arch.setmaxregister_increase if op.increase else cute.arch.setmaxregister_decrease
    )(op.registers),
    ops.WgmmaFence: lambda isa, op: warpgroup.fence(),
    ops.Wgmma: lambda isa, op, acc: isa.matmuls[op.matmul].issue(acc, op.a.stage, op.b.stage),
    ops.WgmmaFromRegisters: lambda isa, op, acc, a: isa.matmuls[op.matmul].issue(acc, a, op.b.stage),
    ops.WgmmaCommit: lambda isa, op: warpgroup.commit_group(),
    ops.WgmmaWait: lambda isa, op: warpgroup.wait_group(op.pending),
}


@emits(ops.MbarArrive)
def _arrive(isa: GpuWarp, op: Any, when: Any = True) -> None:
    condition = when if op.lanes == ALL_LANES else control.both(isa.lane == 0, when)
    control.when(condition, lambda: cute.arch.mbarrier_arrive(isa.mbarrier(*op.bar)))


@emits(ops.MbarArriveCluster)
def _arrive_cluster(isa: GpuWarp, op: Any, when: Any = True) -> None:
    if op.scope not in ("cluster", "relaxed"):
        raise ScopeError("an arrival at peers needs cluster scope; CTA scope exists on the model, to show the bug")
    # CuTe DSL's default has CTA scope: at a peer it only counts, and releases nothing.
    kind = {"scope": MemScopeKind.CLUSTER} if op.scope == "cluster" else {}
    mine = control.both(((Int32(op.mask) >> isa.lane) & 1) == 1, when)
    control.when(mine, lambda: cute.arch.mbarrier_arrive(isa.mbarrier(*op.bar), isa.lane, **kind))


@emits(ops.BarArrive)
def _bar(isa: GpuWarp, op: Any) -> None:
    if not op.threads:
        return cute.arch.sync_threads()
    (cute.arch.barrier if op.sync else cute.arch.barrier_arrive)(barrier_id=op.id, number_of_threads=op.threads)


@emits(ops.TmaLoad)
def _tma_load(isa: GpuWarp, op: Any) -> None:
    load, stage, at, mbarrier = isa.plan.load(op.load), op.slot.stage, op.at, isa.mbarrier(*op.bar)
    if load.encoded:
        return load_encoded(isa, load, op, mbarrier)
    how: dict[str, Any] = {"tma_bar_ptr": mbarrier}
    if op.mask is not None:
        how["mcast_mask"] = Int16(op.mask)
    if load.l2_hint is not None:
        how["cache_policy"] = Int64(L2_POLICIES[load.l2_hint])
    in_parts = op.mask is None and op.shares > 1  # each of which starts at `at`
    share, first = (0, op.share * moved_extents(load)[0]) if in_parts else (op.share, None)

    def whole() -> None:
        moves = isa.moves_of(load, share, load.peers)

        def one(piece: Any) -> None:
            source = moves.tile(at, piece)
            moves.copy(source, moves.slot(stage, first, piece), **how)

        control.each(pieces_of(load), one)

    if not load.edge_rows:
        return whole()
    row = len(load.dims) - 2
    end, extent = at[row] + load.tile[row], isa.extent(load.argument, row)
    control.when(end <= extent, whole)
    control.when(end > extent, lambda: load_edge(isa, load, stage, at, share, how))


@emits(ops.TmaStore)
def _tma_store(isa: GpuWarp, op: Any) -> None:
    store, at = isa.plan.store(op.store), op.at
    if store.clipped:  # see `layouts.clipped`
        height = store.buffer.tile[0]
        at = (at[0] + op.rows, height - op.rows, *at[1:])
    moves = isa.moves_of(store)
    how = {} if store.l2_hint is None else {"cache_policy": Int64(L2_POLICIES[store.l2_hint])}
    elected = COPY_ELECTS["reduce" if store.reduce else "store"]
    first = None if op.part is None else op.part * moved_extents(store)[0]

    def one(piece: Any) -> None:
        target = moves.tile(at, piece)
        with contextlib.nullcontext() if elected else cute.arch.elect_one():
            moves.copy(moves.slot(op.slot.stage, first, piece), target, **how)

    control.each(pieces_of(store), one)


@emits(ops.BulkWait)
def _wait_bulk(isa: GpuWarp, op: Any) -> None:
    control.elected(cute.arch.cp_async_bulk_wait_group, op.pending, read=op.read)
    cute.arch.sync_warp()


@emits(ops.StAsync)
def _store_words(isa: GpuWarp, op: Any) -> None:
    buffer, stage = op.slot
    size = buffer.tile[0]
    filled = [*op.words, *[0] * (size - len(op.words))]
    start = cute.recast_ptr(isa.shared + buffer.offset, dtype=Int32) + stage * size
    store = functools.partial(store_words, start, filled)
    control.when(isa.lane < isa.plan.cluster_size, lambda: store(isa.mbarrier(*op.bar), isa.lane))


@emits(ops.SlotRead)
def _read_words(isa: GpuWarp, op: Any, count: int) -> list[Any]:
    source = isa.buffers[op.slot.buffer.name]
    return [cute.arch.make_warp_uniform(source[(i, op.slot.stage)]) for i in range(count)]


@emits(ops.CounterAdd)
def _add_to_counter(isa: GpuWarp, op: Any) -> Any:
    address = (isa.scratch[0].iterator + op.counter).llvm_ptr
    return Int32(cute.arch.atomic_add(address, Int32(1), sem="relaxed", scope="gpu"))


@emits(ops.CounterStore)
def _set_counter(isa: GpuWarp, op: Any) -> None:
    isa.scratch[0][op.counter] = Int32(op.value)


@emits(ops.TableLoad)
def _load_entry(isa: GpuWarp, op: Any) -> list[Any]:
    table = isa.addressed[op.table]
    entries = cute.make_tensor(table.iterator, cute.make_layout((2**31 - 1,), stride=(table.stride[-1],)))
    return [cute.arch.make_warp_uniform(entries[i]) for i in op.entries]


# ---- emission --------------------------------------------------------------------------------------------------------
#
# Emission: a traced program, carried out on `GpuIsa` while CuTe DSL traces the kernel.
#
# Loops and branches of the program become loops and branches of MLIR. The values that they carry are their results: a
# number, or a thread's numbers of a fragment. Instructions are methods of `GpuIsa`.


def emit(program: Traced, isa: GpuIsa) -> None:
    """Emits the program of the calling warp."""
    plain, launched = _Emission(program, isa).whole, isa.stamps
    if launched is None:
        return plain()
    stamping = Stamping(isa, program)

    def stamped() -> None:
        again = type(isa)(isa.plan, isa.given, zero=Int32(launched[1] >> 63))
        _Emission(program, again, stamping).whole()
        stamping.end()

    # The plain form comes first: in what comes second, ptxas has kept descriptors of matmuls out of uniform registers.
    control.choice(stamping.tiles == 0, plain, stamped)


class _Emission:
    """A method a node."""

    def __init__(self, program: Traced, isa: GpuIsa, stamping: Stamping | None = None):
        known = {"warp": isa.warp, "rank": isa.cta_rank, "cluster": isa.cluster_id, "clusters": isa.clusters}
        symbols = {Expr.of("symbol", name): value for name, value in known.items()}
        for symbol, (argument, dim) in program.isa.symbols["extents"].items():
            symbols[symbol] = isa.own(isa.extent(argument, dim))
        if "launch" in program.isa.symbols:
            in_machine, words = program.isa.symbols["launch"]
            symbols.update(zip(words, isa.launch_words(in_machine), strict=True))
        self.program, self.isa, self.stamping, self.values = program, isa, stamping, Values(isa, symbols)
        #: Numbers of waits by the node's id, if waits end.
        self.watched = {} if isa.watch is None else {id(site.node): i for i, site in enumerate(sites(program))}
        self.turns: list[Any] = []  # the iterations of the loops around

    def whole(self) -> None:
        self.values.inside(self.block, self.program.nodes)

    def block(self, nodes: Sequence[Any]) -> None:
        for node in nodes:
            if isinstance(node, Let):
                self.compute(node)
            else:
                with _line(node.where):
                    if self.stamping is None:
                        NODES[type(node)](self, node)
                    else:
                        self.stamping.around(node, self.operand, functools.partial(NODES[type(node)], self, node))

    # ---- structure ------------------------------------------------------------------------------------------------

    def compute(self, node: Let) -> None:
        if isinstance(node.value, Expr) and node.value.op != "divisor" and self.values.known(node.value):
            self.values.of(node.value)

    def repeat(self, node: For) -> None:
        names, registers = self._entering(node.carried)
        count, first = self.values.of(node.count), Int32(0)

        def turn(i: Any, *now: Any) -> Any:
            self.values.bind(node.index, i, counts=True)
            names.bind(0, now)
            self.turns.append(i)
            if self.stamping is not None:
                self.stamping.turn(node)
            self.block(node.body)
            self.turns.pop()
            return self._next(node.carried)

        body, stamping = functools.partial(self.values.inside, turn), self.stamping
        if stamping is not None and stamping.splits(node):
            first, _, *registers = control.loop_while(
                [first, stamping.most(node), *registers],
                lambda i, more, *_: control.both(more != 0, i < count),
                lambda i, more, *now: [i + 1, more - 1, *body(i, *now)],
            )
            stamping.left(node, first < count)
            self.stamping = None
        names.bind(3, control.loop(count, body, registers, first=first))
        self.stamping = stamping

    def repeat_while(self, node: While) -> None:
        names, registers = self._entering(node.carried)

        def holds(*now: Any) -> Any:
            names.bind(0, now)
            return self.values.number(node.condition)

        def turn(*now: Any) -> Any:
            names.bind(0, now)
            if self.stamping is not None:
                self.stamping.turn(node)
            self.block(node.body)
            return self._next(node.carried)

        inside = self.values.inside
        registers_after = control.loop_while(
            registers, lambda *now: inside(holds, *now), lambda *now: inside(turn, *now)
        )
        names.bind(3, registers_after)

    def branch(self, node: If) -> None:
        condition = self.values.of(node.condition)
        if node.lane_0:
            condition = control.both(self.isa.lane == 0, condition)
        if not node.phis and not node.other:
            return control.when(condition, lambda: self.values.inside(self.block, node.then))
        shapes = []

        def side(nodes: Sequence[Any], which: int) -> list[Any]:
            self.block(nodes)
            given = [self.values.number(phi[which], phi[0]) for phi in node.phis]
            shapes.append([_count(each) for each in given])
            return _flat(given)

        registers = control.choice(
            condition, lambda: self.values.inside(side, node.then, 1), lambda: self.values.inside(side, node.other, 2)
        )
        _Names(self.values, [(phi[0],) for phi in node.phis], shapes[0]).bind(0, registers)

    def _entering(self, carried: Sequence[Any]) -> tuple[_Names, list[Any]]:
        """The variables of a loop, and the numbers with which they begin."""
        initial = [self.values.number(each[1], each[0]) for each in carried]
        return _Names(self.values, carried, [_count(each) for each in initial]), _flat(initial)

    def _next(self, carried: Sequence[Any]) -> list[Any]:
        return _flat(self.values.number(each[2], each[0]) for each in carried)

    # ---- instructions ---------------------------------------------------------------------------------------------

    def instruct(self, node: Call) -> None:
        emit = SPECIAL.get(node.method)
        if emit is not None:
            return emit(self, node)
        *of_fragments, name = node.method.split(".")
        emitter = getattr(self.isa.fragments if of_fragments else self.isa, name)
        answer = emitter(*map(self.operand, node.args), **{n: self.operand(x) for n, x in node.named.items()})
        if node.method == "fragments.apply" and isinstance(answer, dict):
            self._answer(node, [each.data for each in answer.values()])
        elif len(node.results) == 1:
            self._answer(node, [answer.data if isinstance(answer, Fragment) else answer])

    def _answer(self, node: Call, values: Sequence[Any]) -> None:
        for variable, value in zip(node.results, values, strict=True):
            self.values.bind(variable, value)

    def here(self, node: Call) -> None:
        (value,) = node.args
        self.values.bind(node.results[0], self.isa.here(self.values.of(value)), self.values.is_count(value))

    def skip(self, node: Call) -> None:
        slot, parity, slots, ring = node.args
        state = [self.values.of(slot), self.values.of(parity)]
        self.isa.skip(state, self.values.of(slots), ring)
        self._answer(node, state)

    def wait(self, node: Call) -> None:
        barrier, stage, parity = map(self.operand, node.args)
        if self.isa.watch is None:
            self.isa.mbarrier_wait(barrier, stage, parity)
        else:
            emit_wait(self.isa, barrier, stage, parity, self.watched[id(node)], self.turns)

    def read_words(self, node: Call) -> None:
        slot, count, _ = node.args
        self._answer(node, self.isa.read_words(self.operand(slot), count, tuple))

    def atomic_add(self, node: Call) -> None:
        self._answer(node, [self.isa.atomic_add(self.values.of(node.args[0]), int)])

    def ballot(self, node: Call) -> None:
        table, first, count, (index, entry, holds), without = node.args

        def test(at: Any, value: Any) -> Any:
            self.values.bind(index, at)
            self.values.bind(entry, value)
            return self.values.of(holds)

        look = functools.partial(self.values.inside, test)
        self._answer(node, [self.isa.ballot(table, self.values.of(first), self.values.of(count), look, without)])

    def function(self, function: Function, *fragments: Fragment, **named: Fragment) -> Any:
        """The result of a function of fragments."""
        for variable, each in zip(function.inputs, fragments, strict=True):
            self.values.bind(variable, each.data)
        for name, variable in function.named.items():
            self.values.bind(variable, named[name].data)
        self.block(function.body)
        return function.of({name: self.operand(x) for name, x in function.outputs.items()})

    def operand(self, x: Any) -> Any:
        """An argument of an instruction, with numbers in place of expressions."""
        return mapped(x, self._part)

    def _part(self, x: Any) -> Any:
        if isinstance(x, Function):
            return functools.partial(self.values.inside, self.function, x)
        if isinstance(x, Fragment):
            return Fragment(self.isa.fragments, x.layout, x.along, x.kind, self.values.of(x.data))
        if isinstance(x, ClusterExchange):
            return SimpleNamespace(rank=self.values.of(x.rank), mask=self.values.of(x.mask), peers=x.peers, full=x.full)
        return self.values.of(x) if isinstance(x, Expr) else x


#: How each kind of node is emitted.
NODES: dict[type, Callable[[_Emission, Any], None]] = {
    For: _Emission.repeat,
    While: _Emission.repeat_while,
    If: _Emission.branch,
    Call: _Emission.instruct,
}
#: Instructions that take a part of the program as an operand, give what the model needs only, or can be watched.
SPECIAL: dict[str, Callable[[_Emission, Call], None]] = {
    name: getattr(_Emission, name) for name in ("here", "skip", "read_words", "atomic_add", "ballot")
} | {WAIT: _Emission.wait}


class _Names:
    """Variables of a loop or branch. Each is a number, or a fragment of several numbers."""

    def __init__(self, values: Values, carried: Sequence[Any], counts: Sequence[int | None]):
        self.values, self.carried, self.counts = values, carried, counts

    def bind(self, which: int, registers: Sequence[Any]) -> None:
        rest = iter(registers)
        for each, count in zip(self.carried, self.counts, strict=True):
            self.values.bind(each[which], next(rest) if count is None else [next(rest) for _ in range(count)])


def _count(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _flat(values: Any) -> list[Any]:
    return [x for value in values for x in (value if isinstance(value, list) else (value,))]


@contextlib.contextmanager
def _line(where: str | None) -> Iterator[None]:
    """Operations and errors have the line of the body that they come from."""
    if where is None:
        yield
        return
    file, _, line = where.rpartition(":")
    with ir.Location.file(file, int(line), 0):
        try:
            yield
        except (InputError, ScopeError) as error:
            if " At " not in str(error):
                error.args = (f"{error} At {where}.",)
            raise
