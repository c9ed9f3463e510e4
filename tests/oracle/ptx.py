"""Reads emitted PTX back: which instructions each thread of a CTA can reach, as counted facts in the plan's own names.

The reader follows one thread at a time. It knows the thread's place in the CTA, so it decides the branches that pick roles
and elected lanes, takes both sides of all others, and folds addresses to ``offset + unknowns``; the offset names the
mbarrier or the buffer. Counts are of instructions, not of executions: build with ``unroll=False``, or LLVM's unrolling by
4 multiplies them.

It reads what NVVM writes for the kernels of this package, not PTX at large; what it cannot place is in `Facts.unknown`.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from tmapipe.plan.model import Plan

__all__ = ["Facts", "Instruction", "Ptx", "defined", "registers_in", "shape_of"]

SHARED = "__dynamic_shmem__0"  #: the symbol at which dynamic shared memory starts
LEADER = 0  #: the lane that elect.sync is taken to elect


@attrs.frozen
class Instruction:
    """One instruction. guard: the predicate register it is subject to, with ``!`` before it if negated; inline: it comes
    from inline assembly, whose own labels and branches are left out; line: in the text, from 1."""

    opcode: str
    operands: tuple[str, ...]
    guard: str | None
    inline: bool
    line: int

    def is_a(self, *prefixes: str) -> bool:
        """Whether the opcode starts with one of *prefixes*, whole dotted words."""
        return not _prefixes(self.opcode).isdisjoint(prefixes)

    def has(self, *words: str) -> bool:
        """Whether all *words* are among the opcode's dotted modifiers."""
        return set(words) <= set(self.opcode.split("."))


@functools.cache
def _prefixes(opcode: str) -> frozenset[str]:
    """``a.b.c``, ``a.b`` and ``a``."""
    return frozenset(itertools.accumulate(opcode.split("."), "{}.{}".format))


@attrs.define
class Facts:
    """Instructions that some thread can reach, counted. Barriers and buffers by their names in the plan.

    inits: (barrier, stage) -> count; waits, arrivals, remote_arrivals: barrier -> instructions; armed: (barrier, bytes);
    loads: (buffer, barrier, multicast); sends: (buffer, barrier) of a peer;
    stores, reduces: by buffer; group_waits: (groups left pending, "read" or "write");
    matmuls: by shape ("m64n256k16"); wgmma_waits: by groups left pending; named_syncs, named_arrivals: (id, threads);
    registers: ("inc" or "dec", count) of each setmaxnreg; scopes: of remote arrivals ("cta" where the PTX names none);
    local: loads and stores of local memory; unknown: instructions that refer to nothing in the plan.
    """

    inits: dict[tuple[str, int], int] = attrs.field(factory=dict)
    waits: Counter[str] = attrs.field(factory=Counter)
    arrivals: Counter[str] = attrs.field(factory=Counter)
    remote_arrivals: Counter[str] = attrs.field(factory=Counter)
    scopes: Counter[str] = attrs.field(factory=Counter)
    armed: Counter[tuple[str, int]] = attrs.field(factory=Counter)
    loads: Counter[tuple[str, str, bool]] = attrs.field(factory=Counter)
    sends: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    stores: Counter[str] = attrs.field(factory=Counter)
    reduces: Counter[str] = attrs.field(factory=Counter)
    group_commits: int = 0
    group_waits: Counter[tuple[int, str]] = attrs.field(factory=Counter)
    proxy_fences: int = 0
    init_fences: int = 0
    matmuls: Counter[str] = attrs.field(factory=Counter)
    wgmma_fences: int = 0
    wgmma_commits: int = 0
    wgmma_waits: Counter[int] = attrs.field(factory=Counter)
    cta_syncs: int = 0
    warp_syncs: int = 0
    named_syncs: Counter[tuple[int, int]] = attrs.field(factory=Counter)
    named_arrivals: Counter[tuple[int, int]] = attrs.field(factory=Counter)
    cluster_arrives: Counter[str] = attrs.field(factory=Counter)
    cluster_waits: int = 0
    prefetches: int = 0
    registers: Counter[tuple[str, int]] = attrs.field(factory=Counter)
    local: int = 0
    unknown: list[str] = attrs.field(factory=list)

    def nonzero(self) -> dict[str, Any]:
        """The facts that are not empty, for a readable comparison."""
        return {name: value for name, value in attrs.asdict(self, recurse=False).items() if value}


