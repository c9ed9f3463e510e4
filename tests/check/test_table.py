"""The table of operations against what does not read it: the machine's transitions, the exhaustive oracle, lists by hand.

A wrong cell of the table must not go unnoticed, so the last test corrupts each cell in turn.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import runpy
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

import tmapipe
from tests.oracle.agreement import compare
from tests.oracle.conformance import EXAMPLES, layout, observed, promised
from tests.oracle.one_run import check_program
from tests.oracle.random_programs import draw
from tests.oracle.small_program import SmallProgram
from tests.sweeps import ALL
from tmapipe import isa as effects
from tmapipe import isa as operands
from tmapipe.check.deadlocks import check_operations
from tmapipe.isa import TABLE, Declared, Group, Proxy, Scope, Use, declared, ops
from tmapipe.model.layout import Kind
from tmapipe.model.run import describe
from tmapipe.prove.positions import Positions, without_data

IDS = [type(op).__name__ for op in EXAMPLES]


def test_every_operation_has_an_example():
    assert {type(op) for op in EXAMPLES} == set(TABLE)


@pytest.mark.parametrize("op", EXAMPLES, ids=IDS)
def test_the_machine_does_what_the_table_says(op):
    assert observed(op) == promised(op)


def problems(of: Declared) -> list[str]:
    """What does not fit together in the declaration: in words, none if it is right."""
    found = []
    spaces = [effect.space for effect in of.all(effects.FenceProxy)]
    fenced = of.ptx.split(".")[3:4] if of.ptx.startswith("fence.proxy.async") else []
    fenced += ["shared"] if of.ptx.startswith("tensormap.cp_fenceproxy") else []
    if spaces != [word.split("::")[0] for word in fenced]:
        found.append(f"FenceProxy: {of.ptx} fences other memory than {', '.join(spaces) or 'none'}")
    for effect in of.effects:
        parts = (effect, effect.until) if isinstance(effect, effects.Start) else (effect,)
        for part in parts:
            for field in attrs.fields(type(part)):
                wanted, name = field.metadata.get("kind"), getattr(part, field.name)
                if wanted and isinstance(name, str) and name and of.operands.get(name) is not wanted:
                    found.append(f"{type(part).__name__}.{field.name} = {name!r} is no operand of kind {wanted.name}")
        if isinstance(effect, effects.Start):
            own, cut = effect.until.group is not None, bool(effect.share)
            if cut != bool(effect.shares) or (own and (cut or effect.mask)) or own == bool(effect.until.bar):
                found.append("Start: mask, share and shares are of bytes that complete on an mbarrier")
            if not own and bool(effect.until.nbytes) == bool(effect.until.lanes):
                found.append("Start: either bytes or arrivals are counted on an mbarrier")
        if isinstance(effect, effects.Start) and bool(effect.until.thread) != (effect.until.group is Group.BULK):
            found.append("Start: bulk groups are of a thread")
        if isinstance(effect, effects.Tile) and bool(effect.nbytes) != any(
            x.until.lanes for x in of.all(effects.Start)
        ):
            found.append("Tile: bytes are told where no mbarrier counts them")
        if isinstance(effect, effects.Global) and bool(effect.part) != bool(effect.at):
            found.append("Global: a tile is a store's, and starts somewhere")
        if isinstance(effect, effects.FenceProxy) and not effect.lanes:
            found.append("FenceProxy: some lanes fence")
        if isinstance(effect, effects.Access) and len({bool(x) for x in (effect.part, effect.parts, effect.cut)}) > 1:
            found.append("Access: a part is one of so many, of a cut")
        if isinstance(effect, effects.Accumulators) and bool(effect.matmul) == (effect.use is Use.FENCE):
            found.append("Accumulators: a fence is for those of all matmuls")
        if isinstance(effect, effects.Arrive) and (effect.scope is Scope.CTA) == bool(effect.mask):
            found.append("Arrive: CTA scope is for arrivals at the own CTA")
        if isinstance(effect, effects.ArriveAt) and (effect.scope is Scope.CTA) != bool(effect.barrier):
            found.append("ArriveAt: CTA scope is for barriers of the CTA")
    return found


@pytest.mark.parametrize("op", TABLE, ids=IDS)
def test_declarations_fit_together(op):
    assert problems(declared(op)) == []


# ---- operands ---------------------------------------------------------------------------------------------------------

#: By hand: operands that tell a position in a ring, the parity that goes with it, and what programs are compared without.
GLOBAL_DATA = {"counter", "before", "value", "entries", "votes", "numbers", "offsets"}
POSITIONS, PARITY, DATA = {"bar", "slot", "source", "a", "b"}, {"parity"}, {"at", "words", "where"} | GLOBAL_DATA
KIND_OF_NAME = {
    **dict.fromkeys(POSITIONS - {"bar"}, operands.Kind.SLOT),
    **dict.fromkeys(("share", "shares", "rows", "part", "parts", "registers"), operands.Kind.NUMBER),
    **dict.fromkeys(("load", "store", "matmul", "split", "table", "peer", "operand"), operands.Kind.NAME),
    **dict.fromkeys(("sync", "read", "increase", "anywhere"), operands.Kind.FLAG),
    **dict.fromkeys(("at", "words", *GLOBAL_DATA), operands.Kind.AT),
    "bar": operands.Kind.BAR,
    "parity": operands.Kind.PARITY,
    "where": operands.Kind.WHERE,
    "nbytes": operands.Kind.BYTES,
    "arrivals": operands.Kind.COUNT,
    "pending": operands.Kind.PENDING,
    "lanes": operands.Kind.LANES,
    "mask": operands.Kind.MASK,
    "scope": operands.Kind.SCOPE,
    "proxy": operands.Kind.PROXY,
    "id": operands.Kind.BARRIER_ID,
    "threads": operands.Kind.THREADS,
}
OTHER = {"s0": "s1", "cluster": "cta", "relaxed": "cta", "generic": "async", "rows": "threads", None: "x:1"}


def placed(op: Any) -> tuple[Any, dict[str, int]]:
    """The operation without data and line, and its stage by array and sort."""
    places = Positions(layout()).places(op)
    return without_data(op._replace(where=None)), {str((sort, array)): stage for sort, array, stage, _ in places}


def changed_kind_of_operand(op: Any) -> list[str]:
    """Operands of *op* that comparisons take for something else than they are."""
    wrong = []
    whole, at = placed(op)
    for name, value in zip(op._fields, op, strict=True):
        if name in DATA:
            other = op._replace(**{name: (9, 9) if value == () or isinstance(value, tuple) else "x:1"})
            same = placed(other) == (whole, at)
        elif name in POSITIONS:
            other = op._replace(**{name: value ^ 1 if name != "bar" else value + (1 if value < 3 else -1)})
            elsewhere = placed(other)[1]
            same = elsewhere != at and (name == "bar" or _arrays(elsewhere) != _arrays(at))
        elif name in PARITY:
            elsewhere = placed(op._replace(**{name: value ^ 1}))[1]
            same = elsewhere != at and len(elsewhere) == 1
        else:
            more = (
                not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else OTHER.get(value, "z")
            )
            same = placed(op._replace(**{name: more}))[0] != whole
        if not same:
            wrong.append(name)
    return wrong


def _arrays(at: dict[str, int]) -> set[str]:
    return set(at)


def wrong_kinds(op: Any) -> list[str]:
    """Operands whose name is one of another kind. A prefetch's part is a name, not a part of a slot."""
    kinds = KIND_OF_NAME | ({"part": operands.Kind.NAME} if isinstance(op, ops.PrefetchDescriptor) else {})
    return [name for name, kind in declared(type(op)).operands.items() if kind is not kinds[name]]


