"""Executes emitted PTX, one thread at a time, and lowers what the CPU reading did to the same events.

A thread alone computes all its indices, parities, addresses and coordinates from its place, the tensors' extents and the
divisors of the host, and no wait changes them. So every wait succeeds at once, and what the thread asks of the hardware
can be written down and compared with `tests.unit.fake_isa`, event by event.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Generator, Iterable
from typing import Any

import attrs

from tests.oracle.ptx import LEADER, SHARED, Instruction, Ptx
from tests.unit.fake_isa import Event
from tmapipe.plan.model import Load, Matmul, Plan, Store
from tmapipe.tiles.gpc_places import keep_places

__all__ = ["Event", "Execution", "Launch", "lower"]

TABLES = 1 << 40  # where tables are put in global memory, a megabyte apart
COUNTERS = 1 << 50  # where those of a queued order are put
BASE = 1024  # where dynamic shared memory is put: with all of it, addresses must fit the 18 bits of wgmma descriptors


@attrs.frozen
class Launch:
    """extents: of each tensor, with batch dimensions; clusters: in the grid; cluster_id, cta_rank: this CTA's place; tables:
    their entries."""

    extents: dict[str, tuple[int, ...]]
    clusters: int = 1
    cluster_id: int = 0
    cta_rank: int = 0
    tables: dict[str, tuple[int, ...]] = attrs.field(factory=dict)


@attrs.frozen
class Peer:
    """An address in the shared memory of another CTA of the cluster."""

    address: int
    rank: int


class Execution:
    """One thread of one CTA. events: as `lower` writes them.

    words: what the slots of a dynamic order's queue hold, one after another. With these, other lanes than the first take from
    shfl what the first one has.
    """

    def __init__(self, ptx: Ptx, schedule: Any, launch: Launch, warp: int, lane: int = LEADER, words: Any = ()):
        self.launch, self.words = launch, list(words)
        others = range(max(map(len, launch.tables.values()), default=0))  # lanes that look at an entry
        self.voters = {other: (ptx, schedule, launch, warp, other) for other in others if other != lane}
        self.added: Counter[int] = Counter()  # to each counter, so far; all clusters add to it in turn
        self.from_lane_0: list[Any] = []  # what each shfl gave, so far
        self.broadcast: list[Any] | None = None
        if lane != 0 and words:
            first = Execution(ptx, schedule, launch, warp, 0, words)
            first.run()
            self.broadcast = first.from_lane_0
        self.ptx, self.plan, self.lane = ptx, ptx.plan, lane
        size = self.plan.cluster_size
        self.registers: dict[str, Any] = {
            "%tid.x": 32 * warp + lane,
            "%laneid": lane,
            "%ctaid.x": launch.cluster_id * size + launch.cta_rank,
            "%cluster_ctarank": launch.cta_rank,
            "%smid": 5,
            SHARED: BASE,
        }
        self.parameters = _parameters(ptx, schedule, launch)
        self.events: list[Event] = []

    def run(self, limit: int = 400_000) -> list[Event]:
        """Executes the thread, and with it the others of its warp that vote on entries of a table."""
        lanes = {self.lane: self, **{lane: Execution(*place) for lane, place in self.voters.items()}}
        programs = {lane: execution._program(limit) for lane, execution in lanes.items()}
        votes = {lane: next(program, None) for lane, program in programs.items()}
        while votes[self.lane] is not None:
            ballot = sum(bool(vote) << lane for lane, vote in votes.items())
            votes = {lane: _resumed(programs[lane], ballot) for lane in votes}
        return self.events

    def _program(self, limit: int) -> Generator[Any, int, None]:
        """Executes up to each vote, which it yields, to be sent the ballot."""
        at, program = 0, self.ptx.instructions
        for _ in range(limit):
            instruction = program[at]
            at += 1
            if instruction.guard is not None:
                wanted = not instruction.guard.startswith("!")
                found = self.registers[instruction.guard.lstrip("!")]
                assert found is not None, f"line {instruction.line} depends on data"
                if bool(found) != wanted:
                    continue
            if instruction.is_a("bra"):
                at = self.ptx.labels[instruction.operands[0]]
            elif instruction.is_a("ret"):
                return
            elif instruction.is_a("vote.sync.ballot"):
                self.registers[instruction.operands[0]] = yield self._value(instruction.operands[1])
            else:
                self._step(instruction)
        raise AssertionError(f"still running after {limit} instructions")

    # ---- values ---------------------------------------------------------------------------------------------------

    def _value(self, operand: str) -> Any:
        if re.fullmatch(r"-?\d+", operand):
            return int(operand)
        if operand in self.registers:
            return self.registers[operand]
        return operand if not operand.startswith("%") else None

    def _address(self, operand: str) -> Any:
        terms = [self._value(term) for term in operand.strip("[]").split("+")]
        assert all(isinstance(term, (int, Peer)) for term in terms), operand
        return terms[0] if len(terms) == 1 else sum(terms)

    def _step(self, i: Instruction) -> None:
        kind, *words = i.opcode.split(".")
        if kind in ("mbarrier", "cp", "fence", "bar", "barrier", "wgmma", "setmaxnreg", "griddepcontrol"):
            self._protocol(i)
        elif i.is_a("ld.param"):
            match = re.fullmatch(r"\[\w+_param_(\d+)(?:\+(\d+))?\]", i.operands[1])
            assert match, i
            offset, width = int(match[2] or 0), 1 if words[-1] == "b8" else 4
            for n, register in enumerate(re.findall(r"%\w+", i.operands[0])):
                self.registers[register] = self.parameters[int(match[1])][offset + n * width]
        elif kind == "elect":
            self.registers[i.operands[0].split("|")[1]] = int(self.lane == LEADER)
        elif kind == "mapa":
            self.registers[i.operands[0]] = Peer(self._value(i.operands[1]), self._value(i.operands[2]))
        elif i.is_a("st.async"):
            self._store_words(i)
        elif kind in ("st", "stmatrix", "prefetch"):
            pass
        elif kind == "atom":
            counter = self._address(i.operands[1])
            assert counter >= COUNTERS
            self.registers[i.operands[0]] = self.launch.cluster_id + self.added[counter] * self.launch.clusters
            self.added[counter] += 1
        elif i.is_a("ld.shared") and self._is_word(i.operands[1]):
            self._read_words(i)
        elif i.is_a("ld.global") and isinstance(self._address(i.operands[1]), int) and self.launch.tables:
            table, offset = divmod(self._address(i.operands[1]) - TABLES, 1 << 20)
            self.registers[i.operands[0]] = list(self.launch.tables.values())[table][offset // 4] & 0xFFFFFFFF
        elif kind == "shfl":
            value = self._value(i.operands[1]) if self.broadcast is None else self.broadcast[len(self.from_lane_0)]
            self.from_lane_0.append(value)
            self.registers[i.operands[0].split("|")[0]] = value
        elif i.opcode == "mov.b64" and "{" in "".join(i.operands):
            self._move_halves(i)
        elif "[" in "".join(i.operands[1:]) or "{" in i.operands[0]:
            self.registers.update(dict.fromkeys(re.findall(r"%\w+", i.operands[0])))  # data: from memory, or several
        else:
            values = [self._value(operand) for operand in i.operands[1:]]
            self.registers[i.operands[0]] = _compute(i, kind, words, values)

    def _move_halves(self, i: Instruction) -> None:
        """``mov.b64 wide, {low, high}`` and ``mov.b64 {low, high}, wide``."""
        to, source = (re.findall(r"%\w+", operand) for operand in i.operands)
        if len(to) == 1:
            low, high = (_read(self._value(half), "u32") for half in source)
            self.registers[to[0]] = None if low is None or high is None else low | high << 32
        else:
            wide = self._value(source[0])
            for n, half in enumerate(to):
                self.registers[half] = None if wide is None else wide >> 32 * n & 0xFFFFFFFF

    # ---- tiles in dynamic order -----------------------------------------------------------------------------------

    def _store_words(self, i: Instruction) -> None:
        target, barrier = self._address(i.operands[0]), self._address(i.operands[2])
        assert target.rank == barrier.rank
        values = tuple(_signed(self._value(word.strip()), 32) for word in i.operands[1].strip("{}").split(","))
        place = self._barrier(barrier.address)
        self.events.append(("store_words", target.address - BASE, values, *place, target.rank))

    def _is_word(self, operand: str) -> bool:
        queue = self.plan.queue
        place = self._address(operand) - BASE if queue else 0
        return queue is not None and 0 <= place - queue.buffer.offset < queue.buffer.stages * queue.buffer.slot_bytes

    def _read_words(self, i: Instruction) -> None:
        assert self.plan.queue is not None
        name, buffer = self.plan.queue.full.name, self.plan.queue.buffer
        waits = [event for event in self.events if event[:2] == ("wait", name)]
        place = self._address(i.operands[1]) - BASE - buffer.offset - waits[-1][2] * buffer.slot_bytes
        assert 0 <= place < buffer.slot_bytes, "a word of another slot than the one waited for"
        for n, register in enumerate(re.findall(r"%\w+", i.operands[0])):
            words = self.words[len(waits) - 1]
            self.registers[register] = words[place // 4 + n] if place // 4 + n < len(words) else None

    # ---- what the hardware is asked for ---------------------------------------------------------------------------

    def _protocol(self, i: Instruction) -> None:
        if i.is_a("mbarrier"):
            self._mbarrier(i)
        elif i.is_a("cp.async.bulk.commit_group"):
            self.events.append(("commit",))
        elif i.is_a("cp.async.bulk.wait_group"):
            self.events.append(("wait_group", int(i.operands[0]), i.has("read")))
        elif i.is_a("cp"):
            self._bulk(i)
        elif i.is_a("fence.proxy.async"):
            self.events.append(("proxy_fence",))
        elif i.is_a("fence.mbarrier_init"):
            self.events.append(("init_fence",))
        elif i.is_a("barrier.cluster"):
            arrives = i.is_a("barrier.cluster.arrive")
            scope = ("relaxed" if i.has("relaxed") else "cluster",) if arrives else ()
            self.events.append((f"cluster_{i.opcode.split('.')[2]}", *scope))
        elif i.is_a("bar.warp"):
            self.events.append(("warp_sync",))
        elif i.is_a("bar"):
            numbers = tuple(self._value(operand) for operand in i.operands)
            self.events.append(("cta_sync",) if numbers == (0,) else ("named_sync", *numbers))
        elif i.is_a("setmaxnreg"):
            self.events.append(("setmaxnreg", int(i.operands[0]), i.has("inc")))
        elif i.is_a("griddepcontrol"):
            self.events.append(("grid_" + i.opcode.split(".")[1],))
        elif i.is_a("wgmma.mma_async"):
            shape = next(word for word in i.opcode.split(".") if re.fullmatch(r"m\d+n\d+k\d+", word))
            operands = [_descriptor(self._value(operand)) for operand in i.operands[1:3]]
            kept = i.operands[-2:] if re.search(r"f16\.b?f16$", i.opcode) else ("0", "0")
            self.events.append(("wgmma", shape, *operands, tuple(flag == "1" for flag in kept)))  # imm-trans of a and b
        else:
            what = i.opcode.split(".")[1].removesuffix("_group")
            self.events.append((f"wgmma_{what}", *(int(operand) for operand in i.operands)))

    def _mbarrier(self, i: Instruction) -> None:
        where = next(n for n, operand in enumerate(i.operands) if "[" in operand)
        address = self._address(i.operands[where])
        argument = self._value(i.operands[where + 1]) if len(i.operands) > where + 1 else 1
        if isinstance(address, Peer):
            assert argument == 1
            self.events.append(("arrive_at", *self._barrier(address.address), address.rank))
        elif i.is_a("mbarrier.init"):
            self.events.append(("init", *self._barrier(address), argument))
        elif i.is_a("mbarrier.try_wait"):
            self.events.append(("wait", *self._barrier(address), argument))
        elif i.has("expect_tx"):
            self.events.append(("arm", *self._barrier(address), argument))
        else:
            assert argument == 1
            self.events.append(("arrive", *self._barrier(address)))

    def _bulk(self, i: Instruction) -> None:
        load = not i.has("bulk_group")
        tensor, at = re.fullmatch(r"\[(%\w+), \{(.*)\}\]", i.operands[1 if load else 0]).groups()  # type: ignore[union-attr]
        coordinates = tuple(_signed(self._value(each.strip()), 32) for each in at.split(","))
        offset = self._address(i.operands[0 if load else 1]) - BASE
        name = self.parameters[int(self._value(tensor).rpartition("_")[2])][0]
        if load:
            mask = self._value(i.operands[3]) if i.has("multicast::cluster") else None
            barrier = self._barrier(self._address(i.operands[2]))
            self.events.append(("load", name, offset, coordinates, *barrier, mask))
        else:
            self.events.append(("reduce" if i.is_a("cp.reduce") else "store", name, offset, coordinates))

    def _barrier(self, address: int) -> tuple[str, int]:
        for barrier in self.plan.barriers:
            stage, rest = divmod(address - BASE - barrier.offset, 8)
            if 0 <= stage < barrier.stages and rest == 0:
                return barrier.name, stage
        raise AssertionError(f"no mbarrier at {address - BASE}")


# ---- arithmetic -------------------------------------------------------------------------------------------------------

_ORDERS = {"eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
           "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b}  # fmt: skip


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _read(value: Any, kind: str) -> Any:
    """*value* as an operand of type *kind* ("u32", "s64", "b16", "pred")."""
    if not isinstance(value, int) or kind == "pred":
        return value
    bits = int(kind[1:])
    return _signed(value, bits) if kind[0] == "s" else value & ((1 << bits) - 1)


def _compute(i: Instruction, kind: str, words: list[str], values: list[Any]) -> Any:
    if any(value is None for value in values) or words[-1][:1] == "f" or "rn" in words:
        return None  # data, which decides nothing
    if kind in ("mov", "cvta"):
        return int(values[0] != 0) if words[-1] == "pred" else values[0]
    if kind == "cvt":
        return _read(_read(values[0], words[-1]), "u" + words[-2][1:]) if isinstance(values[0], int) else values[0]
    if kind == "selp":
        return values[0] if values[2] else values[1]
    if kind == "setp":
        return int(_ORDERS[words[0]](*(_read(value, words[-1]) for value in values)))
    return _arithmetic(i, kind, words, values)


def _arithmetic(i: Instruction, kind: str, words: list[str], values: list[Any]) -> int:
    if words[-1] == "pred":
        return {"not": lambda a, b: 1 - a, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
                "xor": lambda a, b: a ^ b}[kind](values[0], values[-1])  # fmt: skip
    bits = int(words[-1][1:])
    a, b = (_read(value, words[-1]) for value in (values[0], values[min(1, len(values) - 1)]))
    found = {
        "add": lambda: a + b, "sub": lambda: a - b, "neg": lambda: -a, "not": lambda: ~a, "and": lambda: a & b,
        "or": lambda: a | b, "xor": lambda: a ^ b, "min": lambda: min(a, b), "max": lambda: max(a, b),
        "div": lambda: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
        "rem": lambda: abs(a) % abs(b) * (-1 if a < 0 else 1),
        "shl": lambda: a << (values[1] & 63), "shr": lambda: a >> (values[1] & 63),
        "mul": lambda: (a * b) >> bits if words[0] == "hi" else a * b,
        "mad": lambda: a * b + _read(values[2], words[-1]), "popc": lambda: a.bit_count(),
        "shf": lambda: ((b << bits | a) << (values[2] & 31)) >> bits,  # shf.l.wrap
    }  # fmt: skip
    assert kind in found and (kind == "mul" or "wide" not in words), f"line {i.line}: {i.opcode} is not known"
    return found[kind]() & ((1 << (2 * bits if words[0] == "wide" else bits)) - 1)


# ---- parameters -------------------------------------------------------------------------------------------------------


def _parameters(ptx: Ptx, schedule: Any, launch: Launch) -> list[dict[int, Any]]:
    """By parameter, then by byte offset: for each transfer its descriptor and its extents, then for each load's edge, for each
    divisor its fast division (struct, and divisor), then the number of clusters."""
    plan = ptx.plan
    found: list[dict[int, Any]] = []
    for part in (*plan.transfers, *(load for load in plan.loads if load.edge_rows)):
        name, core, extents = part.argument, len(part.buffer.tile), launch.extents[part.argument]
        ordered = (*extents[len(extents) - core :], *extents[: len(extents) - core])
        if isinstance(part, Store) and part.clipped:
            ordered = extents[1], extents[0] + 1  # after a slot's rows, which are a constant
        found += [{0: name}, {4 * n: extent for n, extent in enumerate(ordered)}]
    grid = schedule.grid(lambda name, i: launch.extents[name][i])
    for divisor in schedule.tiles.divisors(grid, plan.cluster, launch.clusters).values():
        found += [_fast_division(divisor), {0: divisor}]
    tables = [{0: TABLES + (i << 20), 8: len(entries)} for i, entries in enumerate(launch.tables.values())]
    kept = keep_places((), 1, launch.clusters, launch.clusters)[1:]  # all for whoever comes
    return [*found, {0: launch.clusters}, *tables, {0: COUNTERS}, *({0: word} for word in kept)]


def _resumed(program: Generator[Any, int, None], ballot: int) -> Any:
    """The thread's next vote, None after its last."""
    try:
        return program.send(ballot)
    except StopIteration:
        return None