class Ptx:
    """A kernel's PTX, and the plan that it was built from."""

    def __init__(self, text: str, plan: Plan):
        self.plan = plan
        self.threads: dict[tuple[int, int], _Thread] = {}
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.definitions: dict[str, list[Instruction]] = {}
        for label, instruction in _statements(text):
            if label is not None:
                self.labels[label] = len(self.instructions)
            if instruction is not None:
                self.instructions.append(instruction)
                for register in defined(instruction):
                    self.definitions.setdefault(register, []).append(instruction)

    @functools.cached_property
    def mbarriers(self) -> dict[int, tuple[str, int]]:
        """Name and stage of each, by its offset in shared memory."""
        return {b.offset + 8 * stage: (b.name, stage) for b in self.plan.barriers for stage in range(b.stages)}

    @functools.cached_property
    def jumps(self) -> dict[int, list[int] | None]:
        """Where each branch goes on, nowhere after an end, None for one that is not followed; by the instruction's index."""
        found: dict[int, list[int] | None] = {}
        for at, instruction in enumerate(self.instructions):
            if instruction.is_a("bra") and not instruction.inline:
                found[at] = [self.labels[instruction.operands[0]]]
            elif instruction.is_a("ret", "exit"):
                found[at] = []
            elif instruction.is_a("brx", "call"):
                found[at] = None
        return found

    def reached(self, warp: int, lane: int = LEADER) -> list[Instruction]:
        """The instructions that this thread can reach, in the order of the text."""
        return self.thread(warp, lane).reached()

    def thread(self, warp: int, lane: int) -> _Thread:
        """What this thread sees, each looked at once."""
        if (warp, lane) not in self.threads:
            self.threads[warp, lane] = _Thread(self, warp, lane)
        return self.threads[warp, lane]

    def facts(self, warp: int | None = None, lane: int = LEADER) -> Facts:
        """What one thread can reach; without *warp*, what any thread can, each instruction counted once."""
        if warp is not None:
            thread = self.thread(warp, lane)
            return _count([(instruction, thread) for instruction in thread.reached()], self.plan)
        found: dict[int, tuple[Instruction, _Thread]] = {}  # by place in the text
        for each in range(self.plan.warps):
            for other in (LEADER, 31 - LEADER):
                thread = self.thread(each, other)
                for at in thread.places:
                    found.setdefault(at, (self.instructions[at], thread))
        return _count([found[at] for at in sorted(found)], self.plan)


# ---- text -------------------------------------------------------------------------------------------------------------

_INLINE = re.compile(r"// begin inline asm\n(.*?)// end inline asm", re.S)
_BLANK = re.compile(r"(?:\s|[{}]|//[^\n]*)+")
_LABEL = re.compile(r"([$\w]+):(?!:)\s*")
_GUARD = re.compile(r"@(!?%?\w+)\s+")


def _statements(text: str) -> Iterator[tuple[str | None, Instruction | None]]:
    """(label, None) and (None, instruction), in order, of the kernel's body."""
    start = re.search(r"^\{", text, re.M)
    at = start.end() if start else 0
    while at < len(text):
        inline = _INLINE.search(text, at)
        end = inline.start() if inline else len(text)
        yield from _plain(text, at, end, inline=False)
        if inline is None:
            return
        yield from _plain(text, inline.start(1), inline.end(1), inline=True)
        at = inline.end()