@pytest.mark.parametrize("op", EXAMPLES, ids=IDS)
def test_operands_are_of_their_kinds(op):
    assert changed_kind_of_operand(op) == [] and wrong_kinds(op) == []


# ---- sentences --------------------------------------------------------------------------------------------------------

SENTENCES = {
    ops.MbarInit: "initializes b[3] with count 5",
    ops.FenceMbarInit: "fences the initialization (fence.mbarrier_init)",
    ops.MbarWait: "waits for b[1] (parity 0)",
    ops.MbarArrive: "arrives at b[1] by 3 lanes",
    ops.MbarArriveCluster: "arrives at b[1] of CTAs 0, 1 (relaxed scope)",
    ops.MbarArriveTx: "arms 48 bytes on b[1] and arrives",
    ops.MbarExpectTx: "arms 48 bytes on b[1]",
    ops.BarArrive: "arrives at named barrier 2",
    ops.BarWait: "passes named barrier 2",
    ops.WarpSync: "synchronizes the warp",
    ops.ClusterArrive: "arrives at the cluster barrier",
    ops.ClusterWait: "passes the cluster barrier",
    ops.FenceProxyAsyncGlobal: "fences global memory (fence.proxy.async.global)",
    ops.FenceProxyAsync: "fences (fence.proxy.async)",
    ops.GridWait: "waits for the end of the kernel before",
    ops.GridLaunch: "lets the next kernel start",
    ops.PrefetchDescriptor: "prefetches the descriptor of s0",
    ops.TmaLoad: "starts the TMA load of s0 into s0[0] of CTAs 0, 1 (share 1 of 2), 1024 bytes that complete on b[1]",
    ops.TmaGather: "starts the TMA load of 4 rows of s0 into s0[0] (share 3 of 4), 512 bytes that complete on b[1]",
    ops.TmaPrefetch: "asks for a tile of s0 in L2",
    ops.BulkPrefetch: "asks for a piece of s0 in L2",
    ops.BulkLoad: "starts the bulk load of s0 into s0[0], 2048 bytes that complete on b[1]",
    ops.PeerCopy: "starts a copy of s1[0] into s0[0] of CTAs 1 (part 0 to share 1 of 2), 1024 bytes that complete on b[1]",
    ops.PeerReduce: "starts the reduction s0 of part 1 of s1[0] into s0[0] of CTAs 1, 512 bytes that complete on b[1]",
    ops.DescriptorWrite: "writes a descriptor of s0 to s1[0]",
    ops.DescriptorRelease: "hands the descriptor in s1[0] over to the TMA engine",
    ops.DescriptorAcquire: "acquires the descriptor in s1[0]",
    ops.TmaLoadThrough: "starts the TMA load of s0 through s1[0] into s0[0], 1024 bytes that complete on b[1]",
    ops.CpAsync: "starts copies of s0 into s0[0] (share 1 of 2), 512 bytes, after which 5 lanes arrive at b[1]",
    ops.TmaStore: "starts the TMA store y from s0[0]",
    ops.TmaScatter: "starts the TMA store y of 4 rows from s0[0] (part 1)",
    ops.BulkStore: "starts the bulk store y from s0[0]",
    ops.BulkCommit: "commits a bulk group",
    ops.BulkWait: "waits for bulk groups (wait_group.read 0)",
    ops.StAsync: "starts an st.async into s0[0] of CTAs 0, 1 (share 1 of 2), 1024 bytes that complete on b[1]",
    ops.RedAsync: (
        "starts the reduction s0 of registers into s0[0] of CTAs 0, 1 (share 1 of 2), 1024 bytes that complete on b[1]"
    ),
    ops.AccumulatorWrite: "writes the registers of mma",
    ops.AccumulatorRead: "reads the accumulators of mma",
    ops.WgmmaFence: "fences the accumulators (wgmma.fence)",
    ops.Wgmma: "starts wgmma mma, which reads s0[0] and s1[0]",
    ops.WgmmaFromRegisters: "starts wgmma mma, which reads registers and s1[0]",
    ops.WgmmaCommit: "commits a wgmma group",
    ops.WgmmaWait: "waits for wgmma groups (wait_group 0)",
    ops.SlotRead: "reads s0[0] (part 1 of 4, by rows)",
    ops.SlotWrite: "writes s0[0] (part 1 of 4, by rows)",
    ops.PeerRead: "reads s1[0] of CTA 1",
    ops.SetMaxNreg: "sets 72 registers a thread",
    ops.Exit: "returns",
    ops.CounterAdd: "adds 1 to counter 2, which was 7",
    ops.CounterStore: "sets counter 2 to 0",
    ops.TileStore: "stores its values of a tile of y",
    ops.TableLoad: "reads entries (3, 4) of table ends",
    ops.Ballot: "counts 5 votes of the lanes",
    ops.Shuffle: "takes a value from lane 0",
    ops.ReadSmid: "reads the number of its multiprocessor",
}


