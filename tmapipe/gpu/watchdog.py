"""Instruments of kernels: the watchdog, which ends waits, with the error that the host raises; stamps, which say when.

In a watched kernel each wait looks at the clock. The warp that gives up writes who it is, and what it waits for, into a row of
the host's memory. It leaves others some time to do the same, and traps. Meanwhile the host waits for the kernel, and if that
takes long, runs the check, so that its view is in the error.

In a stamped kernel one thread of each role, and of each four of its warps, writes the clock before and after its waits, and
after its arrivals.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from tmapipe.base.arithmetic import DType
from tmapipe.errors import DeadlockError, PipelineError, require
from tmapipe.gpu import UNIT, records, whole
from tmapipe.gpu.control import emit_ptx
from tmapipe.plan.model import Plan
from tmapipe.plan.rings import Barrier
from tmapipe.program import IN_RECORD, ONE_AT_A_TIME, Traced, places, stamping, trace
from tmapipe.program.expressions import Call, Expr, For, If, Node, While

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

INSTRUMENTS = ("watch", "stamps")  #: that a kernel may have, one of them
#: Of a launch with one: the address of the rows, and how long a wait may take (ns), or whose rows they are, as of `launched`.
NUMBERS = 2
CTAS = 64  #: that have rows of their own; a power of two
TURNS = 4  #: innermost loops of which a row has the iteration
WORDS = 4 + TURNS  #: of 32 bits in a row: number of the wait and 1, CTA, slot, parity, iterations
WAIT = "mbarrier_wait"  #: the instruction that is watched
_GRACE = 250_000_000  # ns that others have to write what they wait for
VARIABLE = "TMAPIPE_WATCHDOG"
MOST = 3600.0
_SOON, _NAP = 0.01, 0.001  # seconds that the host looks without a pause, and then between looks
_PATIENCE = 0.5  # seconds after which the host runs the check
_REST = 0.8  # seconds that a kernel has to end in after a warp has given up: as the others write, then for the driver

# {wait}: the instruction; {hint}: how long it may sleep (ns). Operands: mbarrier, parity, address of the rows, ns, slot, and
# iterations.
_TEXT = """{{
.reg .pred done, again;
.reg .b64 start, now, row;
.reg .b32 cta, warp, place;
{wait} done, [$0], $1{hint};
@done bra passed_${{:uid}};
mov.u64 start, %globaltimer;
waits_${{:uid}}:
{wait} done, [$0], $1{hint};
@done bra passed_${{:uid}};
mov.u64 now, %globaltimer;
sub.u64 now, now, start;
setp.lt.u64 again, now, $3;
@again bra waits_${{:uid}};
mov.u32 cta, %ctaid.x;
mov.u32 warp, %tid.x;
shr.u32 warp, warp, 5;
and.b32 place, cta, {last_cta};
mad.lo.u32 warp, place, {warps}, warp;
mad.wide.u32 row, warp, {nbytes}, $2;
st.volatile.global.b32 [row+4], cta;
st.volatile.global.b32 [row+8], $4;
st.volatile.global.b32 [row+12], $1;
{turns}
fence.acq_rel.sys;
st.volatile.global.b32 [row], {number};
fence.acq_rel.sys;
mov.u64 start, %globaltimer;
others_${{:uid}}:
nanosleep.u32 100000;
mov.u64 now, %globaltimer;
sub.u64 now, now, start;
setp.lt.u64 again, now, {grace};
@again bra others_${{:uid}};
trap;
passed_${{:uid}}:
}}"""


@attrs.frozen
class Site:
    """A wait of a program.

    Args:
        node: Of the program.
        loops: Around it, as the rows have their iterations: outer ones first, at most `TURNS`.
    """

    node: Call
    loops: tuple[For, ...]

    @property
    def barrier(self) -> Barrier:
        """That is waited for."""
        barrier: Barrier = self.node.args[0]
        return barrier


def sites(program: Traced) -> list[Site]:
    """The waits of a program, in its order. Programs of one identity have the same."""
    return list(_sites(program.nodes, ()))


def _sites(nodes: Sequence[Any], loops: tuple[For, ...]) -> Iterator[Site]:
    for node in nodes:
        if isinstance(node, For):
            yield from _sites(node.body, (*loops, node))
        elif isinstance(node, While):
            yield from _sites(node.body, loops)
        elif isinstance(node, If):
            yield from _sites(node.then, loops)
            yield from _sites(node.other, loops)
        elif isinstance(node, Call) and node.method == WAIT:
            yield Site(node, loops[-TURNS:])


def rows(plan: Plan) -> int:
    """How many rows a kernel writes into: one a warp of the first CTAs, which later ones share."""
    return CTAS * plan.warps


def emit_wait(isa: Any, barrier: Barrier, stage: Any, parity: Any, number: int, turns: Sequence[Any]) -> None:
    """Emits a wait in the place of `GpuIsa.mbarrier_wait`.

    Args:
        isa: What the kernel was launched with is its `watch`: the address of the rows, and nanoseconds.
        barrier, stage, parity: As of `Isa.mbarrier_wait`.
        number: Of the wait, from 0.
        turns: Iterations of the loops around it, outer ones first.
    """
    kept = turns[-TURNS:]
    text = _TEXT.format(
        wait=f"mbarrier.{'try_wait' if isa.plan.target.tma else 'test_wait'}.parity.shared.b64",
        hint=", 10000000" if isa.plan.target.tma else "",
        last_cta=CTAS - 1,
        warps=isa.plan.warps,
        nbytes=4 * WORDS,
        number=number + 1,
        turns="\n".join(f"st.volatile.global.b32 [row+{16 + 4 * i}], ${5 + i};" for i in range(len(kept))),
        grace=_GRACE,
    )
    operands = [isa.mbarrier(barrier, stage).toint(), parity, *isa.watch, stage, *kept]
    emit_ptx(text, "rrllr" + "r" * len(kept), *operands)


# ---- on the host -------------------------------------------------------------------------------------------------------


def seconds_of(schedule: Schedule) -> float | None:
    """How long a wait may take; None: as long as it takes. `Schedule.watchdog`, or else the variable TMAPIPE_WATCHDOG.

    Raises:
        InputError: It is no number of seconds.
    """
    given: Any = schedule.watchdog
    name = f"{type(schedule).__name__}.watchdog" if given is not None else VARIABLE
    if given is None:
        given = os.environ.get(VARIABLE) or None
    if given is None:
        return None
    try:
        seconds = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        seconds = math.nan
    rule = f"is a number of seconds up to {MOST:.0f}, or 0 for none"
    require(0 <= seconds <= MOST, name, given, rule, "e.g. 5")
    return seconds or None


@attrs.frozen
class Row:
    """What a warp waited for.

    Args:
        site: Number of the wait in the program.
        cta, warp: Who.
        slot, parity: Of the mbarrier.
        turns: Iterations of the loops around it.
    """

    site: int
    cta: int
    warp: int
    slot: int
    parity: int
    turns: tuple[int, ...]


class Watchdog:
    """Waits for a watched kernel.

    Args:
        schedule: Whose kernel it is.
        plan: That it was compiled from.
        dtypes: Of its tensors, for the check.
        seconds: That a wait may take.
    """

    def __init__(self, schedule: Schedule, plan: Plan, dtypes: Mapping[str, DType], seconds: float):
        import torch

        self.schedule, self.plan, self.dtypes, self.seconds = schedule, plan, dtypes, seconds
        self.rows = torch.zeros((rows(plan), WORDS), dtype=torch.int32, pin_memory=True)
        self.numbers = [self.rows.data_ptr(), round(seconds * 1e9)]

    def wait(self) -> None:
        """Waits for what the current stream has. Raises `DeadlockError` if the kernel hangs; then this process can use the
        GPU no more."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            return  # what a graph launches is nobody's to wait for
        done, began, written, view = torch.cuda.Event(), time.monotonic(), math.inf, ""
        trapped: RuntimeError | None = None
        try:
            done.record()
            while not done.query() and time.monotonic() - written < _REST:
                waited = time.monotonic() - began
                if waited > _PATIENCE and not view:
                    view = self.view()
                if waited > self.seconds and written == math.inf and self.blocked():
                    written = time.monotonic()
                time.sleep(_NAP if waited > _SOON else 0)
        except RuntimeError as error:  # torch's, for a kernel that has trapped
            trapped = error
        waits = self.blocked()
        if waits:  # also where the driver has not said so
            raise hang(self.schedule, self.plan, waits, self.seconds, view or self.view()) from trapped
        if trapped is not None:
            raise trapped

    def view(self) -> str:
        """What the check says of the schedule."""
        try:
            return str(self.schedule.check(self.dtypes, arch=self.plan.arch, seconds=max(1.0, self.seconds)))
        except PipelineError as error:
            return f"{type(error).__name__}: {error}"

    def blocked(self) -> list[Row]:
        """What the warps have written."""
        waits = []
        for i, row in enumerate(self.rows.tolist()):
            number, cta, slot, parity, *turns = row
            if number:
                waits.append(Row(number - 1, cta, i % self.plan.warps, slot, parity, tuple(turns)))
        return waits