def _plain(text: str, at: int, end: int, inline: bool) -> Iterator[tuple[str | None, Instruction | None]]:
    line, counted = text.count("\n", 0, at) + 1, at
    while True:
        blank = _BLANK.match(text, at, end)
        at = blank.end() if blank else at
        if at >= end:
            return
        label = _LABEL.match(text, at, end)
        if label:
            if not inline:
                yield label[1], None
            at = label.end()
            continue
        stop = text.find(";", at, end)
        stop = end if stop < 0 else stop
        guard = _GUARD.match(text, at, stop)
        words = text[guard.end() if guard else at : stop].split(None, 1)
        if not words[0].startswith(".") and not (inline and words[0].startswith("bra")):
            operands = tuple(_split(words[1])) if len(words) > 1 else ()
            line, counted = line + text.count("\n", counted, at), at
            yield None, Instruction(words[0], operands, guard[1] if guard else None, inline, line)
        at = stop + 1


def _split(operands: str) -> list[str]:
    """At the commas outside braces and brackets."""
    parts, depth, part = [], 0, ""
    for character in operands:
        depth += (character in "{[") - (character in "}]")
        if character == "," and not depth:
            parts.append(part.strip())
            part = ""
        else:
            part += character
    return [*parts, part.strip()]


_NO_RESULT = ("st", "bra", "ret", "bar", "barrier", "fence", "red", "prefetch", "setmaxnreg", "cp", "stmatrix")


def defined(instruction: Instruction) -> list[str]:
    """The registers that *instruction* writes."""
    if instruction.is_a(*_NO_RESULT) or not instruction.operands:
        return []
    return [] if "[" in instruction.operands[0] else list(registers_in(instruction.operands[0]))


@functools.cache
def registers_in(operand: str) -> tuple[str, ...]:
    """The registers that *operand* names."""
    return tuple(re.findall(r"%\w+", operand))


@functools.cache
def shape_of(opcode: str) -> str:
    """That of a matmul: ``m64n256k16``."""
    return next(word for word in opcode.split(".") if re.fullmatch(r"m\d+n\d+k\d+", word))


# ---- one thread -------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Sum:
    """constant + unknowns, each a register or symbol times a factor."""

    constant: int
    unknowns: tuple[tuple[str, int], ...] = ()

    @property
    def known(self) -> bool:
        return not self.unknowns

    def plus(self, other: _Sum, factor: int = 1) -> _Sum:
        terms = dict(self.unknowns)
        for name, times in other.unknowns:
            terms[name] = terms.get(name, 0) + factor * times
        return _Sum(
            self.constant + factor * other.constant, tuple(sorted((n, times) for n, times in terms.items() if times))
        )

    def times(self, factor: int) -> _Sum:
        return _Sum(0).plus(self, factor)


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip
_PASS = ("mov", "cvt", "cvta", "shfl", "ld.param")
_BITS: dict[str, Callable[[int, int], int]] = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