@pytest.mark.parametrize("op", EXAMPLES, ids=IDS)
def test_sentences(op):
    assert describe(layout(), op) == SENTENCES[type(op)]


def test_sentences_leave_out_what_goes_without_saying():
    said = [
        describe(layout(), op)
        for op in (
            ops.TmaLoad("s0", 0, 1, 2048),
            ops.MbarArrive(1),
            ops.TmaStore("y", 0, part=1),
            ops.BulkWait(1, False),
            ops.PeerCopy(0, 1, 2048, 0b10, 1),
        )
    ]
    assert said == [
        "starts the TMA load of s0 into s0[0], 2048 bytes that complete on b[1]",
        "arrives at b[1]",
        "starts the TMA store y from s0[0] (part 1)",
        "waits for bulk groups (wait_group 1)",
        "starts a copy of s1[0] into s0[0] of CTAs 1, 2048 bytes that complete on b[1]",
    ]


# ---- what only clocks follow, against the oracle ----------------------------------------------------------------------


@attrs.frozen
class Known:
    """A program that the oracle has decided."""

    program: SmallProgram
    wrong: bool

    def agrees(self) -> bool:
        """Whether the linear check says the same."""
        program = self.program
        report = check_program(program.plan(), program.entry, program.shapes())
        return bool(report.errors) == self.wrong


