"""Executes emitted PTX, one thread at a time, and writes down what the thread asks of the hardware.

A thread alone computes all its indices, parities, addresses and coordinates from its place, the tensors' extents and the
divisors of the host, and no wait changes them. So every wait succeeds at once, and what the thread asks for can be compared
with what the bodies ask for (`tests.unit.fake_isa`, lowered by `tests.emit.lower`), event by event.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple

from tests.oracle.ptx import LEADER, SHARED, Instruction, Ptx, defined, registers_in, shape_of
from tests.oracle.ptx_launch import COUNTERS, TABLES, VECTORS, WORKSPACE, Launch, parameters
from tests.oracle.ptx_values import Peer, Registers, computation, signed
from tmapipe.store_pipeline import REDUCTIONS
from tmapipe.tiles.dynamic import COUNTERS as MOST_COUNTERS

__all__ = ["BASE", "Event", "Execution"]

Event = tuple[Any, ...]  # a name as of `tests.unit.fake_isa`, and operands
BASE = 1024  # where dynamic shared memory is put: with all of it, addresses must fit the 18 bits of wgmma descriptors


class Asked(NamedTuple):
    """What a thread asks of its warp: a ballot, or a lane's value."""

    votes: bool
    value: Any


class Execution:
    """One thread of one CTA. events: as `lower` writes them.

    words: what the slots of a dynamic order's queue hold, one after another. With these, shfl gives each lane what the first
    one has, which is executed too. beside: further lanes of the warp that are executed with it.
    """

    def __init__(
        self,
        ptx: Ptx,
        schedule: Any,
        launch: Launch,
        warp: int,
        lane: int = LEADER,
        words: Any = (),
        beside: Iterable[int] = (),
    ):
        self.launch, self.words = launch, list(words)
        counts = (len(table) for name, table in launch.tables.items() if name in ptx.plan.entries)
        others = {*beside, *range(max(counts, default=0))}  # lanes that look at an entry
        others |= {0} if words else set()
        self.others = {other: (ptx, schedule, launch, warp, other) for other in others if other != lane}
        self.added: Counter[int] = Counter()  # to each counter, so far; all clusters add to it in turn
        self.ptx, self.plan, self.lane = ptx, ptx.plan, lane
        size = self.plan.cluster_size
        self.registers = Registers(
            {
                "%tid.x": 32 * warp + lane,
                "%laneid": lane,
                "%ctaid.x": launch.cluster_id * size + launch.cta_rank,
                "%cluster_ctarank": launch.cta_rank,
                "%smid": 5,
                SHARED: BASE,
            }
        )
        self.parameters = parameters(ptx.plan, schedule, launch)
        self.events: list[Event] = []
        self.words_waited: list[int] = []  # the slots of the queue that have been waited for

    def run(self, limit: int = 400_000) -> list[Event]:
        """Executes the thread, and with it those of its warp that it takes votes or values from."""
        return self.run_all(limit)[self.lane]

    def run_all(self, limit: int = 400_000) -> dict[int, list[Event]]:
        """The same, for the events of each lane that is executed."""
        lanes = {self.lane: self, **{lane: Execution(*place) for lane, place in self.others.items()}}
        for other in lanes.values():
            other.words = self.words
        programs = {lane: execution._program(limit) for lane, execution in lanes.items()}
        asked = {lane: next(program, None) for lane, program in programs.items()}
        while asking := {lane: each for lane, each in asked.items() if each is not None}:
            votes = next(iter(asking.values())).votes
            ballot = sum(bool(each.value) << lane for lane, each in asking.items())
            given = {lane: ballot if votes else asking[0 if self.words else lane].value for lane in asking}
            asked = {lane: _resumed(programs[lane], value) for lane, value in given.items()}
        return {lane: execution.events for lane, execution in lanes.items()}

    def _program(self, limit: int) -> Generator[Asked, Any, None]:
        """Executes up to each vote, to be sent the ballot, and each shfl, to be sent a lane's value."""
        watched = type(self).step is not Execution.step
        at, program, registers = 0, _decoded(self.ptx, watched), self.registers
        for _ in range(limit):
            instruction, guard, wanted, target, action, compute = program[at]
            at += 1
            if guard is not None:
                found = registers[guard]
                assert found is not None, f"line {instruction.line} depends on data"
                if bool(found) != wanted:
                    continue
            if compute is not None:
                compute(registers)
            elif action is not None:
                if watched:
                    self.step(instruction, action)
                else:
                    action(self)
            elif target is not None:
                at = target
            elif instruction.is_a("ret"):
                return
            else:
                asked = Asked(instruction.is_a("vote"), self.value(instruction.operands[1]))
                registers[instruction.operands[0].split("|")[0]] = yield asked
                if watched:
                    self.step(instruction, lambda thread: None)
        raise AssertionError(f"still running after {limit} instructions")

    def step(self, instruction: Instruction, action: Action) -> None:
        """Executes one instruction. To watch, a subclass does what it wants and calls this."""
        action(self)

    # ---- values ---------------------------------------------------------------------------------------------------

    def value(self, operand: str) -> Any:
        """What an operand holds: a number, a `Peer`, the name of a symbol, or None if it depends on data."""
        return self.registers[operand]

    def address(self, operand: str) -> Any:
        """Where ``[register + offset]`` points."""
        terms = [self.value(term) for term in operand.strip("[]").split("+")]
        assert all(isinstance(term, (int, Peer)) for term in terms), operand
        return terms[0] if len(terms) == 1 else sum(terms)

    def _map(self, i: Instruction) -> None:
        self.registers[i.operands[0]] = Peer(self.value(i.operands[1]), self.value(i.operands[2]))

    def _add(self, i: Instruction) -> None:
        counter = self._counter(i.operands[1])
        assert self.value(i.operands[2]) == 1
        self.events.append(("add", counter))
        self.registers[i.operands[0]] = self.launch.cluster_id + self.added[counter] * self.launch.clusters
        self.added[counter] += 1

    def _store(self, i: Instruction) -> None:
        """To a tensor, or else to a counter."""
        address = self.address(i.operands[0])
        if address >= COUNTERS:
            return self.events.append(("set", self._counter(i.operands[0]), self.value(i.operands[1])))
        which, offset = divmod(address - VECTORS, 1 << 36)
        words = i.opcode.split(".")
        count = next((int(word[1:]) for word in words if word in ("v2", "v4")), 1)
        self.events.append(("store_values", self._by_address[which], offset, count * int(words[-1][1:]) // 8))

    @functools.cached_property
    def _by_address(self) -> list[str]:
        """Tensors in the order in which `parameters` puts them into memory."""
        return [name for name in self.plan.by_address if name not in self.plan.tables]

    def _counter(self, operand: str) -> int:
        counter, rest = divmod(self.address(operand) - COUNTERS, 4)
        assert 0 <= counter < MOST_COUNTERS and rest == 0
        return counter

    def _load(self, i: Instruction) -> None:
        """From a queue or a table; all else is data."""
        if i.is_a("ld.shared") and self._is_word(i.operands[1]):
            self._read_words(i)
        elif i.is_a("ld.global") and self.plan.entries and isinstance(self.address(i.operands[1]), int):
            table, offset = divmod(self.address(i.operands[1]) - TABLES, 1 << 20)
            self.registers[i.operands[0]] = list(self.launch.tables.values())[table][offset // 4] & 0xFFFFFFFF
        else:
            self.registers.update(dict.fromkeys(registers_in(i.operands[0])))

    def _move_halves(self, i: Instruction) -> None:
        """``mov.b64 wide, {low, high}`` and ``mov.b64 {low, high}, wide``, of which one half may be dropped (``_``)."""
        to, source = (re.findall(r"%\w+|\b_\b", operand) for operand in i.operands)
        if len(to) == 1:
            low, high = (self.value(half) for half in source)
            self.registers[to[0]] = (
                None if low is None or high is None else low & 0xFFFFFFFF | (high & 0xFFFFFFFF) << 32
            )
        else:
            wide = self.value(source[0])
            for n, half in enumerate(to):
                self.registers[half] = None if wide is None else wide >> 32 * n & 0xFFFFFFFF

    # ---- tiles in dynamic order -----------------------------------------------------------------------------------

    def _store_words(self, i: Instruction) -> None:
        target, barrier = self.address(i.operands[0]), self.address(i.operands[2])
        assert target.rank == barrier.rank
        words = [self.value(word.strip()) for word in i.operands[1].strip("{}").split(",")]
        values = tuple(signed(word, 32) if isinstance(word, int) else None for word in words)  # None: data
        place = self._barrier(barrier.address)
        kind = "store_words" if i.is_a("st.async") else " ".join(i.opcode.split(".")[-2:])  # such as "add s32"
        self.events.append((kind, target.address - BASE, values, *place, target.rank))

    def _is_word(self, operand: str) -> bool:
        queue = self.plan.queue
        place = self.address(operand) - BASE if queue else 0
        return queue is not None and 0 <= place - queue.buffer.offset < queue.buffer.stages * queue.buffer.slot_bytes

    def _read_words(self, i: Instruction) -> None:
        assert self.plan.queue is not None
        buffer, waits = self.plan.queue.buffer, self.words_waited
        place = self.address(i.operands[1]) - BASE - buffer.offset - waits[-1] * buffer.pitch
        assert 0 <= place < buffer.slot_bytes, "a word of another slot than the one waited for"
        words = self.words[len(waits) - 1]
        for n, register in enumerate(registers_in(i.operands[0])):
            self.registers[register] = words[place // 4 + n] if place // 4 + n < len(words) else None

    # ---- what the hardware is asked for ---------------------------------------------------------------------------

    def _wgmma(self, i: Instruction) -> None:
        operands = [
            "registers" if operand.startswith("{") else _descriptor(self.value(operand)) for operand in i.operands[1:3]
        ]
        kept = i.operands[-2:] if re.search(r"f16\.b?f16$", i.opcode) else ("0", "0")
        kept = ("0", kept[1]) if operands[0] == "registers" else kept
        transposed = tuple(flag == "1" for flag in kept)  # imm-trans of a and b
        self.events.append(("wgmma", shape_of(i.opcode), *operands, transposed))

    def _meet(self, i: Instruction) -> None:
        numbers = tuple(self.value(operand) for operand in i.operands)
        how = "named_arrive" if i.is_a("bar.arrive", "barrier.arrive", "barrier.cta.arrive") else "named_sync"
        self.events.append(("cta_sync",) if numbers == (0,) else (how, *numbers))

    def _arrive_for_copies(self, i: Instruction) -> None:
        assert i.has("noinc")
        self.events.append(("arrive_noinc", *self._barrier(self.address(i.operands[0]))))

    def _replace(self, i: Instruction) -> None:
        slot, field = self.address(i.operands[0]) - BASE, i.opcode.split(".")[3]
        if field == "global_address":
            which, start = divmod(self.value(i.operands[1]) - VECTORS, 1 << 36)
            self.events.append(("replace", field, slot, self._by_address[which], start))
        else:
            self.events.append(("replace", field, slot, int(i.operands[1]), self.value(i.operands[2])))

    def _hand_over(self, i: Instruction) -> None:
        assert i.has("release", "gpu", "sync", "aligned") and i.operands[2] == "128"
        place, slot = self.address(i.operands[0]) - WORKSPACE, self.address(i.operands[1]) - BASE
        self.events.append(("hand over", slot, place))

    def _acquire(self, i: Instruction) -> None:
        assert i.has("acquire", "gpu") and i.operands[1] == "128"
        self.events.append(("acquire", self.address(i.operands[0]) - WORKSPACE))

    def _prefetch(self, i: Instruction) -> None:
        if not i.has("tensor"):
            assert self.value(i.operands[1]) % 16 == 0
            which, offset = divmod(self.address(i.operands[0]) - VECTORS, 1 << 36)
            return self.events.append(("prefetch_piece", self._by_address[which], offset, self.value(i.operands[1])))
        self.events.append(("prefetch_tile", *self._tile(i.operands[0])))

    def _mbarrier(self, i: Instruction) -> None:
        where = next(n for n, operand in enumerate(i.operands) if "[" in operand)
        address = self.address(i.operands[where])
        argument = self.value(i.operands[where + 1]) if len(i.operands) > where + 1 else 1
        if isinstance(address, Peer):
            assert argument == 1
            self.events.append(("arrive_at", *self._barrier(address.address), address.rank))
        elif i.is_a("mbarrier.init"):
            self.events.append(("init", *self._barrier(address), argument))
        elif i.is_a("mbarrier.try_wait", "mbarrier.test_wait"):
            barrier, stage = self._barrier(address)
            self.events.append(("wait", barrier, stage, argument))
            if self.plan.queue is not None and barrier == self.plan.queue.full.name:
                self.words_waited.append(stage)
        elif i.has("expect_tx"):
            self.events.append(("arm", *self._barrier(address), argument))
        else:
            assert argument == 1
            self.events.append(("arrive", *self._barrier(address)))

    def _bulk(self, i: Instruction) -> None:
        if not i.has("tensor"):
            return self._bulk_by_address(i)
        load = not i.has("bulk_group")
        name, coordinates = self._tile(i.operands[1 if load else 0])
        offset = self.address(i.operands[0 if load else 1]) - BASE
        if load:
            windows = i.has("im2col")
            mask = self.value(i.operands[3 + windows]) if i.has("multicast::cluster") else None
            barrier = self._barrier(self.address(i.operands[2]))
            offsets = tuple(self.value(x.strip()) for x in i.operands[3].strip("{}").split(",")) if windows else ()
            through = isinstance(name, int)  # a descriptor that the kernel has made
            kind = ("load through", name - WORKSPACE) if through else ("load", name)
            self.events.append((*kind, offset, coordinates, *barrier, mask, *((offsets,) if windows else ())))
        else:
            kind = f"reduce {next(word for word in REDUCTIONS if i.has(word))}" if i.is_a("cp.reduce") else "store"
            self.events.append((kind, name, offset, coordinates))

    def _tile(self, operand: str) -> tuple[str, tuple[int, ...]]:
        """The tensor of ``[descriptor, {coordinates}]``, and these."""
        tensor, at = re.fullmatch(r"\[(%\w+), \{(.*)\}\]", operand).groups()  # type: ignore[union-attr]
        coordinates = tuple(signed(self.value(each.strip()), 32) for each in at.split(","))
        place = self.value(tensor)
        return place if isinstance(place, int) else self.parameters[int(place.rpartition("_")[2])][0], coordinates

    def _bulk_to_peer(self, i: Instruction) -> None:
        target, bar = self.address(i.operands[0]), self.address(i.operands[3])
        assert target.rank == bar.rank
        source, nbytes = self.address(i.operands[1]) - BASE, self.value(i.operands[2])
        place = *self._barrier(bar.address), target.rank
        kind = f"peer_{next(word for word in REDUCTIONS if i.has(word))}" if i.is_a("cp.reduce") else "peer_copy"
        self.events.append((kind, target.address - BASE, source, nbytes, *place))

    def _bulk_by_address(self, i: Instruction) -> None:
        if i.has("bulk_group"):
            which, offset = divmod(self.address(i.operands[0]) - VECTORS, 1 << 36)
            kind = f"reduce {next(word for word in REDUCTIONS if i.has(word))}" if i.is_a("cp.reduce") else "store"
            source, nbytes = self.address(i.operands[1]) - BASE, self.value(i.operands[2])
            self.events.append((f"bulk {kind}", self._by_address[which], source, offset, nbytes))
            return
        if i.has("shared::cta"):
            return self._bulk_to_peer(i)
        loads = [load for load in self.plan.loads if not load.tensor_map]
        target, source, size, bar = (i.operands[0], i.operands[1], i.operands[2], i.operands[3])
        which, offset = divmod(self.address(source) - VECTORS, 1 << 36)
        load = loads[which]
        assert self.value(size) == load.buffer.slot_bytes
        flat, at = offset // load.buffer.dtype.bytes, []
        for extent in reversed(self.launch.extents[load.argument]):
            at.append(flat % extent)
            flat //= extent
        barrier = self._barrier(self.address(bar))
        self.events.append(("load", load.argument, self.address(target) - BASE, tuple(at), *barrier, None))

    def _copy(self, i: Instruction) -> None:
        target, nbytes = self.address(i.operands[0]) - BASE, self.value(i.operands[3])
        assert i.is_a("cp.async.cg") == (i.operands[2] == "16")
        loads = [load for load in self.plan.loads if not load.tensor_map]
        load = next(load for load in loads if 0 <= target - load.buffer.offset < load.buffer.stages * load.buffer.pitch)
        source = self.address(i.operands[1]) - VECTORS - (loads.index(load) << 36) if nbytes else None
        self.events.append(("copy", load.argument, target, source, int(i.operands[2]), nbytes))

    def _barrier(self, address: int) -> tuple[str, int]:
        found = self.ptx.mbarriers.get(address - BASE)
        assert found is not None, f"no mbarrier at {address - BASE}"
        return found


# ---- instructions -----------------------------------------------------------------------------------------------------

Action = Callable[["Execution"], None]
_PROTOCOL = ("mbarrier", "cp", "fence", "tensormap", "bar", "barrier", "wgmma", "setmaxnreg", "griddepcontrol")


class Decoded(NamedTuple):
    """guard, wanted: the predicate register it is subject to, and its value then; target: of a branch; action: what it does,
    None for branches, returns and votes; compute: the same, if it does nothing but arithmetic and nobody watches."""

    instruction: Instruction
    guard: str | None
    wanted: bool
    target: int | None
    action: Action | None
    compute: Callable[[Registers], None] | None


@functools.lru_cache(maxsize=8)
def _decoded(ptx: Ptx, watched: bool) -> list[Decoded]:
    """The kernel's instructions, each looked at once. Unless somebody watches, without those that only make data."""
    sources = [_sources(i, ptx) for i in ptx.instructions]
    data: set[str] = set() if watched else _data(ptx, sources)
    kept = [
        i.guard is not None or data.isdisjoint(defined(i)) or not _makes_data(of, data)
        for i, of in zip(ptx.instructions, sources, strict=True)
    ]
    new = [0, *itertools.accumulate(kept)]
    found = []
    for i in itertools.compress(ptx.instructions, kept):
        target = new[ptx.labels[i.operands[0]]] if i.is_a("bra") else None
        guard = i.guard.lstrip("!") if i.guard is not None else None
        compute = computation(i) if not watched and _is_arithmetic(i) else None
        action = None if compute or i.is_a("bra", "ret", "vote.sync.ballot", "shfl") else _action(i)
        found.append(Decoded(i, guard, not (i.guard or "").startswith("!"), target, action, compute))
    return found


Sources = frozenset[str] | None
ALWAYS: Sources = frozenset({"data"})


def _sources(i: Instruction, ptx: Ptx) -> Sources:
    """Registers of which one with data is enough for *i* to do nothing but to make data; None if it does something else."""
    if i.is_a("ld.shared"):
        return None if ptx.plan.queue else ALWAYS
    if i.is_a("shfl"):
        return frozenset({i.operands[1]})
    if not _is_arithmetic(i):
        return None
    return ALWAYS if computation(i) is None else frozenset(i.operands[1:])


def _makes_data(sources: Sources, data: set[str]) -> bool:
    return sources is not None and (sources is ALWAYS or not data.isdisjoint(sources))


def _data(ptx: Ptx, sources: list[Sources]) -> set[str]:
    """Registers that only ever hold data, which decides nothing: sums, what is loaded, and what is computed from these."""
    definitions: dict[str, list[Sources]] = {}
    for i, of in zip(ptx.instructions, sources, strict=True):
        for register in defined(i):
            definitions.setdefault(register, []).append(ALWAYS if i.is_a("wgmma", "mma") else of)
    found: set[str] = set()
    before = -1
    while before < len(found):
        before = len(found)
        for register, each in definitions.items():
            if register not in found and all(_makes_data(of, found) for of in each):
                found.add(register)
    return found


def _action(i: Instruction) -> Action:
    kind = i.opcode.split(".")[0]
    if kind in _PROTOCOL:
        return _protocol(i)
    if i.is_a("ld.param"):
        return _from_parameter(i)
    if kind == "elect":
        to = i.operands[0].split("|")[1]
        return lambda thread: thread.registers.__setitem__(to, int(thread.lane == LEADER))
    if kind == "mapa":
        return lambda thread: thread._map(i)
    if i.is_a("st.async", "red.async"):
        return lambda thread: thread._store_words(i)
    if i.is_a("st.global"):
        return lambda thread: thread._store(i)
    if kind in ("st", "stmatrix", "prefetch"):
        return lambda thread: None
    if kind == "atom":
        return lambda thread: thread._add(i)
    if i.is_a("ld.shared", "ld.global"):
        return lambda thread: thread._load(i)
    if i.opcode == "mov.b64" and "{" in "".join(i.operands):
        return lambda thread: thread._move_halves(i)
    compute = computation(i) if _is_arithmetic(i) else None
    if compute is None:  # data
        nothing = dict.fromkeys(registers_in(i.operands[0]))
        return lambda thread: thread.registers.update(nothing)
    return lambda thread: compute(thread.registers)


def _protocol(i: Instruction) -> Action:
    """What the hardware is asked for."""
    method = next((method for prefix, method in _METHODS.items() if i.is_a(prefix)), None)
    if method is None and i.is_a("cp") and not i.is_a("cp.async.bulk.commit_group", "cp.async.bulk.wait_group"):
        method = Execution._bulk
    if method is None and i.is_a("bar") and not i.is_a("bar.warp"):
        method = Execution._meet
    if method is not None:
        return lambda thread: method(thread, i)
    event = _event(i)
    return lambda thread: thread.events.append(event)


_METHODS: dict[str, Callable[[Execution, Instruction], None]] = {
    "mbarrier": Execution._mbarrier,
    "cp.async.mbarrier": Execution._arrive_for_copies,
    "cp.async.bulk.prefetch": Execution._prefetch,
    "cp.async.ca": Execution._copy,
    "cp.async.cg": Execution._copy,
    "wgmma.mma_async": Execution._wgmma,
    "tensormap.replace": Execution._replace,
    "tensormap.cp_fenceproxy": Execution._hand_over,
    "fence.proxy.tensormap::generic": Execution._acquire,
}


def _event(i: Instruction) -> Event:
    """Of an instruction whose event does not depend on registers."""
    if i.is_a("cp.async.bulk.commit_group"):
        return ("commit",)
    if i.is_a("cp.async.bulk.wait_group"):
        return "wait_group", int(i.operands[0]), i.has("read")
    if i.is_a("fence.proxy.async"):
        return ("proxy_fence_global" if i.has("global") else "proxy_fence",)
    if i.is_a("fence.mbarrier_init"):
        return ("init_fence",)
    if i.is_a("barrier.cluster"):
        arrives = i.is_a("barrier.cluster.arrive")
        scope = ("relaxed" if i.has("relaxed") else "cluster",) if arrives else ()
        return f"cluster_{i.opcode.split('.')[2]}", *scope
    if i.is_a("bar.warp"):
        return ("warp_sync",)
    if i.is_a("setmaxnreg"):
        return "setmaxnreg", int(i.operands[0]), i.has("inc")
    if i.is_a("griddepcontrol"):
        return ("grid_" + i.opcode.split(".")[1],)
    assert i.is_a("wgmma"), i
    what = i.opcode.split(".")[1].removesuffix("_group")
    return f"wgmma_{what}", *(int(operand) for operand in i.operands)


_OTHER = (*_PROTOCOL, "ld.param", "elect", "mapa", "st", "stmatrix", "prefetch", "atom", "ld.shared", "ld.global", "shfl",
          "vote", "bra", "ret")  # fmt: skip


def _is_arithmetic(i: Instruction) -> bool:
    """Whether *i* computes one register from registers and numbers, and does nothing else."""
    return not i.is_a(*_OTHER) and "[" not in "".join(i.operands[1:]) and "{" not in "".join(i.operands)


def _from_parameter(i: Instruction) -> Action:
    match = re.fullmatch(r"\[\w+_param_(\d+)(?:\+(\d+))?\]", i.operands[1])
    assert match, i
    number, offset, width = int(match[1]), int(match[2] or 0), 1 if i.opcode.endswith(".b8") else 4
    parts = {register: offset + n * width for n, register in enumerate(registers_in(i.operands[0]))}

    def load(thread: Execution) -> None:
        for register, at in parts.items():
            thread.registers[register] = thread.parameters[number][at]

    return load


def _resumed(program: Generator[Asked, Any, None], value: Any) -> Asked | None:
    """What the thread asks next, None after its end."""
    try:
        return program.send(value)
    except StopIteration:
        return None


def _descriptor(value: int) -> tuple[int, int, int, int]:
    """Of a wgmma operand: first byte, leading and stride offsets, swizzle span; all in bytes (PTX ISA, matrix-descriptor)."""
    start, leading, stride = ((value >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    assert value >> 46 & 0xFFFF == 0, "base offset, and bits that must be zero"
    return start - BASE, leading, stride, {0: 0, 1: 128, 2: 64, 3: 32}[value >> 62]
