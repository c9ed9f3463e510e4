"""What each PTX instruction does to a launch (`ptx_machine`), and which wait for others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.oracle.ptx import Instruction
from tests.oracle.ptx_copies import Act, Numbers, address, copying, each
from tests.oracle.ptx_matmuls import multiplying, multiplying_in_warps
from tests.oracle.ptx_memory import PEER, Wrong
from tests.oracle.ptx_numbers import arithmetic, kind_of, reader, reduction, unsigned

__all__ = ["WAITS", "Wait", "action"]


class Wait(NamedTuple):
    """arrive: what a thread does once before it waits; test: which of some threads need not wait any longer."""

    arrive: Callable[[Any, np.ndarray], None] | None
    test: Callable[[Any, np.ndarray], np.ndarray]


# ---- loads and stores -------------------------------------------------------------------------------------------------


def _parts(operand: str) -> list[str]:
    return [part.strip() for part in operand.strip("{} ").split(",")]


def _size(words: list[str]) -> tuple[int, int]:
    """(elements, bytes of one) of a load or store."""
    count = next((int(word[1:]) for word in words if re.fullmatch(r"v\d", word)), 1)
    return count, kind_of(words[-1]).itemsize


def _load(i: Instruction) -> Act:
    words = i.opcode.split(".")
    if words[1] == "param":
        return _from_parameter(i)
    (count, size), to, where, signed = _size(words), _parts(i.operands[0]), address(i.operands[1]), words[-1][0] == "s"

    def load(machine: Any, at: Any) -> None:
        memory, bytes_, place = _place(machine, at, words, where(machine, at), count * size)
        for n, register in enumerate(to):
            value = memory.load(bytes_, place + n * size, size)
            if register != "_":
                machine.write(register, at, value.view(f"i{size}").astype(np.int64) if signed else value)

    return load


def _place(machine: Any, at: Any, words: list[str], where: Any, size: int) -> tuple[Any, np.ndarray, Any]:
    """The memory, its bytes, and where in these."""
    if (where % size).any():
        raise Wrong(f"an address that is no multiple of {size} bytes")
    if any(word.startswith("shared") for word in words):
        return machine.memory, machine.memory.shared, machine.memory.in_shared(where, machine.cta[at], size)
    if "global" not in words:
        raise NotImplementedError(".".join(words))
    return machine.memory, machine.memory.whole, machine.memory.in_global(where, size)


def _from_parameter(i: Instruction) -> Act:
    words = i.opcode.split(".")
    found = re.fullmatch(r"\[\w+_param_(\d+)(?:\+(\d+))?\]", i.operands[1])
    assert found, i
    (_, size), number, offset = _size(words), int(found[1]), int(found[2] or 0)

    def load(machine: Any, at: Any) -> None:
        for n, register in enumerate(_parts(i.operands[0])):
            value = machine.values[number][offset + n * size : offset + (n + 1) * size]
            if len(value) != size:
                raise Wrong(f"parameter {number} has no {size} bytes at {offset + n * size}")
            machine.write(register, at, np.frombuffer(value, f"u{size}")[0])

    return load


def _store(i: Instruction) -> Act:
    if i.is_a("st.async"):
        return _store_to_peer(i)
    words = i.opcode.split(".")
    (count, size), where = _size(words), address(i.operands[0])
    values = [reader(part, f"b{8 * size}") for part in _parts(i.operands[1])]

    def store(machine: Any, at: Any) -> None:
        memory, bytes_, place = _place(machine, at, words, where(machine, at), count * size)
        for n, value in enumerate(values):
            memory.store(bytes_, place + n * size, value(machine, at), size)

    return store


def _store_to_peer(i: Instruction) -> Act:
    words = i.opcode.split(".")
    (_, size), where, bar = _size(words), address(i.operands[0]), address(i.operands[2])
    values = [each(part, f"b{8 * size}") for part in _parts(i.operands[1])]

    def store(machine: Any, at: Any) -> None:
        memory, cta = machine.memory, machine.cta[at]
        places = memory.in_shared(where(machine, at), cta, size * len(values))
        bars = memory.in_shared(bar(machine, at), cta, 8)
        data = [value(machine, at).copy() for value in values]
        for n in range(len(places)):

            def move(n: int = n) -> None:
                for part, value in enumerate(data):
                    memory.store(memory.shared, places[n : n + 1] + part * size, value[n], size)
                machine.barriers.complete(int(bars[n]), size * len(data))

            machine.engine.later(move)

    return store


def _atom(i: Instruction) -> Act:
    """One thread after the other."""
    words = i.opcode.split(".")
    size, where, value = kind_of(words[-1]).itemsize, address(i.operands[-2]), each(i.operands[-1], words[-1])
    combine = reduction(
        next(word for word in words[2:] if word in ("add", "min", "max", "and", "or", "xor")), words[-1]
    )

    def execute(machine: Any, at: Any) -> None:
        memory, bytes_, places = _place(machine, at, words, where(machine, at), size)
        more = unsigned(np.ascontiguousarray(value(machine, at)))
        for n, thread in enumerate(machine.numbers(at)):
            before = memory.load(bytes_, places[n : n + 1], size)
            memory.store(bytes_, places[n : n + 1], combine(before, more[n : n + 1]), size)
            if i.is_a("atom"):
                machine.write(i.operands[0], slice(thread, thread + 1), before)

    return execute


# ---- warps ------------------------------------------------------------------------------------------------------------


def _together(i: Instruction) -> Wait:
    """Until all lanes of the warp are there that are named and have not ended."""
    named = i.operands[-1] if i.operands and not i.is_a("stmatrix", "ldmatrix", "wgmma") else "-1"
    if i.is_a("bar.warp"):
        named = i.operands[0]
    members = each(named)

    def test(machine: Any, group: np.ndarray) -> np.ndarray:
        if len(group) % 32 == 0 and group[-1] - group[0] + 1 == len(group) and group[0] % 32 == 0:
            return np.ones(len(group), bool)
        mask = np.zeros(machine.count, np.uint32)
        mask[group] = members(machine, group)
        warps, there = group >> 5, np.zeros(machine.count, bool)
        there[group] = True
        asked = np.bitwise_or.reduceat(mask[group], np.flatnonzero(np.diff(warps, prepend=-1)))
        of_warp = np.zeros(machine.count >> 5, np.uint32)
        of_warp[np.unique(warps)] = asked
        wanted = (of_warp[:, None] >> np.arange(32, dtype=np.uint32) & 1).astype(bool) & machine.alive.reshape(-1, 32)
        missing = (wanted & ~there.reshape(-1, 32)).any(1)
        return ~missing[warps]

    return Wait(None, test)


def _shuffle(i: Instruction) -> Act:
    how, (to, source, by, clamp, *_) = i.opcode.split(".")[2], i.operands
    to, _, valid = to.partition("|")
    value, offset, limit = reader(source, "b32"), reader(by, "s32"), reader(clamp, "s32")

    def shuffle(machine: Any, at: Any) -> None:
        threads = machine.numbers(at)
        lane, b, c = threads % 32, offset(machine, at).astype(np.int64) & 31, limit(machine, at).astype(np.int64)
        segment, most = c >> 8 & 31, c & 31
        last = (lane & segment) | (most & ~segment)
        first = lane & segment
        if how == "idx":
            j = first | (b & ~segment)
            inside = j <= last
        elif how == "up":
            j = lane - b
            inside = j >= last
        else:
            j = lane + b if how == "down" else lane ^ b
            inside = j <= last
        taken = threads - lane + np.where(inside, j, lane)
        values = machine.registers[source][taken] if source.startswith("%") else value(machine, at)
        machine.write(to, at, values)
        if valid:
            machine.write(valid, at, inside)

    return shuffle


def _elect(i: Instruction) -> Act:
    leader, _, elected = i.operands[0].partition("|")

    def elect(machine: Any, at: Any) -> None:
        threads = machine.numbers(at)
        first = np.full(machine.count >> 5, 32)
        np.minimum.at(first, threads >> 5, threads % 32)
        lowest = first[threads >> 5]
        if leader != "_":
            machine.write(leader, at, lowest.astype(np.uint32))
        machine.write(elected, at, threads % 32 == lowest)

    return elect


def _over_lanes(combine: Callable[[Any], Any], word: str, i: Instruction) -> Act:
    """A value of all lanes of a warp, which each of them gets."""
    read = each(i.operands[1], word)

    def execute(machine: Any, at: Any) -> None:
        threads, values = machine.numbers(at), read(machine, at)
        starts = np.flatnonzero(np.diff(threads >> 5, prepend=-1))
        found = [
            np.resize(combine((part, lanes)), len(part))
            for part, lanes in zip(np.split(values, starts[1:]), np.split(threads % 32, starts[1:]), strict=True)
        ]
        machine.write(i.operands[0].split("|")[0], at, np.concatenate(found))

    return execute


def _vote(i: Instruction) -> Act:
    how = i.opcode.split(".")[2]
    if how == "ballot":
        return _over_lanes(lambda of: np.uint32(sum(1 << int(lane) for lane in of[1][of[0]])), "pred", i)
    return _over_lanes(lambda of: of[0].all() if how == "all" else of[0].any(), "pred", i)


def _redux(i: Instruction) -> Act:
    how, word = i.opcode.split(".")[2], i.opcode.split(".")[-1]
    function = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
                "xor": np.bitwise_xor}[how]  # fmt: skip
    return _over_lanes(lambda of: function.reduce(of[0], dtype=of[0].dtype), word, i)


def _matrices(i: Instruction) -> Act:
    """``stmatrix`` and ``ldmatrix`` of 8x8 elements of 16 bits: lane 8 j + r names row r of matrix j, and lane 4 r + c has its
    elements 2 c and 2 c + 1; transposed, those of the columns."""
    store, flipped = i.is_a("stmatrix"), i.has("trans")
    registers = _parts(i.operands[1 if store else 0])
    where = address(i.operands[0 if store else 1])

    def execute(machine: Any, at: Any) -> None:
        threads = machine.numbers(at).reshape(-1, 32)
        rows = where(machine, at).reshape(-1, 32)
        lane = np.arange(32)
        for j, register in enumerate(registers):
            pairs = np.zeros(threads.shape, np.uint32)
            values = machine.registers[register][threads] if store else pairs
            for half in (0, 1):
                row, column = lane // 4, 2 * (lane % 4) + half
                if flipped:
                    row, column = column, row
                begins = rows[:, 8 * j + row]
                if (begins % 16).any():
                    raise Wrong("a row that does not begin at a multiple of 16 bytes")
                memory = machine.memory
                place = memory.in_shared(begins + 2 * column, machine.cta[threads], 2)
                if store:
                    memory.store(memory.shared, place, (values >> np.uint32(16 * half)).astype(np.uint16), 2)
                else:
                    found = memory.load(memory.shared, place, 2).astype(np.uint32)
                    pairs |= found << np.uint32(16 * half)
            if not store:
                machine.write(register, at, pairs.reshape(-1))

    return execute


# ---- barriers ---------------------------------------------------------------------------------------------------------


def _meeting(i: Instruction) -> tuple[Numbers, Numbers | None]:
    return each(i.operands[0]), each(i.operands[1]) if len(i.operands) > 1 else None


def _note_arrivals(i: Instruction) -> Callable[[Any, np.ndarray], None]:
    of, count = _meeting(i)

    def arrive(machine: Any, group: np.ndarray) -> None:
        ids, cta = of(machine, group), machine.cta[group]
        wanted = count(machine, group) if count else np.zeros(len(group), np.uint32)
        for key in set(zip(cta.tolist(), ids.tolist(), wanted.tolist(), strict=True)):
            some = group[(cta == key[0]) & (ids == key[1])]
            state = machine.met[key[:2]]
            machine.until[some] = state[1] + 1
            state[0] += len(some)
            _close(machine, key[:2], key[2])

    return arrive


def _close(machine: Any, key: tuple[int, int], wanted: int) -> None:
    """Ends a generation that all have come to."""
    state, first = machine.met[key], key[0] * machine.threads
    if state[0] and state[0] >= (wanted or machine.alive[first : first + machine.threads].sum()):
        state[0], state[1] = 0, state[1] + 1


def _bar(i: Instruction) -> Wait:
    of, count = _meeting(i)

    def test(machine: Any, group: np.ndarray) -> np.ndarray:
        keys = list(zip(machine.cta[group].tolist(), of(machine, group).tolist(), strict=True))
        wanted = int(count(machine, group)[0]) if count else 0
        for key in set(keys):
            _close(machine, key, wanted)
        now = {key: machine.met[key][1] for key in set(keys)}
        return np.array([now[key] for key in keys]) >= machine.until[group]

    return Wait(_note_arrivals(i), test)


def _arrive_in_cluster(machine: Any, at: Any) -> None:
    group = machine.numbers(at)
    of = machine.cta[group] // machine.cluster
    for cluster in set(of.tolist()):
        state, some = machine.met["cluster", cluster], group[of == cluster]
        machine.until[some] = state[1] + 1
        state[0] += len(some)
        if state[0] == machine.threads * machine.cluster:
            state[0], state[1] = 0, state[1] + 1


def _cluster_wait(i: Instruction) -> Wait:
    def test(machine: Any, group: np.ndarray) -> np.ndarray:
        of = machine.cta[group] // machine.cluster
        return np.array([machine.met["cluster", cluster][1] for cluster in of.tolist()]) >= machine.until[group]

    return Wait(None, test)


def _try_wait(i: Instruction) -> Wait:
    where, parity = address(i.operands[1]), each(i.operands[2])

    def test(machine: Any, group: np.ndarray) -> np.ndarray:
        places = machine.memory.in_shared(where(machine, group), machine.cta[group], 8) * 2 + (
            parity(machine, group) & 1
        )
        found, back = np.unique(places, return_inverse=True)
        return np.array([machine.barriers.passed(int(each) >> 1, int(each) & 1) for each in found])[back]

    return Wait(None, test)


def _mbarrier(i: Instruction) -> Act | None:
    if i.is_a("mbarrier.try_wait", "mbarrier.test_wait"):
        return lambda machine, at: machine.write(i.operands[0], at, np.True_)
    first = next(n for n, operand in enumerate(i.operands) if "[" in operand)
    where, argument = address(i.operands[first]), each(i.operands[first + 1] if len(i.operands) > first + 1 else "1")
    if not i.is_a("mbarrier.init", "mbarrier.arrive"):
        raise NotImplementedError(i.opcode)

    def execute(machine: Any, at: Any) -> None:
        places = machine.memory.in_shared(where(machine, at), machine.cta[at], 8)
        for place, value in zip(places.tolist(), argument(machine, at).tolist(), strict=True):
            if i.is_a("mbarrier.init"):
                machine.barriers.init(place, value)
            elif i.has("expect_tx"):
                machine.barriers.arrive(place, 1, value)
            else:
                machine.barriers.arrive(place, value)

    return execute


# ---- all --------------------------------------------------------------------------------------------------------------


def _map(i: Instruction) -> Act:
    where, rank = each(i.operands[1]), each(i.operands[2])

    def execute(machine: Any, at: Any) -> None:
        local = where(machine, at) & np.uint32((1 << PEER) - 1)
        machine.write(i.operands[0], at, local | (rank(machine, at) + np.uint32(1)) << np.uint32(PEER))

    return execute


def _barrier(i: Instruction) -> Act | None:
    if i.is_a("barrier.cluster.arrive"):
        return _arrive_in_cluster
    if i.is_a("bar.arrive", "barrier.arrive", "barrier.cta.arrive"):
        note = _note_arrivals(i)
        return lambda machine, at: note(machine, machine.numbers(at))
    return None


WAITS: dict[str, Callable[[Instruction], Wait]] = {
    **dict.fromkeys(("shfl", "vote", "redux", "elect", "bar.warp", "stmatrix", "ldmatrix", "mma"), _together),
    **dict.fromkeys(("bar.sync", "barrier.sync", "barrier.cta.sync"), _bar),
    "barrier.cluster.wait": _cluster_wait,
    "mbarrier.try_wait": _try_wait,
    "mbarrier.test_wait": _try_wait,
}
_NOTHING = ("fence", "griddepcontrol", "setmaxnreg", "prefetch", "discard", "membar", "nanosleep", "pragma")
_KINDS: dict[str, Callable[[Instruction], Act | None]] = {
    "ld": _load, "st": _store, "atom": _atom, "red": _atom, "shfl": _shuffle, "elect": _elect, "vote": _vote,
    "redux": _redux, "stmatrix": _matrices, "ldmatrix": _matrices, "mbarrier": _mbarrier, "cp": copying, "mapa": _map,
    "bar": _barrier, "barrier": _barrier, "wgmma": multiplying, "mma": multiplying_in_warps,
}  # fmt: skip


def action(i: Instruction) -> Act | None:
    """What *i* does, None for nothing. What is not known here fails when it is executed."""
    if i.is_a(*_NOTHING):
        return None
    kind = _KINDS.get(i.opcode.split(".")[0])
    try:
        return kind(i) if kind else arithmetic(i.opcode, i.operands)
    except NotImplementedError as error:
        text = str(error)

    def fail(machine: Any, at: Any) -> None:
        raise NotImplementedError(f"line {i.line}: {text}")

    return fail