class _Thread:
    """Values and branches as one thread sees them."""

    def __init__(self, ptx: Ptx, warp: int, lane: int):
        self.ptx, self.lane = ptx, lane
        self.special = {"%tid.x": 32 * warp + lane, "%laneid": lane, "%ntid.x": ptx.plan.threads}
        self.values: dict[str, _Sum] = {}

    def reached(self) -> list[Instruction]:
        return [self.ptx.instructions[at] for at in self.places]

    def reached_without(self, opcode: str) -> list[Instruction]:
        """The instructions that this thread can reach without executing one of that *opcode*."""
        return [self.ptx.instructions[at] for at in self._places(opcode)]

    @functools.cached_property
    def places(self) -> list[int]:
        """Indices of the instructions that this thread can reach."""
        return self._places()

    def _places(self, without: str | None = None) -> list[int]:
        program, seen, todo = self.ptx.instructions, set[int](), [0]
        while todo:
            at = todo.pop()
            while at < len(program) and at not in seen:
                instruction = program[at]
                if without and instruction.is_a(without):
                    break
                seen.add(at)
                taken = True if instruction.guard is None else self.truth(instruction.guard)
                if at in self.ptx.jumps:
                    target = self.ptx.jumps[at]
                    if target is None:
                        raise NotImplementedError(f"line {instruction.line}: {instruction.opcode}")
                    if taken is not False:
                        todo.extend(target)
                    if taken:
                        break
                at += 1
        return [at for at in sorted(seen) if program[at].guard is None or self.truth(program[at].guard) is not False]

    def truth(self, predicate: str | None) -> bool | None:
        """The value of a predicate register, None if it is unknown. Negated by ``!``."""
        if predicate is None:
            return None
        if predicate.startswith("!"):
            value = self.truth(predicate[1:])
            return None if value is None else not value
        found = self.value(predicate)
        return bool(found.constant) if found.known else None

    def value(self, operand: str) -> _Sum:
        """What an operand holds."""
        if operand in self.special:
            return _Sum(self.special[operand])
        if re.fullmatch(r"-?\d+", operand):
            return _Sum(int(operand))
        if not operand.startswith("%") or operand not in self.ptx.definitions:
            return _Sum(0, ((operand, 1),))
        if operand not in self.values:
            self.values[operand] = _Sum(0, ((operand, 1),))  # what a loop sees of itself
            found = {self._result(operand, definition) for definition in self.ptx.definitions[operand]}
            if len(found) == 1:
                self.values[operand] = found.pop()
        return self.values[operand]

    def _changes(self, operand: str) -> bool:
        """Whether the register is written at several places: then a copy of it may differ from what it holds later."""
        return len(self.ptx.definitions.get(operand, ())) > 1 and not self.value(operand).known

    def address(self, operand: str) -> _Sum:
        """Where ``[register + offset]`` points."""
        total = _Sum(0)
        for term in operand.strip("[]").replace("+-", "+ -").split("+"):
            total = total.plus(self.value(term.strip()))
        return total

    def first_address(self, operand: str) -> _Sum:
        """As `address`, in the first turn of loops, each of which adds to a register a constant."""
        total = self.address(operand)
        for name, times in total.unknowns:
            starts = [self._result(name, definition) for definition in self.ptx.definitions.get(name, ())]
            before = {start for start in starts if not start.plus(_Sum(0, ((name, -1),))).known}
            if len(starts) == 2 and len(before) == 1:  # the other one adds a constant to it
                total = total.plus(before.pop().plus(_Sum(0, ((name, -1),))).times(times))
        return total

    def _result(self, register: str, instruction: Instruction) -> _Sum:
        opaque = _Sum(0, ((register, 1),))
        if instruction.guard is not None or instruction.inline:
            return opaque
        if instruction.is_a("elect"):
            return _Sum(int(self.lane == LEADER))
        if "{" in instruction.operands[0] or "|" in instruction.operands[0]:
            return opaque
        operands = [self.value(each) for each in instruction.operands[1:] if "[" not in each]
        if len(operands) < len(instruction.operands) - 1:
            return opaque
        return self._compute(instruction, operands) or opaque

    def _compute(self, instruction: Instruction, operands: list[_Sum]) -> _Sum | None:
        kind, *words = instruction.opcode.split(".")
        if instruction.is_a(*_PASS):
            return None if self._changes(instruction.operands[1]) else operands[0]
        first, second = operands[0], operands[1] if len(operands) > 1 else _Sum(0)
        known = all(each.known for each in operands)
        if kind == "add":
            return first.plus(second)
        if kind == "sub":
            return first.plus(second, -1)
        if kind == "neg":
            return first.times(-1)
        if kind == "not":
            return _Sum(1 - first.constant if words[-1] == "pred" else ~first.constant) if first.known else None
        if kind == "shl" and second.known:
            return first.times(1 << second.constant)
        if kind in ("mul", "mad") and words[0] in ("lo", "wide"):
            if first.known or second.known:
                product = second.times(first.constant) if first.known else first.times(second.constant)
                return product.plus(operands[2]) if kind == "mad" else product
        if kind == "shr" and known:
            value = first.constant & 0xFFFFFFFF if words[0] == "u32" else first.constant
            return _Sum(value >> second.constant)
        if kind == "setp":
            if "u32" in words and known:
                return _Sum(int(_COMPARE[words[0]](first.constant & 0xFFFFFFFF, second.constant & 0xFFFFFFFF)))
            difference = first.plus(second, -1)
            return _Sum(int(_COMPARE[words[0]](difference.constant, 0))) if difference.known else None
        if kind == "selp":
            if operands[2].known:
                return first if operands[2].constant else second
            return first if first == second else None
        if kind in _BITS:
            return self._bits(kind, words[-1] == "pred", first, second)
        return None

    @staticmethod
    def _bits(kind: str, predicate: bool, first: _Sum, second: _Sum) -> _Sum | None:
        if first.known and second.known:
            return _Sum(_BITS[kind](first.constant, second.constant))
        if predicate:  # `and` with false, `or` with true
            decisive = 0 if kind == "and" else 1
            if kind != "xor" and any(each.known and each.constant == decisive for each in (first, second)):
                return _Sum(decisive)
            return None
        if kind == "or":  # NVVM writes an addition so where no bits meet
            small, large = (first, second) if first.known else (second, first)
            unit = 1 << small.constant.bit_length() if small.known and small.constant >= 0 else 0
            if unit and not any(part % unit for part in (large.constant, *(times for _, times in large.unknowns))):
                return large.plus(small)
        return None