@functools.cache
def decided() -> tuple[Known, ...]:
    """Programs drawn at random, on which both agree while the table is right."""
    found = []
    for seed in range(PROGRAMS):
        program = draw(seed)
        verdicts = compare(program, limit=3_000)
        if verdicts.decided:
            assert verdicts.agree, f"seed {seed}"
            found.append(Known(program, bool(verdicts.exhaustive)))
    return tuple(found)


PROGRAMS = 400 if ALL else 200
LEAVE = (ops.ClusterArrive(), ops.ClusterWait(), ops.Exit())
MEET = (ops.ClusterArrive("relaxed"), ops.ClusterWait())
INIT = (*[ops.MbarInit(bar, 1) for bar in range(3)], ops.FenceMbarInit())


@attrs.frozen
class ByHand:
    """What warps 0 and 1 of CTA 0, and warps 0 and 1 of CTA 1, do between initialization and end; the errors wanted."""

    warps: tuple[list[Any], ...]
    wanted: set[Kind]


def by_hand() -> dict[str, ByHand]:
    """What random programs lack."""
    wait, arrive, load = ops.MbarWait(0, 0), ops.MbarArrive(0), ops.TmaLoad("s0", 0, 1, 2048, at=(0, 0))
    raw_write, raw_read = ops.SlotWrite(0, proxy="async"), ops.SlotRead(0, proxy="async")
    put = ops.TmaStore("y", 0, (0, 0))
    store = [put, ops.BulkCommit(), ops.BulkWait(0, True)]
    loaded = [ops.MbarArriveTx(1, 2048), load, ops.MbarWait(1, 0)]
    handed = [ops.WarpSync(), arrive]
    copy = ops.CpAsync("s0", 0, 1, 2048, at=(0, 0), lanes=1)
    copied, fence = [copy, ops.MbarWait(1, 0)], ops.FenceProxyAsync()
    fenced = [ops.FenceProxyAsync(), ops.WarpSync()]
    make, hand_over, acquire = ops.DescriptorWrite("s0", 1, (0, 8)), ops.DescriptorRelease(1), ops.DescriptorAcquire(1)
    through = ops.TmaLoadThrough("s0", 0, 1, 2048, 0b1, 1, at=(0, 0))
    by_it = [acquire, ops.MbarArriveTx(1, 2048), through, ops.MbarWait(1, 0)]

    def far(scope: str) -> tuple[list[Any], ...]:
        """CTA 1 reads its slot and tells CTA 0, which loads into it."""
        tell = ops.MbarArriveCluster(0, 0b01, scope)
        read, landed = [ops.SlotRead(0), *fenced, tell], [ops.MbarArriveTx(1, 2048), ops.MbarWait(1, 0)]
        return [wait, load._replace(mask=0b10)], [], read, landed

    def meet(scope: str) -> tuple[list[Any], ...]:
        """The same by way of the cluster's barrier."""
        here, there = [ops.ClusterArrive(), ops.ClusterWait()], [ops.ClusterArrive(scope), ops.ClusterWait()]
        landed = [ops.MbarArriveTx(1, 2048), *here, ops.MbarWait(1, 0)]
        return [*here, load._replace(mask=0b10)], here, [ops.SlotRead(0), *fenced, *there], landed

    return {
        "raw code writes by TMA": ByHand(([raw_write, *handed], [wait, *store]), set()),
        "threads write": ByHand(([ops.SlotWrite(0), *handed], [wait, *store]), {Kind.PROXY}),
        "raw code reads by TMA": ByHand(([raw_read, *handed], [wait, *loaded]), set()),
        "threads read": ByHand(([ops.SlotRead(0), *handed], [wait, *loaded]), {Kind.PROXY}),
        "threads read, fenced": ByHand(([ops.SlotRead(0), ops.FenceProxyAsync(), *handed], [wait, *loaded]), set()),
        "threads read, a fence for global memory": ByHand(
            ([ops.SlotRead(0), ops.FenceProxyAsyncGlobal(), *handed], [wait, *loaded]), {Kind.PROXY}
        ),
        "arming releases": ByHand(
            ([ops.SlotWrite(0), ops.WarpSync(), ops.MbarArriveTx(0, 0)], [wait, ops.SlotRead(0)]), set()
        ),
        "bytes armed before the arrival": ByHand(
            ([ops.MbarExpectTx(0, 2048), arrive, load._replace(bar=0), wait], []), set()
        ),
        "bytes armed beside the arrival": ByHand(
            ([ops.MbarExpectTx(0, 2048), load._replace(bar=0), wait], [arrive]), {Kind.TX_MISMATCH}
        ),
        "released to a peer": ByHand(far("cluster"), set()),
        "told to a peer": ByHand(far("relaxed"), {Kind.RACE}),
        "released to the cluster": ByHand(meet("cluster"), set()),
        "told to the cluster": ByHand(meet("relaxed"), {Kind.RACE}),
        "a peer reads": ByHand(
            ([], [wait, *loaded], [ops.PeerRead(0, 0b01), ops.WarpSync(), ops.MbarArriveCluster(0, 0b01)], []),
            {Kind.PROXY},
        ),
        "a peer reads, fenced": ByHand(
            ([], [wait, *loaded], [ops.PeerRead(0, 0b01), *fenced, ops.MbarArriveCluster(0, 0b01)], []), set()
        ),
        "a bulk store without all coordinates": ByHand(
            ([], [ops.BulkStore("y", 0, (0,)), *store[1:]]), {Kind.OUT_OF_RANGE}
        ),
        "a bulk store": ByHand(([], [ops.BulkStore("y", 0, (0, 0)), *store[1:]]), set()),
        "a load beyond its tensor": ByHand(
            ([], [loaded[0], load._replace(at=(128, 0)), loaded[2]]), {Kind.OUT_OF_RANGE}
        ),
        "a load beyond its tensor on purpose": ByHand(
            ([], [loaded[0], load._replace(at=(128, 0), anywhere=True), loaded[2]]), set()
        ),
        "a bulk load beyond its tensor": ByHand(
            ([], [loaded[0], ops.BulkLoad("s0", 0, 1, 2048, (128, 0)), loaded[2]]), {Kind.OUT_OF_RANGE}
        ),
        "a bulk load": ByHand(([], [loaded[0], ops.BulkLoad("s0", 0, 1, 2048, (0, 0)), loaded[2]]), set()),
        "a bulk load of the other tensor": ByHand(
            ([], [loaded[0], ops.BulkLoad("s1", 0, 1, 2048, (128, 0)), loaded[2]]), set()
        ),
        "a load of the other tensor": ByHand(
            ([], [loaded[0], load._replace(load="s1", at=(128, 0)), loaded[2]]), set()
        ),
        "a load of one coordinate": ByHand(([], [loaded[0], load._replace(at=(0,)), loaded[2]]), {Kind.OUT_OF_RANGE}),
        "copies beyond their tensor": ByHand(([], [copy._replace(at=(128, 0)), copied[1]]), {Kind.OUT_OF_RANGE}),
        "copies beyond their tensor on purpose": ByHand(
            ([], [copy._replace(at=(128, 0), anywhere=True), copied[1]]), set()
        ),
        "copies of the other tensor": ByHand(([], [copy._replace(load="s1", at=(128, 0)), copied[1]]), set()),
        "a load through a descriptor": ByHand(([make, hand_over, *handed], [wait, *by_it]), set()),
        "a descriptor not handed over": ByHand(([make, *handed], [wait, *by_it]), {Kind.PROXY}),
        "a descriptor handed over by a lane": ByHand(
            ([make, hand_over._replace(lanes=1), *handed], [wait, *by_it]), {Kind.PROXY}
        ),
        "a descriptor not waited for": ByHand(([make, hand_over, *handed], [acquire, wait, *by_it[1:]]), {Kind.RACE}),
        "a descriptor that one warp makes": ByHand(([make, acquire, hand_over, *handed], [wait, *by_it]), set()),
        "a descriptor made anew too early": ByHand(([make, hand_over, *handed, make], [wait, *by_it[1:]]), {Kind.RACE}),
        "threads read copies": ByHand(([], [*copied, ops.SlotRead(0)]), set()),
        "threads read copies too early": ByHand(([], [copy, ops.SlotRead(0), copied[1]]), {Kind.RACE}),
        "copies follow threads": ByHand(([ops.SlotRead(0), *handed], [wait, *copied]), set()),
        "TMA stores copies": ByHand(([], [*copied, *store]), {Kind.PROXY}),
        "TMA stores copies, fenced": ByHand(([], [*copied, fence, *store]), set()),
        "TMA stores copies, fenced before the wait": ByHand(([], [copy, fence, copied[1], *store]), {Kind.PROXY}),
        "TMA stores copies, fenced by another": ByHand(([wait, *store], [*copied, fence, arrive]), set()),
        "TMA stores copies, told by another": ByHand(([wait, *store], [*copied, arrive, fence]), {Kind.PROXY}),
        "a store beyond its tensor": ByHand(([put._replace(at=(64, 0)), *store[1:]],), set()),
        "a store of one coordinate": ByHand(([put._replace(at=(64,)), *store[1:]],), {Kind.OUT_OF_RANGE}),
    }


