"""Stamps: where a kernel writes the clock, how it writes it, and what the words in memory say.

One thread of each role, and of each of its warpgroups, has a row of memory. The kernel's first and last words in it are the
time in nanoseconds and the clock, by which rows are compared. Behind them are records: the clocks of places with no branch
between, and at the end the record's number with what slots the places were about. So a place takes one instruction, which
reads the clock, and a record some four more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from tmapipe.gpu.control import emit_ptx
from tmapipe.isa.ops import ARRIVALS, COMMITS
from tmapipe.plan.model import Plan
from tmapipe.program import Traced
from tmapipe.program.expressions import FOLD, Call, Expr, For, If, Let, Node, While

# ---- places ----------------------------------------------------------------------------------------------------------

_WAITS = ("mbarrier_wait", "wgmma_wait", "bulk_wait_group", "cta_sync", "cluster_wait")
_ISSUES = ("wgmma", "tma_store", "bulk_store")
_IDLE = ("fragments.accumulator", "fragments.operand")  # of no instruction
IN_RECORD = 12  #: places of a record, at most
HELD = 4  #: clocks that wait in registers to be written, at most, of a kernel whose accumulators need them


@attrs.frozen
class Place:
    """Where a program stamps.

    Args:
        node: An instruction, or a loop over tiles, each of whose turns is stamped when it begins.
        after: Whether after the instruction.
        computes: Whether the warp computes with fragments since the place before.
        passed: Instructions since the place before that have no place of their own: commits of wgmmas, which came right after
            that place, and waits that ended right before this one.
        issues: The wgmma or store before it, if there is one.
        warps: Those of the stamping ones that come here.
        shared: Whether the clock of the stamp after it is its own, too: so little is between them.
        kept: Whether its clock waits in a register, to be written with that of the next place.
        last: Whether it is the last place of a record.
    """

    node: Node
    after: bool
    computes: bool
    passed: tuple[Call, ...]
    issues: Call | None
    warps: frozenset[int] = frozenset()
    shared: bool = False
    kept: bool = False
    last: bool = False

    @property
    def slot(self) -> Any:
        """What is stamped besides the place: the stage of a barrier, or its instance. Of others 0."""
        if isinstance(self.node, Call) and "barrier" in self.node.method and len(self.node.args) > 1:
            return self.node.args[1]
        return 0


def places(program: Traced) -> list[Place]:
    """Where a program stamps, in its order, at as few places as tell what happened. Programs of one identity have the same."""
    planned = _Places(stamping(program.plan), bool(program.plan.matmuls))
    planned.walk(program.nodes)
    planned.end()
    return planned.places


def stamping(plan: Plan) -> list[int]:
    """The warps that stamp: of each role the first one, and the first of each warpgroup."""
    return sorted({warp for role in plan.roles for warp in range(role.first_warp, role.first_warp + role.warps, 4)})


class _Places:
    """What has come since the place before, or ever.

    Args:
        warps: Those of the stamping ones that come here.
        multiplies: Whether clocks do not wait in registers while the warp computes, nor across branches.
    """

    def __init__(self, warps: Sequence[int], multiplies: bool):
        self.places: list[Place] = []
        self.warps, self.multiplies = frozenset(warps), multiplies
        self.first = 0  # place of the record
        self.held = 0  # clocks that are to be written together so far
        self.computes, self.passed, self.issues = False, tuple[Call, ...](), None

    def add(self, node: Node, after: bool) -> None:
        if len(self.places) - self.first == IN_RECORD:
            self.end()
        before = self.places[-1] if self.first < len(self.places) else None
        if before and method_of(before.node) in COMMITS and self._follows(node) and before.warps <= self.warps:
            self.share()
        if self.multiplies and (self.computes or self.held == HELD):
            self.held = 0
        if self.held:
            self.places[-1] = attrs.evolve(self.places[-1], kept=True)
        self.places.append(Place(node, after, self.computes, self.passed, self.issues, self.warps))
        self.computes, self.passed = False, ()
        self.held += 1

    def _follows(self, node: Node) -> bool:
        """Whether it is an arrival, and no wait or arithmetic is between it and the place before or after."""
        return method_of(node) in ARRIVALS and not self.computes and not self.passed

    def share(self) -> None:
        """The last place needs no clock of its own."""
        self.places[-1] = attrs.evolve(self.places[-1], shared=True)

    def end(self) -> None:
        """Ends the record: at the last place to which all of its warps come, and behind it those of some warps."""
        while self.first < len(self.places):
            of = self.places[self.first :]
            every = frozenset().union(*(place.warps for place in of))
            count = max((i + 1 for i, place in enumerate(of) if place.warps == every), default=0)
            while not count or (count < len(of) and of[count].warps == of[count - 1].warps != every):
                count += 1  # places of some warps in a row
            self.first += count
            self.places[self.first - 1] = attrs.evolve(self.places[self.first - 1], kept=False, last=True)
        self.held = 0

    def walk(self, nodes: Sequence[Any]) -> None:
        known = [node for node in nodes if not isinstance(node, Let)]
        for node, following in zip(known, [*known[1:], None], strict=False):
            if isinstance(node, (For, While)):
                self.end()
                turned = f"tmapipe{os.sep}tiles{os.sep}" in str(node.where)
                if turned:
                    self.add(node, False)
                self.walk(node.body)
                if turned and self.first < len(self.places):
                    if self._follows(self.places[-1].node) and not self.places[-1].passed:
                        self.share()
                self.end()
            elif isinstance(node, If):
                self.branch(node)
            else:
                self.instruction(node, following)

    def branch(self, node: If) -> None:
        """A record goes on where a warp's number says where it goes, unless slots are stamped that are known only inside."""
        came, goes = self.warps, {warp: _at(node.condition, warp) for warp in self.warps}
        straight = None not in goes.values()
        for side, way in ((node.then, True), (node.other, False)):
            self.warps = frozenset(warp for warp in came if goes[warp] is None or bool(goes[warp]) is way)
            before = len(self.places)
            if self.multiplies:
                self.held = 0
            if not straight:
                self.end()
            if self.warps:
                self.walk(side)
            if not straight or any(isinstance(place.slot, Expr) for place in self.places[before:]):
                self.end()
        self.warps = came
        if self.multiplies:
            self.held = 0

    def instruction(self, node: Any, following: Any) -> None:
        method = node.method
        if method in _WAITS and self.computes:
            self.add(node, False)
        if method in _ISSUES:
            self.issues = node
        elif method == "wgmma_commit" or (method in _WAITS and getattr(following, "method", "") in ARRIVALS):
            self.passed = (*self.passed, node)
        elif method in (*_WAITS, *ARRIVALS, *COMMITS):
            self.add(node, True)
        else:
            self.computes |= method.startswith("fragments.") and method not in _IDLE