# ---- facts ------------------------------------------------------------------------------------------------------------


def _count(reached: list[tuple[Instruction, _Thread]], plan: Plan) -> Facts:
    facts = Facts()
    remote: set[str] = set()
    for instruction, thread in reached:
        if instruction.opcode.partition(".")[0] not in _NOTED:
            continue
        try:
            _note(facts, instruction, thread, plan, remote)
        except LookupError as missing:
            facts.unknown.append(f"line {instruction.line}: {instruction.opcode}: {missing}")
    return facts


#: First words of what is noted.
_NOTED = {"mbarrier", "cp", "wgmma", "fence", "bar", "barrier", "prefetch", "setmaxnreg", "ld", "st"}


def _note(facts: Facts, i: Instruction, thread: _Thread, plan: Plan, remote: set[str]) -> None:
    if i.is_a("mbarrier"):
        _note_mbarrier(facts, i, thread, plan)
    elif i.is_a("cp.async.bulk", "cp.reduce.async.bulk"):
        _note_bulk(facts, i, thread, plan)
    elif i.is_a("wgmma"):
        _note_wgmma(facts, i, thread)
    elif i.is_a("fence.proxy.async"):
        facts.proxy_fences += 1
    elif i.is_a("fence.mbarrier_init"):
        facts.init_fences += 1
    elif i.is_a("bar", "barrier"):
        _note_barrier(facts, i, thread)
    elif i.is_a("prefetch.tensormap"):
        facts.prefetches += 1
    elif i.is_a("setmaxnreg"):
        facts.registers[i.opcode.split(".")[1], int(i.operands[0])] += 1
    elif i.is_a("ld.local", "st.local"):
        facts.local += 1


def _note_mbarrier(facts: Facts, i: Instruction, thread: _Thread, plan: Plan) -> None:
    where = next(k for k, each in enumerate(i.operands) if "[" in each)
    argument = i.operands[where + 1] if where + 1 < len(i.operands) else "1"
    address = thread.address(i.operands[where])
    if i.has("shared::cluster"):
        mapped = _mapped(thread, i.operands[where])
        facts.remote_arrivals[_barrier(plan, thread.address(mapped))[0]] += 1
        facts.scopes["cluster" if i.has("release", "cluster") else "cta"] += 1
        return
    name, stage = _barrier(plan, address)
    if i.is_a("mbarrier.init"):
        facts.inits[name, _known(stage)] = _known(thread.value(argument))
    elif i.is_a("mbarrier.try_wait", "mbarrier.test_wait"):
        facts.waits[name] += 1
    elif i.has("expect_tx"):
        facts.armed[name, _known(thread.value(argument))] += 1
    elif i.is_a("mbarrier.arrive"):
        facts.arrivals[name] += _known(thread.value(argument))
    else:
        raise LookupError("an mbarrier operation of another kind")