def found_by_hand(name: str) -> set[Kind]:
    case = by_hand()[name]
    extra = 1 if "to the cluster" in name else 0  # all warps take part in that barrier
    idle: list[Any] = [ops.ClusterArrive(), ops.ClusterWait()] * extra
    middle = [*case.warps, *[idle] * (4 - len(case.warps))]
    warps = [middle[0], middle[1], idle, idle, middle[2], middle[3], idle, idle]
    programs = [[*(INIT if i in (0, 4) else ()), *MEET, *warp, *LEAVE] for i, warp in enumerate(warps)]
    shapes = {"s0": (64, 16), "s1": (128, 16), "y": (64, 16)}
    findings, _ = check_operations(layout(), programs, shapes)
    return {finding.kind for finding in findings if not finding.kind.note}


@pytest.mark.parametrize("name", by_hand())
def test_programs_by_hand(name):
    assert found_by_hand(name) == by_hand()[name].wanted


# ---- corrupted --------------------------------------------------------------------------------------------------------

OTHERS: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    Scope: (*Scope, "scope"),
    Proxy: (*Proxy, "proxy"),
    Group: tuple(Group),
    Use: tuple(Use),
}
KINDS = (operands.Kind.NUMBER, operands.Kind.BAR, operands.Kind.SLOT, operands.Kind.PARITY, operands.Kind.AT)