def hang(schedule: Schedule, plan: Plan, blocked: list[Row], seconds: float, view: str) -> DeadlockError:
    """The error for a kernel that has given up: which warps wait for which slots, at which line, and the check's report.

    Args:
        schedule, plan: Of the kernel.
        blocked: What the warps have written.
        seconds: That a wait may take.
        view: What the check says.
    """
    with ONE_AT_A_TIME:
        waits = sites(trace(schedule, plan))
    alike: dict[str, list[Row]] = {}
    for row in sorted(blocked, key=lambda row: (row.cta, row.warp)):
        alike.setdefault(f"{_role(plan, row.warp)}|{_what(plan, waits[row.site], row)}", []).append(row)
    lines = []
    for text, same in alike.items():
        role, _, what = text.partition("|")
        warps, ctas = (_numbers(word, [getattr(row, word.lower()) for row in same]) for word in ("warp", "CTA"))
        lines.append(f"  {role} ({warps}) of {ctas} waits for {what}")
    waiting = {_role(plan, row.warp) for row in blocked}
    others = [role.name for role in plan.roles if role.name not in waiting]
    if others:
        lines.append(f"  no warp of {', '.join(others)} has waited so long for a ring")
    text = "\n".join(
        [
            f"{type(schedule).__name__} hangs on the GPU: a wait took more than {seconds:g} s (watchdog).",
            *lines,
            "The check says:",
            *(f"  {line}" for line in view.splitlines()),
            "The kernel was stopped, after which CUDA refuses all work of this process. Fix: start it anew.",
        ]
    )
    error: Any = DeadlockError(text)
    error.waits = tuple(blocked)
    lines_of = [line for row in blocked if (line := _line(waits[row.site].node.where))]
    error.where = next(iter(sorted(lines_of, key=_of_library)), None)
    return error