def _fast_division(divisor: int) -> dict[int, int]:
    """x // d = (((x - h) >> s1) + h) >> s2 with h = x * m >> 32 (Granlund and Montgomery, 1994)."""
    length = (divisor - 1).bit_length()
    multiplier = (((1 << length) - divisor) << 32) // divisor + 1
    return {0: divisor, 4: multiplier, 8: min(length, 1), 9: max(length - 1, 0)}


# ---- the other side ---------------------------------------------------------------------------------------------------


def _descriptor(value: int) -> tuple[int, int, int, int]:
    """Of a wgmma operand: first byte, leading and stride offsets, swizzle span; all in bytes (PTX ISA, matrix-descriptor)."""
    start, leading, stride = ((value >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    assert value >> 46 & 0xFFFF == 0, "base offset, and bits that must be zero"
    return start - BASE, leading, stride, {0: 0, 1: 128, 2: 64, 3: 32}[value >> 62]


def lower(events: Iterable[Event], plan: Plan, launch: Launch, warp: int, lane: int = LEADER) -> list[Event]:
    """What one lane of the warp asks of the hardware, for the events of `RecordingIsa`."""
    return [lowered for event in events for lowered in _lower(event, plan, launch, warp, lane)]


def _lower(event: Event, plan: Plan, launch: Launch, warp: int, lane: int) -> list[Event]:
    kind, *rest = event
    leader = lane == LEADER
    if kind == "store_words":
        start = plan.buffer(rest[0]).offset + rest[1] * plan.buffer(rest[0]).slot_bytes
        words = (*rest[2], *[0] * 8)[: plan.buffer(rest[0]).tile[0]]
        found = [(kind, start + 4 * i, words[i : i + 4], rest[3], rest[1], lane) for i in range(0, len(words), 4)]
        return found if lane < plan.cluster_size else []
    if kind in (
        "prefetch", "read", "write", "write_columns", "write_row_sums", "write_column_sums", "read_columns", "promote",
        "read_words", "next_number", "claim_place",
        "places_claimed",
    ):  # fmt: skip
        return []
    if kind in ("init", "arm", "expect", "commit"):
        return [event] if leader else []
    if kind == "arrive":
        return [(kind, *rest[:2])] if lane == 0 or rest[2] == 32 else []
    if kind == "arrive_cluster":
        return [("arrive_at", *rest[:2], lane)] if rest[2] >> lane & 1 else []
    if kind == "wait_group":
        return [event, ("warp_sync",)] if leader else [("warp_sync",)]
    if kind == "named_sync":
        barrier = plan.named_barrier(rest[0])
        return [(kind, barrier.id + rest[1], barrier.threads)]
    if kind == "load":
        return _boxes(plan.load(rest[0]), launch, *rest[1:]) if leader else []
    if kind == "store":
        return _store_boxes(plan.store(rest[0]), *rest[1:]) if leader else []
    if kind == "wgmma":
        return _wgmmas(plan.matmul(rest[0]), warp, *rest[1:])
    return [event]


def _pieces(
    part: Load | Store, stage: int, at: tuple[int, ...], share: int, peers: int, least: int = 0
) -> list[tuple[int, Any]]:
    """(offset in shared memory, coordinates) of each TMA instruction, one a box, or with *least* one of so many rows. A slot
    is laid out in column blocks of one swizzle span (or the whole row, without), each block row by row; coordinates run from
    the contiguous dimension outwards."""
    buffer = part.buffer
    *outer, inner = buffer.tile
    rows = outer[0] if outer else 1
    width = part.box[-1]
    span, height = width if buffer.swizzle else inner, least or (part.box[0] if outer else 1)
    start = buffer.offset + stage * buffer.slot_bytes
    *batch, row, column = at if outer else (*at[:-1], 0, at[-1])
    batch = batch[len(part.folded) :] if isinstance(part, Store) else batch
    found = []
    for first in range(share * rows // peers, (share + 1) * rows // peers, height):
        for left in range(0, inner, width):
            offset = (left // span * rows + first) * span + left % span
            place = (column + left, *((row + first,) if outer else ()), *batch)
            found.append((start + offset * buffer.dtype.bytes, place))
    return found


def _boxes(
    load: Load, launch: Launch, stage: int, at: tuple[int, ...], barrier: str, mask: int | None, share: int
) -> list[Event]:
    extent = launch.extents[load.argument][-2] if load.edge_rows else None
    if extent is None or at[-2] + load.tile[-2] <= extent:
        pieces = _pieces(load, stage, at, share, load.peers)
    else:  # boxes of some rows, the tile's first again (or the tensor's) instead of those outside
        again = at[-2] if at[-2] < extent else 0
        pieces = [
            (offset, (place[0], place[1] if place[1] < extent else again, *place[2:]))
            for offset, place in _pieces(load, stage, at, share, load.peers, load.edge_rows)
        ]
    return [("load", load.argument, offset, place, barrier, stage, mask) for offset, place in pieces]


def _store_boxes(store: Store, stage: int, at: tuple[int, ...], rows: int | None = None) -> list[Event]:
    kind = "reduce" if store.reduce else "store"
    if rows is not None:  # of overlapping rows, see `tmapipe.gpu.layouts.clipped`
        at = at[0] + rows, store.buffer.tile[0] - rows, at[1]
    return [(kind, store.argument, offset, place) for offset, place in _pieces(store, stage, at, 0, 1)]


def _wgmmas(matmul: Matmul, warp: int, a_stage: int, b_stage: int) -> list[Event]:
    """One instruction a 64-row block and 32 bytes of k, or two side by side along n."""
    m, group, per_32 = matmul.shape[0], matmul.group(warp), 32 // matmul.a.dtype.bytes
    columns = list(itertools.accumulate(matmul.n_instructions, initial=0))
    found: list[Event] = []
    for k in range(matmul.k_instructions):
        for (left, right), block in itertools.product(
            itertools.pairwise(columns), range(m // (64 * matmul.warpgroups))
        ):
            first = 64 * (block * matmul.warpgroups + group)
            a = _operand(matmul.a, a_stage, first, 64, per_32 * k, matmul.transposed[0])
            b = _operand(matmul.b, b_stage, left, right - left, per_32 * k, matmul.transposed[1])
            found.append(("wgmma", f"m64n{right - left}k{per_32}", a, b, matmul.transposed))
    return found


def _operand(buffer: Any, stage: int, side: int, count: int, k: int, transposed: bool) -> tuple[int, int, int, int]:
    """The descriptor (as of `_descriptor`) of *count* rows from element [side, k] of an operand on, or from [k, side] of a
    transposed one. A slot lies in column blocks of one swizzle span, in which 8 of its rows take 8 spans: the stride offset.
    Along k an instruction stays within a block, and the leading offset (1 unit) is not looked at. Transposed, it takes as many
    blocks as its rows fill, a leading offset apart (0, and not looked at, if that is one)."""
    row, column = (k, side) if transposed else (side, k)
    span, rows = buffer.swizzle, buffer.tile[0]
    byte = column * buffer.dtype.bytes
    start = buffer.offset + stage * buffer.slot_bytes + (byte // span * rows + row) * span + byte % span
    leading = 16
    if transposed:
        leading = rows * span if count * buffer.dtype.bytes > span else 0
    return start, leading, 8 * span, span