def _values(op: type, value: Any) -> Iterator[Any]:
    """What else could stand in a cell that has *value*."""
    if isinstance(value, str) and value in ("shared", "global"):
        yield {"shared": "global", "global": "shared"}[value]
    elif isinstance(value, str) and value in ("scope", "proxy"):
        yield from Scope if value == "scope" else Proxy
    elif isinstance(value, str):
        yield from (name for name in ("", *op._fields) if name != value)  # type: ignore[attr-defined]
    elif isinstance(value, effects.Until):
        yield from (effects.Until(group) for group in Group if group is not value.group)
    else:
        yield from (other for other in OTHERS[type(value)] if other is not value)


def cells() -> Iterator[tuple[str, Declared, dict[str, Any]]]:
    """Every change of one cell: a name for it, the declaration, and the changed fields."""
    for op, of in TABLE.items():
        for i, effect in enumerate(of.effects):
            others = of.effects[:i], of.effects[i + 1 :]
            yield f"{op.__name__}: no {type(effect).__name__}", of, {"effects": (*others[0], *others[1])}
            for field in attrs.fields(type(effect)):
                for value in _values(op, getattr(effect, field.name)):
                    changed = attrs.evolve(effect, **{field.name: value})
                    name = f"{op.__name__}: {type(effect).__name__}({field.name}={value})"
                    yield name, of, {"effects": (*others[0], changed, *others[1])}
        for name, kind in of.operands.items():
            for other in KINDS:
                if other is not kind and not _alike(kind, other):
                    yield f"{op.__name__}: {name} is {other.name}", of, {"operands": {**of.operands, name: other}}
        yield f"{op.__name__}: says something else", of, {"says": "does something"}


