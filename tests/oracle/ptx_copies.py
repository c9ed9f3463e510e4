"""What the engines are asked for by PTX instructions: copies of boxes, of pieces of memory, and of threads (`ptx_machine`)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.oracle.ptx import Instruction
from tests.oracle.ptx_memory import Wrong
from tests.oracle.ptx_numbers import constant, kind_of, reader, reduction

__all__ = ["Act", "Numbers", "address", "copying", "each"]

Act = Callable[[Any, Any], None]
Numbers = Callable[[Any, Any], Any]


# ---- operands ---------------------------------------------------------------------------------------------------------


def address(operand: str) -> Numbers:
    """Where ``[register + offset]`` points."""
    base, _, offset = operand.strip("[] ").partition("+")
    more = int(offset or 0)
    if constant(base, kind_of("s64")) is not None:
        return lambda machine, at: np.full(len(machine.numbers(at)), int(base) + more, np.int64)
    return lambda machine, at: machine.registers[base][at].astype(np.int64) + more


def each(operand: str, word: str = "u32") -> Numbers:
    """An operand's value for each of some threads."""
    read = reader(operand, word)
    return lambda machine, at: np.broadcast_to(read(machine, at), len(machine.numbers(at)))


# ---- engines ----------------------------------------------------------------------------------------------------------


def _bulk(i: Instruction) -> Act | None:
    if i.is_a("cp.async.bulk.prefetch"):
        return None
    if i.is_a("cp.async.bulk.commit_group"):
        return lambda machine, at: [machine.engine.commit(thread) for thread in machine.numbers(at).tolist()] and None
    if i.is_a("cp.async.bulk.wait_group"):
        left = int(i.operands[0])
        return lambda machine, at: [machine.engine.wait(x, left) for x in machine.numbers(at).tolist()] and None
    if i.has("tensor"):
        return _tensor_store(i) if i.has("bulk_group") else _tensor_load(i)
    return _bulk_store(i) if i.has("bulk_group") else _bulk_load(i)


def _tensor(operand: str) -> tuple[Numbers, list[Numbers]]:
    tensor, at = re.fullmatch(r"\[(%\w+), \{(.*)\}\]", operand).groups()  # type: ignore[union-attr]
    return each(tensor, "u64"), [each(x.strip(), "s32") for x in at.split(",")]


def _box(machine: Any, place: int) -> Any:
    box = machine.boxes.get(place >> 8)
    if box is None:
        raise NotImplementedError(f"the descriptor of parameter {place >> 8}")
    return box


def _tensor_load(i: Instruction) -> Act:
    if not i.has("tile"):
        raise NotImplementedError(i.opcode)
    (tensor, coordinates), where, bar = _tensor(i.operands[1]), address(i.operands[0]), address(i.operands[2])
    mask = each(i.operands[3], "u16") if i.has("multicast::cluster") else None

    def load(machine: Any, at: Any) -> None:
        memory, threads = machine.memory, machine.numbers(at)
        tensors, places = tensor(machine, at), [each(machine, at) for each in coordinates]
        targets, bars, masks = where(machine, at), bar(machine, at), mask(machine, at) if mask else None
        for n, thread in enumerate(threads):
            cta, box = machine.cta[thread], _box(machine, int(tensors[n]))
            corner = [int(each[n]) for each in places]
            if len(corner) != len(box.box):
                raise Wrong(f"{len(corner)} coordinates of a tensor of {len(box.box)} dimensions")
            first = cta // machine.cluster * machine.cluster
            peers = [cta] if masks is None else [first + r for r in range(machine.cluster) if int(masks[n]) >> r & 1]
            for peer in peers:
                target = int(memory.in_shared(targets[n], peer, box.nbytes))
                barrier = int(memory.in_shared(bars[n], peer, 8))

                def move(box: Any = box, target: int = target, corner: Any = corner, barrier: int = barrier) -> None:
                    box.load(memory, target, corner)
                    machine.barriers.complete(barrier, box.nbytes)

                machine.engine.later(move)

    return load


def _tensor_store(i: Instruction) -> Act:
    if not i.has("tile"):
        raise NotImplementedError(i.opcode)
    (tensor, coordinates), where = _tensor(i.operands[0]), address(i.operands[1])
    how = i.opcode.split(".global.shared::cta.")[1].split(".")[0] if i.is_a("cp.reduce") else None

    def store(machine: Any, at: Any) -> None:
        memory, tensors = machine.memory, tensor(machine, at)
        places, sources = [each(machine, at) for each in coordinates], where(machine, at)
        for n, thread in enumerate(machine.numbers(at).tolist()):
            box, corner = _box(machine, int(tensors[n])), [int(each[n]) for each in places]
            source = int(memory.in_shared(sources[n], machine.cta[thread], box.nbytes))
            combine = reduction(how, box.word) if how else None
            move = functools.partial(box.store, memory, source, corner, combine)
            machine.engine.open[thread].append(machine.engine.later(move))

    return store