def _mapped(thread: _Thread, operand: str) -> str:
    """The local address that mapa made a peer's."""
    made = thread.ptx.definitions.get(operand.strip("[]"), [])
    if len(made) != 1 or not made[0].is_a("mapa"):
        raise LookupError(f"{operand} is not what one mapa gives")
    return made[0].operands[1]


def _note_bulk(facts: Facts, i: Instruction, thread: _Thread, plan: Plan) -> None:
    if i.is_a("cp.async.bulk.commit_group"):
        facts.group_commits += 1
    elif i.is_a("cp.async.bulk.wait_group"):
        facts.group_waits[int(i.operands[0]), "read" if i.has("read") else "write"] += 1
    elif i.has("bulk_group"):
        buffer = _buffer(plan, thread.address(i.operands[1]))
        (facts.reduces if i.is_a("cp.reduce") else facts.stores)[buffer] += 1
    elif i.has("shared::cta", "mbarrier::complete_tx::bytes") and not i.has("tensor"):
        barrier, _ = _barrier(plan, thread.address(_mapped(thread, i.operands[3])))
        facts.sends[_buffer(plan, thread.first_address(_mapped(thread, i.operands[0]))), barrier] += 1
    elif i.has("mbarrier::complete_tx::bytes"):
        barrier, _ = _barrier(plan, thread.address(i.operands[2 if i.has("tensor") else 3]))
        target = i.operands[0]
        buffer = _buffer(plan, thread.first_address(target))
        facts.loads[buffer, barrier, i.has("multicast::cluster")] += 1
    elif not i.is_a("cp.async.bulk.prefetch"):  # a hint
        raise LookupError("a bulk operation of another kind")


def _note_wgmma(facts: Facts, i: Instruction, thread: _Thread) -> None:
    if i.is_a("wgmma.mma_async"):
        facts.matmuls[shape_of(i.opcode)] += 1
    elif i.is_a("wgmma.fence"):
        facts.wgmma_fences += 1
    elif i.is_a("wgmma.commit_group"):
        facts.wgmma_commits += 1
    else:
        facts.wgmma_waits[_known(thread.value(i.operands[0]))] += 1


def _note_barrier(facts: Facts, i: Instruction, thread: _Thread) -> None:
    if i.is_a("bar.warp"):
        facts.warp_syncs += 1
    elif i.is_a("barrier.cluster.arrive"):
        facts.cluster_arrives["relaxed" if i.has("relaxed") else "cluster"] += 1
    elif i.is_a("barrier.cluster.wait"):
        facts.cluster_waits += 1
    elif len(i.operands) == 1:
        facts.cta_syncs += 1
    else:
        key = (_known(thread.value(i.operands[0])), _known(thread.value(i.operands[1])))
        (facts.named_arrivals if i.has("arrive") else facts.named_syncs)[key] += 1


def _known(value: _Sum) -> int:
    if not value.known:
        raise LookupError(f"{value} where a constant is wanted")
    return value.constant


def _offset(address: _Sum) -> _Sum:
    """From the start of dynamic shared memory."""
    found = address.plus(_Sum(0, ((SHARED, -1),)))
    if any(name == SHARED for name, _ in found.unknowns):
        raise LookupError(f"{address} is no address in dynamic shared memory")
    return found


def _barrier(plan: Plan, address: _Sum) -> tuple[str, _Sum]:
    """The mbarrier array at *address*, and the stage."""
    offset = _offset(address)
    for barrier in plan.barriers:
        inside = 0 <= offset.constant - barrier.offset < 8 * barrier.stages
        if inside and (offset.known or offset.constant == barrier.offset):
            steps = [times // 8 for _, times in offset.unknowns]
            return barrier.name, _Sum(
                (offset.constant - barrier.offset) // 8,
                tuple((name, step) for (name, _), step in zip(offset.unknowns, steps, strict=True)),
            )
    raise LookupError(f"no mbarrier at {offset}")


def _buffer(plan: Plan, address: _Sum) -> str:
    offset = _offset(address)
    for buffer in plan.buffers:
        if 0 <= offset.constant - buffer.offset < buffer.stages * buffer.slot_bytes:
            return buffer.name
    raise LookupError(f"no buffer at {offset}")