def method_of(node: Node) -> str:
    """The name of an instruction; of a loop ""."""
    return node.method if isinstance(node, Call) else ""


def _at(x: Any, warp: int) -> Any:
    """What a value is in a warp, or None if it depends on more than the warp's number."""
    if not isinstance(x, Expr):
        return x
    if x.op == "symbol":
        return warp if x.args == ("warp",) else None
    values = [_at(each, warp) for each in x.args]
    return FOLD[x.op](*values) if x.op in FOLD and None not in values else None


# ---- records ---------------------------------------------------------------------------------------------------------

UNIT = 4  #: words that are written at once, and of which records are made


@attrs.frozen
class Record:
    """Places that are stamped one after another, and the words that say when.

    The words of places that are written together are a group, with nothing in front so that they fill units. In the last group
    are also the slots that differ, two a word, and at the end the record's number, with the first of these slots above it.

    Args:
        first: The number of its first place.
        groups: Of how many clocks each group is.
        slots: What differs from 0, each once.
        places: Of each place the word of its clock, if it has one; which of *slots* it has, or else its slot; its warps.
        words: Of all groups.
    """

    first: int
    groups: tuple[int, ...]
    slots: tuple[Any, ...]
    places: tuple[tuple[int | None, int | None, int, frozenset[int]], ...]
    words: int


def records(stamped: Sequence[Place]) -> list[Record]:
    """The records of a program's places."""
    made: list[Record] = []
    first = 0
    for number, place in enumerate(stamped):
        if place.last:
            made.append(_record(first, stamped[first : number + 1]))
            first = number + 1
    return made


def _record(first: int, stamped: Sequence[Place]) -> Record:
    ends = [i + 1 for i, place in enumerate(stamped) if not place.kept]
    groups = tuple(sum(not each.shared for each in stamped[i:end]) for i, end in zip([0, *ends], ends, strict=False))
    slots = tuple({place.slot: None for place in stamped if isinstance(place.slot, Expr)})
    which = {id(slot): i for i, slot in enumerate(slots)}
    words, clocks = 0, list[int]()
    for i, count in enumerate(groups):
        more = 1 + len(slots) // 2 if i + 1 == len(groups) else 0
        words += _whole(count + more)
        clocks += range(words - count - more, words - more)
    read = iter(clocks)
    known = [
        (
            None if place.shared else next(read),
            which.get(id(place.slot)),
            0 if isinstance(place.slot, Expr) else place.slot,
            place.warps,
        )
        for place in stamped
    ]
    return Record(first, groups, slots, tuple(known), words)