def _bulk_load(i: Instruction) -> Act:
    """From global memory, or from shared memory to a peer's."""
    target, source, size, bar = (
        address(i.operands[0]),
        address(i.operands[1]),
        each(i.operands[2]),
        address(i.operands[3]),
    )
    words, remote = i.opcode.split("."), i.has("shared::cta") and i.has("shared::cluster")
    how = words[-2] if i.is_a("cp.reduce") else None
    unit = kind_of(words[-1]).itemsize if how else 1
    if i.has("multicast::cluster"):
        raise NotImplementedError(i.opcode)

    def load(machine: Any, at: Any) -> None:
        memory, cta = machine.memory, machine.cta[at]
        targets, sources, sizes, bars = (read(machine, at) for read in (target, source, size, bar))
        for n in range(len(targets)):
            nbytes = int(sizes[n])
            if nbytes % 16 or targets[n] % 16 or sources[n] % 16:
                raise Wrong("a bulk copy that is no multiple of 16 bytes")
            to = int(memory.in_shared(targets[n], cta[n], nbytes))
            barrier = int(memory.in_shared(bars[n], cta[n], 8))
            if remote:
                bytes_, begin = memory.shared, int(memory.in_shared(sources[n], cta[n], nbytes))
            else:
                bytes_, begin = memory.whole, int(memory.in_global(sources[n : n + 1], nbytes)[0])

            def move(
                to: int = to, begin: int = begin, bytes_: Any = bytes_, nbytes: int = nbytes, b: int = barrier
            ) -> None:
                there, new = memory.shared[to : to + nbytes], bytes_[begin : begin + nbytes]
                there[:] = _combined(there, new, how, words[-1], unit)
                machine.barriers.complete(b, nbytes)

            machine.engine.later(move)

    return load


def _combined(there: np.ndarray, new: np.ndarray, how: str | None, word: str, unit: int) -> np.ndarray:
    if how is None:
        return new.copy()
    found: np.ndarray = reduction(how, word)(there.view(f"u{unit}"), new.view(f"u{unit}"))
    return found.view(np.uint8)


def _bulk_store(i: Instruction) -> Act:
    target, source, size = address(i.operands[0]), address(i.operands[1]), each(i.operands[2])
    words = i.opcode.split(".")
    how = (
        next(word for word in words[words.index("bulk_group") + 1 :] if word != "noftz")
        if i.is_a("cp.reduce")
        else None
    )
    unit = kind_of(words[-1]).itemsize if how else 1

    def store(machine: Any, at: Any) -> None:
        memory, targets, sources, sizes = machine.memory, target(machine, at), source(machine, at), size(machine, at)
        for n, thread in enumerate(machine.numbers(at).tolist()):
            nbytes = int(sizes[n])
            if nbytes % 16 or targets[n] % 16 or sources[n] % 16:
                raise Wrong("a bulk copy that is no multiple of 16 bytes")
            to = int(memory.in_global(targets[n : n + 1], nbytes)[0])
            begin = int(memory.in_shared(sources[n], machine.cta[thread], nbytes))

            def move(to: int = to, begin: int = begin, nbytes: int = nbytes) -> None:
                there, new = memory.whole[to : to + nbytes], memory.shared[begin : begin + nbytes]
                there[:] = _combined(there, new, how, words[-1], unit)

            machine.engine.open[thread].append(machine.engine.later(move))

    return store


def copying(i: Instruction) -> Act | None:
    """``cp.async`` by threads; bytes beyond the last operand are 0."""
    if i.is_a("cp.async.bulk", "cp.reduce"):
        return _bulk(i)
    if i.is_a("cp.async.mbarrier.arrive"):
        return _arrive_for_copies(i)
    if not i.is_a("cp.async.ca", "cp.async.cg"):
        raise NotImplementedError(i.opcode)
    target, source, whole = address(i.operands[0]), address(i.operands[1]), int(i.operands[2])
    given = each(i.operands[3]) if len(i.operands) > 3 else each(str(whole))

    def copy(machine: Any, at: Any) -> None:
        memory, group, lengths = machine.memory, machine.numbers(at), given(machine, at)
        to = memory.in_shared(target(machine, at), machine.cta[at], whole)
        if (to % whole).any():
            raise Wrong(f"an address that is no multiple of {whole}")
        asked, begins = lengths > 0, source(machine, at)
        if (begins[asked] % whole).any():
            raise Wrong(f"an address that is no multiple of {whole}")
        places = np.zeros(len(to), np.int64)
        places[asked] = memory.in_global(begins[asked], 1)

        def run() -> None:
            for n in range(whole):
                inside = n < lengths
                if not memory.held[places[inside] + n].all():
                    raise Wrong("a global address outside of all tensors")
                memory.shared[to + n] = np.where(inside, memory.whole[np.where(inside, places + n, 0)], 0)

        move = machine.engine.later(run)
        for thread in group.tolist():
            machine.engine.copies[thread].append(move)

    return copy


def _arrive_for_copies(i: Instruction) -> Act:
    where = address(i.operands[0])

    def arrive(machine: Any, at: Any) -> None:
        group = machine.numbers(at).tolist()
        places = machine.memory.in_shared(where(machine, at), machine.cta[at], 8).tolist()

        def move() -> None:
            for thread, place in zip(group, places, strict=True):
                machine.engine.finish_copies(thread)
                machine.barriers.arrive(place)

        machine.engine.later(move)

    return arrive