def _role(plan: Plan, warp: int) -> str:
    return next((x.name for x in plan.roles if x.first_warp <= warp < x.first_warp + x.warps), "no role")


def _line(where: str | None) -> str | None:
    """The user's line, where a shipped schedule was reached from one."""
    return getattr(where, "user", "") or where


def _of_library(line: str) -> bool:
    return line.startswith(f"tmapipe{os.sep}")


def _what(plan: Plan, site: Site, row: Row) -> str:
    ring = next((ring.name for ring in plan.rings if site.barrier in ring.barriers), None)
    text = f"{site.barrier.name}[{row.slot}], parity {row.parity}"
    text += f" (slot {row.slot} of ring {ring})" if ring else ""
    text += f", at {_line(site.node.where)}" if site.node.where else ""
    for turn, loop in zip(row.turns, site.loops, strict=False):
        line = _line(loop.where)
        own = line is None or _of_library(line)  # the loop over tiles
        text += f", in iteration {turn} of {'its tiles' if own else f'the loop at {line}'}"
    return text


def _numbers(word: str, numbers: list[int]) -> str:
    """E.g. ``warp 3``, ``CTAs 0, 2``: at most eight."""
    each = sorted(set(numbers))
    if len(each) == 1:
        return f"{word} {each[0]}"
    return f"{word}s {', '.join(map(str, each[:8]))}" + (f" and {len(each) - 8} others" if len(each) > 8 else "")


# ---- stamps ----------------------------------------------------------------------------------------------------------
#
# Each warp that stamps has a row of memory. The kernel's first and last words in it are the time in nanoseconds and the clock,
# by which rows are compared. Behind them are records.
#
# The program is there twice: with stamps for CTAs that have rows, and as in the plain kernel for the others. If tiles are
# shared out in advance, the loop with stamps is followed by the same one without, so that the CTA ends not much later.

ROW = 1 << 17  #: bytes of a row, a power of two, at a multiple of it: when it is full, nothing more is written
HEAD = 32  #: before the records: nanoseconds, clock and multiprocessor at the start; nanoseconds, clock and end
ROOM = 256  #: bytes at a row's end, more than any record has
PART = 3  #: of a CTA's tiles the first third is stamped: if these take 5 % longer, a CTA with more than one ends 2.5 % later
EVERY = (1 << 31) - 1  #: tiles, for a launch that stamps them all