def read(warp: int, words: Any, made: Sequence[Record], ended: int) -> tuple[Any, Any, Any]:
    """Places, slots and clocks of a warp's stamps, as arrays.

    Args:
        warp: That has stamped.
        words: Of whole records, as an array of 32-bit numbers.
        made: The records of the kernel's places.
        ended: The clock at the kernel's end.
    """
    known, at = words.tolist(), len(words)
    begins: dict[int, list[int]] = {}
    while at > 0:
        number = known[at - 1] & 0xFFFF
        at -= made[number].words
        begins.setdefault(number, []).append(at)
    parts = [_of_record(warp, words, made[number], np.array(each)) for number, each in begins.items()]
    if not any(len(part) for part in parts):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    stamps = np.concatenate(parts)
    _, numbers, slots, clocks = stamps[np.argsort(stamps[:, 0])].T
    own = np.where(clocks < 0, len(clocks), np.arange(len(clocks)))  # of shared ones the next
    after = np.minimum.accumulate(own[::-1])[::-1]
    return numbers, slots, np.append(clocks, ended)[after]


def _of_record(warp: int, words: Any, record: Record, begins: Any) -> Any:
    """Of each stamp of a warp in records of one kind: where it comes, place, slot, and clock or -1."""
    last = begins + record.words - 1
    pairs = [words[last - len(record.slots) // 2 + i // 2] >> 16 * (i % 2) for i in range(len(record.slots) - 1)]
    slots = [each & 0xFFFF for each in (words[last] >> 16, *pairs)]
    stamps = [
        np.stack(
            [
                begins * IN_RECORD + i,
                np.full(len(begins), record.first + i),
                np.full(len(begins), constant) if which is None else slots[which],
                np.full(len(begins), -1) if at is None else words[begins + at].astype(np.int64) % (1 << 32),
            ],
            axis=1,
        )
        for i, (at, which, constant, warps) in enumerate(record.places)
        if warp in warps
    ]
    return np.concatenate(stamps) if stamps else np.zeros((0, 4), np.int64)


# ---- emission --------------------------------------------------------------------------------------------------------

ROW = 1 << 17  #: bytes of a row, a power of two, at a multiple of it: when it is full, nothing more is written
HEAD = 32  #: before the records: nanoseconds, clock and multiprocessor at the start; nanoseconds, clock and end
ROOM = 256  #: bytes at a row's end, more than any record has

# A register pair has the address of the next record, another register the lower half of the row's end: a thread without a row
# has 0 there. The lower half alone counts, as no row crosses a multiple of 2^32.
_BEGIN = """.reg .b64 stamp_at; .reg .b32 stamp_end, stamp_none, stamp_clock<{places}>;
{{
.reg .pred mine; .reg .b32 a, b, warp, cta; .reg .b64 row, now;
mov.u32 a, %tid.x; shr.u32 warp, a, 5; and.b32 b, a, 31; setp.eq.u32 mine, b, 0;
shr.u32 a, {warps}, warp; and.b32 a, a, 1; setp.ne.and.u32 mine, a, 0, mine;
mov.u32 cta, %ctaid.x; cvt.u32.u64 a, $1; setp.lt.and.u32 mine, cta, a, mine;
mov.u32 a, 1; shl.b32 a, a, warp; sub.u32 a, a, 1; and.b32 a, a, {warps}; popc.b32 a, a;
mad.lo.u32 a, cta, {each}, a; mad.wide.u32 row, a, {nbytes}, $0; add.u64 stamp_at, row, {head};
cvt.u32.u64 a, row; add.u32 a, a, {nbytes} - {room}; selp.b32 stamp_end, a, 0, mine;
mov.u64 now, %globaltimer; mov.u32 a, %clock; mov.u32 b, %smid;
@mine st.global.b64 [row], now;
@mine st.global.v2.b32 [row+8], {{a, b}};
}}"""
_CLOCK = """{{
.reg .pred room; .reg .b32 low, high;
mov.b64 {{low, high}}, stamp_at; setp.lt.u32 room, low, stamp_end;
mov.u32 stamp_clock{0}, 0;
@!room bra stamped_${{:uid}};
mov.u32 stamp_clock{0}, %clock;
stamped_${{:uid}}:
}}"""
_WRITE = """{{
.reg .pred room; .reg .b32 low, high, word<{words}>;
mov.b64 {{low, high}}, stamp_at; setp.lt.u32 room, low, stamp_end;
{lines}
}}"""
_END = """{{
.reg .pred mine; .reg .b32 a, b; .reg .b64 row, now;
setp.ne.u32 mine, stamp_end, 0; and.b64 row, stamp_at, -{nbytes}; cvt.u32.u64 b, stamp_at;
mov.u64 now, %globaltimer; mov.u32 a, %clock;
@mine st.global.b64 [row+16], now;
@mine st.global.v2.b32 [row+24], {{a, b}};
}}"""


class Stamping:
    """Emits the stamps of a program.

    Args:
        isa: What the kernel was launched with is its `stamps`: the address of the rows, and how many CTAs have some.
        program: That is emitted.
    """

    def __init__(self, isa: Any, program: Traced):
        self.places, warps = places(program), stamping(isa.plan)
        self.records = records(self.places)
        self.numbers = {(id(place.node), place.after): i for i, place in enumerate(self.places)}
        self.of = {record.first: i for i, record in enumerate(self.records)}
        self.clocks = 0  # of the record that are read, and not written yet
        self.slots: dict[Any, Any] = {}  # of the record so far
        self.group = self.now = 0  # of how many that are written; the record
        mask, each = sum(1 << warp for warp in warps), len(warps)
        emit_ptx(
            _BEGIN.format(warps=mask, each=each, nbytes=ROW, head=HEAD, room=ROOM, places=IN_RECORD), "ll", *isa.stamps
        )

    def around(self, node: Node, operand: Callable[[Any], Any], emit: Callable[[], None]) -> None:
        """Emits a node, with the stamps before and after it. operand: gives what an operand is in the kernel."""
        for after in (False, True):
            number = self.numbers.get((id(node), after))
            if number is not None and not isinstance(node, (For, While)):
                self._stamp(number, operand)
            if not after:
                emit()

    def turn(self, node: Node) -> None:
        """At the beginning of a loop's turn, if it is stamped."""
        if (number := self.numbers.get((id(node), False))) is not None:
            self._stamp(number, None)

    def end(self) -> None:
        """At the end of the kernel."""
        emit_ptx(_END.format(nbytes=ROW), "")

    def _stamp(self, number: int, operand: Any) -> None:
        place = self.places[number]
        if number in self.of:
            self.now, self.group = self.of[number], 0
            self.slots.clear()
        if not place.shared:
            emit_ptx(_CLOCK.format(self.clocks), "", ordered=False)
            self.clocks += 1
        if isinstance(place.slot, Expr):
            self.slots.setdefault(place.slot, operand(place.slot))
        if not place.kept:
            self._write()

    def _write(self) -> None:
        """Writes a group, and of the last one what the record is."""
        record, words, lines = self.records[self.now], [f"stamp_clock{i}" for i in range(self.clocks)], list[str]()
        at, slots = sum(map(_whole, record.groups[: self.group])), list[Any]()
        if last := self.group + 1 == len(record.groups):
            slots = [self.slots[slot] for slot in record.slots]
            lines, more = _told(self.now, len(slots))
            words += more
        lines += _stores(words, 4 * at)
        if last:
            lines.append(f"@room add.u32 low, low, {4 * record.words}; mov.b64 stamp_at, {{low, high}};")
        if words:
            text = _WRITE.format(words=len(words), lines="\n".join(lines))
            emit_ptx(text, "r" * len(slots), *slots, ordered=False)
        self.clocks, self.group = 0, self.group + 1


def _told(number: int, slots: int) -> tuple[list[str], list[str]]:
    """The instructions that make a record's last words, and these: the slots are operands $0, $1, ..."""
    pairs = [(f"${i}", f"${i + 1}" if i + 1 < slots else "") for i in range(1, slots, 2)] + [
        (str(number), "$0" * (slots > 0))
    ]
    lines = [
        f"mad.lo.u32 word{i}, {high}, 65536, {low};" if high else f"mov.b32 word{i}, {low};"
        for i, (low, high) in enumerate(pairs)
    ]
    return lines, [f"word{i}" for i in range(len(pairs))]


def _whole(words: int) -> int:
    """So many words as whole units."""
    return -(-words // UNIT) * UNIT


def _stores(words: list[str], at: int) -> Iterator[str]:
    """The instructions that write words at the end of units from the byte *at* on."""
    padded = ["stamp_none"] * (-len(words) % UNIT) + words
    for i in range(0, len(padded), UNIT):
        unit = [word for word in padded[i : i + UNIT] if word != "stamp_none"]
        if len(unit) == 1:
            yield f"@room st.global.b32 [stamp_at+{at + 4 * i + 12}], {unit[0]};"
        elif len(unit) == 2:
            yield f"@room st.global.v2.b32 [stamp_at+{at + 4 * i + 8}], {{{unit[0]}, {unit[1]}}};"
        else:
            yield f"@room st.global.v4.b32 [stamp_at+{at + 4 * i}], {{{', '.join(padded[i : i + UNIT])}}};"