def _alike(kind: operands.Kind, other: operands.Kind) -> bool:
    """Whether the kinds differ in nothing but what sentences do with them."""
    data = (operands.Kind.AT, operands.Kind.WHERE)
    plain = set(operands.Kind) - {*KINDS, *data} | {operands.Kind.NUMBER}
    return {kind, other} <= plain or {kind, other} <= set(data)


@contextlib.contextmanager
def corrupted(of: Declared, fields: dict[str, Any]) -> Iterator[None]:
    before = {name: getattr(of, name) for name in fields}
    for name, value in fields.items():
        setattr(of, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(of, name, value)


def noticed(op: Any) -> bool:
    """Whether a test of this file fails for the operation's declaration as it stands."""
    with contextlib.suppress(Exception):
        if (
            not problems(declared(type(op)))
            and not wrong_kinds(op)
            and observed(op) == promised(op)
            and not changed_kind_of_operand(op)
            and describe(layout(), op) == SENTENCES[type(op)]
            and all(found_by_hand(name) == case.wanted for name, case in by_hand().items())
            and all(known.agrees() for known in decided())
        ):
            return False
    return True


def test_every_wrong_cell_is_noticed():
    examples = {type(op): op for op in EXAMPLES}
    assert not noticed(EXAMPLES[0]), "the table as it is"  # of the other operations, what is their own is tested above
    missed = []
    for name, of, fields in cells():
        with corrupted(of, fields):
            if not noticed(examples[of.op]):
                missed.append(name)
    assert missed == []


# ---- the manual page --------------------------------------------------------------------------------------------------


def test_the_manual_page_is_the_tables():
    docs = pathlib.Path(tmapipe.__file__).parent.parent / "docs"
    manual = runpy.run_path(str(docs / "manual.py"))["manual"]
    assert (docs / "instructions.md").read_text() == manual(), (
        "write it anew: python docs/manual.py > docs/instructions.md"
    )