# A register pair has the address of the next record, another register the lower half of the row's end: a thread without a row
# has 0 there. The lower half alone counts, as no row crosses a multiple of 2^32.
_BEGIN = """.reg .b64 stamp_at; .reg .b32 stamp_end, stamp_none, stamp_clock<{places}>;
{{
.reg .pred mine, has; .reg .b32 a, b, warp, cta, most; .reg .b64 row, now;
mov.b64 {{a, most}}, $2; shr.u32 most, most, 31; mov.u32 a, %tid.x; xor.b32 a, a, most; shr.u32 warp, a, 5; and.b32 b, a, 31;
setp.eq.u32 mine, b, 0; shr.u32 a, {warps}, warp; and.b32 a, a, 1; setp.ne.and.u32 mine, a, 0, mine;
{cta}; mov.b64 {{a, most}}, $2; setp.lt.u32 has, cta, a; selp.b32 $0, most, 0, has; and.pred mine, mine, has;
mov.u32 a, 1; shl.b32 a, a, warp; sub.u32 a, a, 1; and.b32 a, a, {warps}; popc.b32 a, a;
mad.lo.u32 a, cta, {each}, a; mad.wide.u32 row, a, {nbytes}, $1; add.u64 stamp_at, row, {head};
cvt.u32.u64 a, row; add.u32 a, a, {nbytes} - {room}; selp.b32 stamp_end, a, 0, mine;
mov.u64 now, %globaltimer; mov.u32 a, %clock; mov.u32 b, %smid;
@mine st.global.b64 [row], now;
@mine st.global.v2.b32 [row+8], {{a, b}};
}}"""
# The CTA's number. With %ctaid, from which tiles are computed, ptxas would compute these in each thread. Nor is the warp's
# number that of the program, by an unknown zero: in a uniform register, predicates of it would take longer.
_CTA = "mov.u32 cta, %cluster_nctaid.x; mov.u32 a, %clusterid.x; mov.u32 b, %cluster_ctarank; mad.lo.u32 cta, cta, a, b"
_CLOCK = "mov.u32 stamp_clock{}, %clock;"
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
        isa: What the kernel was launched with is its `stamps`, as of `launched`.
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
        self.plan, mask, each = isa.plan, sum(1 << warp for warp in warps), len(warps)
        cta = _CTA if self.plan.target.tma else "mov.u32 cta, %ctaid.x"
        head = _BEGIN.format(warps=mask, each=each, nbytes=ROW, head=HEAD, room=ROOM, places=IN_RECORD, cta=cta)
        (self.tiles,) = emit_ptx(head, "ll", *isa.stamps, words=1)  # that are stamped: 0 of a CTA without rows

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

    def splits(self, node: Node) -> bool:
        """Whether the first turns of a loop are stamped, and then comes the same loop without stamps."""
        return isinstance(node, For) and (id(node), True) in self.numbers

    def most(self, node: Node) -> Any:
        """How many turns of such a loop are stamped: of the same tiles in all roles."""
        warp = min(self.places[self.numbers[id(node), True]].warps)
        of = next(role for role in self.plan.roles if 0 <= warp - role.first_warp < role.warps)
        return self.tiles // of.teams if of.teams > 1 else self.tiles

    def left(self, node: Node, more: Any) -> None:
        """Between the two loops. more: whether turns come that are not stamped."""
        self._stamp(self.numbers[id(node), True], lambda _: more)

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
        at, slots = sum(map(whole, record.groups[: self.group])), list[Any]()
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


def launched(plan: Plan, stamps: Sequence[int], tiles: int) -> list[int]:
    """What a stamped kernel is launched with: the address of the rows, and how many CTAs have some; from bit 32 on, how many
    tiles of each are stamped. Bit 63 is the `zero` of the stamped form, as `GpuWarp` has it.

    Args:
        plan: Of the kernel.
        stamps: The address and the CTAs, then perhaps the tiles; by default one of `PART`. Of a plain kernel nothing.
        tiles: Of a CTA, at most.
    """
    if not stamps:
        return []
    address, ctas, *given = stamps
    teams = math.lcm(*(role.teams for role in plan.roles))
    most = given[0] if given else max(teams, -(-tiles // PART) // teams * teams)
    return [address, ctas + (most << 32)]


def _told(number: int, slots: int) -> tuple[list[str], list[str]]:
    """The instructions that make a record's last words, and these: the slots are operands $0, $1, ... With a product or a sum
    ptxas would compute slots in each thread, even in loops without stamps: such is its choice of uniform registers."""
    pairs = [(f"${i}", f"${i + 1}" if i + 1 < slots else "") for i in range(1, slots, 2)] + [
        (str(number), "$0" * (slots > 0))
    ]
    lines = [
        f"shl.b32 word{i}, {high}, 16; xor.b32 word{i}, word{i}, {low};" if high else f"mov.b32 word{i}, {low};"
        for i, (low, high) in enumerate(pairs)
    ]
    return lines, [f"word{i}" for i in range(len(pairs))]


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
