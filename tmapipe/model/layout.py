"""One cluster's parts, numbered for the model and named for people; the model's rules, and the errors for operations that
break them."""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.errors import HazardError, InputError, ScopeError
from tmapipe.isa.ops import Agent, Flight
from tmapipe.plan.model import Plan, Syncs
from tmapipe.plan.rings import Barrier, Buffer

if TYPE_CHECKING:
    from tmapipe.model.state import State


# ---- rules -----------------------------------------------------------------------------------------------------------
#
# What can be wrong, and the rules by which the machine refuses an operation: of which kind each is, and what to change.


class Kind(enum.Enum):
    """A kind of error. The value is the broken rule in a few words. A kind with `note` never fails a check."""

    DEADLOCK = "no agent can take another step"
    LAPPED_WAIT = "a parity wait that its barrier can overtake, or that can return two phases early"
    EARLY_ARRIVAL = "an arrival, arming or completion that can count for the phase before its own"
    SURPLUS_ARRIVAL = "more arrivals in a phase than the barrier's count"
    MISSING_ARRIVAL = "a phase that too few arrive at"
    TX_MISMATCH = "bytes armed and bytes delivered in a phase differ"
    COPY_BEFORE_ARM = "bytes can arrive before they are armed (they cancel out, but nothing orders them)"
    RACE = "two accesses to the same bytes, one of them a write, that nothing orders"
    PROXY = "accesses through different proxies, ordered but without the proxy fence"
    REDUNDANT_FENCE = "a proxy fence that orders nothing"
    STORE_SOURCE_REUSED = "a store's source overwritten before wait_group.read"
    RESULT_TOO_EARLY = "a result used before the full wait"
    GROUP_OWNER = "a bulk group waited for by another thread than the one that committed it"
    INIT_NOT_VISIBLE = "a barrier used before its initialization is visible"
    SCOPE = "an operation of CTA scope where a peer CTA takes part"
    EXITED_PEER = "a CTA that can leave while a peer still signals it or writes to it"
    IN_FLIGHT_AT_EXIT = "asynchronous work not waited for when its CTA leaves"
    TAIL_OWNER = "a ring tailed by a role that does not own it"
    NAMED_BARRIER = "a named barrier's id is out of range or shared, or its participants differ"
    OUT_OF_RANGE = "a copy, slot, mask or peer outside what there is"
    DEPENDENCY = "global memory touched before the kernels before this one have ended"
    REGISTERS = "the register budget does not fit"
    SHARED_MEMORY = "shared memory does not fit"
    SLOT_ORDER = "a wait for another slot or parity than the ring's next"
    TRIP_COUNTS = "roles disagree on how many slots they hand on"
    OUTPUT_RACE = "two stores to one element of an output, with different values, that nothing orders"
    ROW_IN_PARTS = "a reduction that counts a whole row, of which a tile may have a part"
    PART_REDUCED = "a reduction over a tile's part of a dimension"
    UNREAD = "elements of an input that nobody loads"
    UNFILLED = "a tile is read that nobody has written, or not all of it"
    SAME_OUTPUT = "two stores of one value to one element of an output"
    UNWRITTEN = "elements of an output that nobody stores"
    ENDLESS = "a loop that goes on for ever"
    LIMIT = "a resource limit was reached before the answer was known"

    @property
    def note(self) -> bool:
        return self in _NOTES


_NOTES = (Kind.REDUNDANT_FENCE, Kind.COPY_BEFORE_ARM, Kind.SAME_OUTPUT, Kind.UNWRITTEN, Kind.PART_REDUCED, Kind.UNREAD)

#: By the rule's short name. What breaks any other rule is a race.
RULES = {
    "before-dependencies": (
        Kind.DEPENDENCY,
        "execute griddepcontrol.wait first (k.dependency_wait()), or name a tensor that no kernel writes in Role(early=)",
    ),
    "exit-before-dependencies": (Kind.DEPENDENCY, "let each warp execute griddepcontrol.wait before it returns"),
    "surplus-arrival": (
        Kind.SURPLUS_ARRIVAL,
        "wait for the end of the phase before (a free slot, say), or make the count match the arrivals of one phase",
    ),
    "tx-below-zero": (Kind.TX_MISMATCH, "arm as many bytes as the copies of one phase deliver"),
    "tx-overflow": (Kind.TX_MISMATCH, "arm as many bytes as the copies of one phase deliver"),
    "exit-bytes-pending": (Kind.TX_MISMATCH, "deliver the bytes that are armed, or arm fewer"),
    "barrier-count": (Kind.OUT_OF_RANGE, "initialize it with the number of arrivals of one phase"),
    "barrier-before-init": (Kind.INIT_NOT_VISIBLE, "initialize it, then fence and synchronize, before the first use"),
    "barrier-init-twice": (Kind.INIT_NOT_VISIBLE, "initialize each barrier once"),
    "cluster-barrier": (Kind.NAMED_BARRIER, "let every warp of the cluster arrive and wait in turn"),
    "named-barrier-id": (Kind.NAMED_BARRIER, "use an id from 1 to 15 that no other barrier has"),
    "named-barrier-threads": (Kind.NAMED_BARRIER, "let all participants name the same number of threads"),
    "mask-outside-cluster": (Kind.OUT_OF_RANGE, "set bits only for CTAs that the cluster has"),
    "tma-alignment": (
        Kind.OUT_OF_RANGE,
        "start tiles at multiples of 16 bytes along the contiguous dimension; "
        'if the tensor has other elements, say so: check({name: "fp32"}), or dtype= of the stage',
    ),
    "copy-alignment": (Kind.OUT_OF_RANGE, "start tiles at multiples of the bytes that a thread copies"),
    "bulk-outside": (Kind.OUT_OF_RANGE, "keep to whole pieces inside, e.g. by min() and max(), or use a TmaLoadStage"),
    "tma-store-start": (Kind.OUT_OF_RANGE, "start stores at index 0 or later along every dimension"),
    "wait-parity": (Kind.OUT_OF_RANGE, "wait for the lowest bit of the number of laps: laps & 1"),
    "read-outside": (Kind.OUT_OF_RANGE, "begin the read earlier, or load a larger tile"),
    "no-such-stage": (Kind.OUT_OF_RANGE, "count stages from 0 to stages - 1"),
    "peer-exited": (Kind.EXITED_PEER, "let each CTA wait for its peers' last signals before it leaves"),
    "exit-load-in-flight": (Kind.IN_FLIGHT_AT_EXIT, "wait for every load before the CTA leaves"),
    "exit-uncommitted-store": (
        Kind.IN_FLIGHT_AT_EXIT,
        "commit the group (bulk_commit_group) and wait for it; leaving a slot after its store does both",
    ),
    "exit-unawaited-store": (Kind.IN_FLIGHT_AT_EXIT, "wait for the group (bulk_wait_group) in the thread that made it"),
    "exit-unawaited-wgmma": (Kind.IN_FLIGHT_AT_EXIT, "wait for the groups (wgmma_wait) before the warp returns"),
    "accumulator-in-flight": (Kind.RESULT_TOO_EARLY, "wait for all groups (wgmma_wait(0)) before the sums are used"),
    "wgmma-fence": (Kind.RESULT_TOO_EARLY, "execute wgmma_fence before the first wgmma on these registers"),
    "wgmma-warpgroup": (Kind.OUT_OF_RANGE, "give the role whole warpgroups"),
    "wgmma-diverged": (Kind.OUT_OF_RANGE, "let all four warps of the warpgroup issue the same wgmmas"),
    "output-shared": (
        Kind.OUTPUT_RACE,
        "let each output tile store to places of its own: name all dimensions of the grid in the store, or reduce=",
    ),
    "output-twice": (Kind.OUTPUT_RACE, "store each place once, or wait for the first store in full (a StoredStage)"),
    "output-unwritten": (Kind.UNWRITTEN, "store all tiles of it, or pass the output if others are to stay as they are"),
    "setmaxnreg-direction": (Kind.REGISTERS, "decrease to fewer registers, increase to more"),
    "setmaxnreg-range": (Kind.REGISTERS, "use 24 to 256 registers in steps of 8"),
    "setmaxnreg-warpgroup": (Kind.REGISTERS, "let all four warps of the warpgroup set the same number"),
}


# ---- layout ----------------------------------------------------------------------------------------------------------
#
# Layout: one cluster's parts, numbered for the machine and named for people.


Where = Callable[[int], "str | None"]  # gives the line that a warp is at
Shapes = dict[str, tuple[int, ...]]  # of tensors, by name


def shapes_of(tensors: dict[str, Any]) -> Shapes:
    """The shapes of arrays by name. A shape in the place of an array is taken as it is."""
    return {name: tuple(getattr(tensor, "shape", tensor)) for name, tensor in tensors.items()}


class Layout:
    """The numbers of a cluster's agents, mbarriers and slots.

    Agent (a warp): ``cta * warps + warp``. Within a CTA, mbarriers and slots are numbered in the plan's order. The state keeps
    the mbarriers and slots of all CTAs at ``cta * mbarriers + bar`` and ``cta * slots + slot``.

    cta: if given, the cluster has only this CTA, which then has number 0.
    """

    def __init__(self, plan: Plan, cta: int | None = None):
        self.plan, self.syncs = plan, Syncs(plan)
        #: stages and scratch that threads write -> (role that does, ring or "", line of its body), for a check to look at
        self.written: dict[str, tuple[str, str, str | None]] = {}
        self.ctas, self.warps = 1 if cta is not None else plan.cluster_size, plan.warps
        self.first_cta = cta or 0
        self.agents = self.ctas * self.warps
        self.warpgroups = -(-self.warps // 4)  # a CTA; the last one may lack warps
        self.bars = [(barrier, stage) for barrier in plan.barriers for stage in range(barrier.stages)]
        self.slots = [(buffer, stage) for buffer in plan.buffers for stage in range(buffer.stages)]
        #: by mbarrier and by slot: (array, position in it, positions around); slots of several owners are several arrays
        self.bar_places = [(barrier.name, stage, barrier.stages) for barrier, stage in self.bars]
        self.slot_places = [_place(buffer, stage) for buffer, stage in self.slots]
        self.bar_base = _bases(plan.barriers)
        self.slot_base = _bases(plan.buffers)
        self.nbars, self.nslots = len(self.bars), len(self.slots)
        self.ranges = [slot_range(buffer, stage) for buffer, stage in self.slots]
        #: slots that share bytes with each slot, itself included
        self.aliases = tuple(
            tuple(j for j, other in enumerate(self.ranges) if other[0] < own[1] and own[0] < other[1])
            for own in self.ranges
        )
        self.roles = ["idle"] * self.warps
        self.early: list[tuple[str, ...]] = [()] * self.warps
        for role in plan.roles:
            own = slice(role.first_warp, role.first_warp + role.warps)
            self.roles[own], self.early[own] = [role.name] * role.warps, [role.early] * role.warps
        self.whole_warpgroup = [
            all(w < self.warps and self.roles[w] == self.roles[warp] for w in range(warp // 4 * 4, warp // 4 * 4 + 4))
            for warp in range(self.warps)
        ]
        self.loads = {load.name: load for load in plan.loads}
        self.stores = {store.name: store for store in plan.stores}
        self.matmuls = {matmul.name: matmul for matmul in plan.matmuls}

    # ---- numbers --------------------------------------------------------------------------------------------------

    def cta_of(self, agent: int) -> int:
        """The CTA of a warp."""
        return agent // self.warps

    def cta_warps(self, cta: int) -> range:
        """The warps of a CTA."""
        return range(cta * self.warps, (cta + 1) * self.warps)

    def group_of(self, agent: int) -> int:
        """The number in the cluster of a warp's warpgroup."""
        cta, warp = divmod(agent, self.warps)
        return cta * self.warpgroups + warp // 4

    def group_warps(self, group: int) -> range:
        """The four warps of a warpgroup."""
        cta, number = divmod(group, self.warpgroups)
        first = cta * self.warps + 4 * number
        return range(first, first + 4)

    def flat_bar(self, agent: int, bar: int) -> int:
        """The number in the cluster of an mbarrier of the warp's CTA."""
        return agent // self.warps * self.nbars + bar

    def barrier(self, bar: int) -> Barrier:
        """The barriers of the plan to which the mbarrier belongs; *bar* with or without the CTA."""
        return self.bars[bar % self.nbars][0]

    # ---- names ----------------------------------------------------------------------------------------------------

    def role(self, agent: int) -> str:
        """The role of an agent's warp; "idle" for warps outside any."""
        return self.roles[agent % self.warps]

    def agent_name(self, agent: int | Flight) -> str:
        """E.g. ``math (warp 5) of CTA 1`` or ``TMA load 3 of load (warp 0) of CTA 0, to CTA 1``."""
        if isinstance(agent, Flight):
            if agent.kind == "wgmma":
                group = agent.issuer % self.warpgroups
                return f"wgmma {agent.serial} of {self.roles[4 * group]} (warpgroup {group}) of CTA {agent.cta}"
            to = f", to CTA {agent.cta}" if agent.kind != "store" and self.ctas > 1 else ""
            kind = f"TMA {agent.kind}" if agent.kind in ("load", "store") else agent.kind
            return f"{kind} {agent.serial} of {self.agent_name(agent.issuer)}{to}"
        cta, warp = divmod(agent, self.warps)
        return f"{self.roles[warp]} (warp {warp}) of CTA {self.first_cta + cta}"

    def bar_name(self, bar: int) -> str:
        """E.g. ``full[2]``; *bar* with or without the CTA."""
        barrier, stage = self.bars[bar % self.nbars]
        return f"{barrier.name}[{stage}]"

    def slot_name(self, slot: int) -> str:
        """E.g. ``a[1]``; *slot* with or without the CTA."""
        buffer, stage = self.slots[slot % self.nslots]
        return f"{buffer.name}[{stage}]"

    def named_barrier_name(self, id: int) -> str:
        """E.g. ``epilogue[1] (id 3)``, or the CTA's barrier for id 0."""
        if id == 0:
            return "the CTA's barrier"
        for barrier in (*self.plan.named_barriers, *self.syncs.made.values()):
            if barrier.id <= id < barrier.id + barrier.instances:
                instance = f"[{id - barrier.id}]" if barrier.instances > 1 else ""
                return f"{barrier.name}{instance} (id {id})"
        return f"named barrier {id}"

    def ring_of(self, bar: int | None, slot: int | None) -> str | None:
        """The ring that the mbarrier belongs to, or else the slot, if a load fills it."""
        for ring in self.plan.rings:
            if bar is not None and self.barrier(bar) in ring.barriers:
                return ring.name
            loads = [name for names in ring.loads.values() for name in names]
            if bar is None and slot is not None and self.slots[slot % self.nslots][0].name in loads:
                return ring.name
        return None

    def signallers(self, bar: int) -> tuple[str, ...]:
        """Roles that complete this mbarrier's phases by the plan's rings; empty if it belongs to none."""
        name = self.barrier(bar).name
        for ring in self.plan.rings:
            for phase, barrier in zip(ring.phases, ring.barriers, strict=False):
                if barrier.name == name:
                    return phase
        return ()


def _place(buffer: Buffer, stage: int) -> tuple[str, int, int]:
    around = buffer.stages // buffer.owners
    owner, position = divmod(stage, around)
    return f"slots of {buffer.name}" + (f" of owner {owner}" if buffer.owners > 1 else ""), position, around


def slot_range(buffer: Buffer, stage: int) -> tuple[int, int]:
    """First byte and end of a slot, from the start of the CTA's shared memory."""
    start = buffer.offset + stage * buffer.pitch
    return start, start + buffer.slot_bytes


def _bases(parts: tuple) -> dict[str, int]:
    starts = itertools.accumulate((part.stages for part in parts), initial=0)
    return {part.name: start for part, start in zip(parts, starts, strict=False)}


# ---- hazard ----------------------------------------------------------------------------------------------------------
#
# How the machine reports what the hardware would not order: one function that makes the error in the user's names.


def hazard(layout: Layout, rule: str, agent: Agent | None, op: Any, text: str) -> HazardError:
    """A `HazardError` that says which agent broke which rule, at which line, and how to mend it. It has the attributes rule,
    kind, agent, op, where, text and fix.

    rule: a short fixed name ("surplus-arrival"), for tests and reports; text: what happened, after the agent's name.
    """
    error: Any = HazardError()
    error.text = text if agent is None else f"{layout.agent_name(agent)} {text}"
    error.rule, error.agent, error.op = rule, agent, op
    error.kind, error.fix = RULES.get(rule, (Kind.RACE, "let the second access wait for the first"))
    error.where = None
    error.args = (f"{error.text} [{rule}]",)
    return set_location(error, getattr(op, "where", None))


def check_live(state: State, agent: Agent, op: Any, cta: int, does: str) -> None:
    """Raises an error if a CTA has no warp left. does: what the operation does to the CTA, in words that come before the CTA's
    name."""
    if not state.live[cta]:
        raise hazard(state.layout, "peer-exited", agent, op, f"{does} CTA {cta}, whose warps have all returned")


def check_aligned(layout: Layout, agent: Agent, op: Any, does: str, of: Buffer, unit: int = 0) -> None:
    """Raises an error if a tile does not begin at a multiple of so many bytes along the contiguous dimension, which is an
    illegal instruction.

    does: what the operation does, in words. of: a buffer with the type of the elements. unit: bytes of one copy of a thread;
    0: of TMA.
    """
    if op.at and op.at[-1] * of.dtype.bytes % (unit or ALIGNMENT):
        begins = f"{op.at[-1] * of.dtype.bytes} bytes along the last dimension, of {of.dtype.name}"
        text = f"{does} at {op.at}, that is {begins}: not a multiple of {unit or ALIGNMENT}"
        raise hazard(layout, "copy-alignment" if unit else "tma-alignment", agent, op, text)


def set_location(error: Any, where: str | None) -> HazardError:
    """Adds the source line of the operation to the message, unless it is there already: of a subclass of a shipped schedule,
    the subclass's (`Place`)."""
    if where is not None and error.where is None:
        error.where = where
        where = getattr(where, "user", "") or where
        error.args = (f"{error.text} [{error.rule}] at {where}. Fix: {error.fix}.",)
    return error


# ---- locate ----------------------------------------------------------------------------------------------------------
#
# Source lines of operations and of errors, in the user's files: the innermost frame outside the library, or in its
# schedules.


LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
SCHEDULES = os.path.join(LIBRARY, "schedules") + os.sep
_MACHINE = os.path.join(LIBRARY, "model") + os.sep
_ISA = os.path.join(LIBRARY, "isa") + os.sep
_PROGRAM = os.path.join(LIBRARY, "program") + os.sep
_TRACE = os.path.join(_PROGRAM, "__init__.py")
_KERNEL = os.path.join(LIBRARY, "kernel.py")
TRACED = "<traced program>"  #: the file of the code by which the model carries out a program


class Place(str):
    """A source line "file:line" of a shipped schedule (tmapipe/schedules). user: the innermost line outside tmapipe that led
    there, such as a line of a subclass."""

    user = ""


def locate(frame: FrameType | None = None) -> str | None:
    """ "file:line" of the innermost frame outside tmapipe or inside tmapipe/schedules (then a `Place`); if there is none, of
    the innermost frame outside tmapipe/model and tmapipe/isa. Starts at the caller, or at *frame*."""
    places: list[str | None] = [None, None, None]  # by rank less 1
    frame = frame or sys._getframe(1)
    while frame is not None and places[2] is None:
        if frame.f_code.co_filename == TRACED and (line := _line_here(frame)):
            return line if places[1] is None else _of_ranks(*places)
        rank, name = _classify(frame.f_code.co_filename, frame.f_code.co_name)
        if rank == 4:
            break
        if rank and places[rank - 1] is None:
            places[rank - 1] = f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return _of_ranks(*places)


def _of_ranks(own: str | None, shipped: str | None, user: str | None) -> str | None:
    if shipped is None:
        return user or own
    place = Place(shipped)
    place.user = user or ""
    return place


@contextlib.contextmanager
def line_of_errors() -> Iterator[None]:
    """Says in the message of an error of a body at which line of it it was raised."""
    try:
        yield
    except (InputError, ScopeError) as error:
        at = f" At {line_of(error)}."
        text = str(error).removesuffix(at)
        error.args = (text + "." * (not text.endswith((".", "?", "!"))) + at,)
        raise
    except RecursionError as error:
        text = "a function calls itself without an end that Python knows: of a branch on a number of the kernel, both arms are"
        raise ScopeError(f"{text} traced. Use a loop. At {line_of(error)}.") from error
    except Exception as error:
        _end_at_user(error)
        raise


def as_python(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Calls *function*, which does what Python does for a line of a body. If it raises an error, the error's traceback ends at
    that line."""
    return function(*arguments, **named)


def _end_at_user(error: Exception) -> None:
    frames, last = [], error.__traceback__
    while last is not None:
        frames.append(last)
        last = last.tb_next
    if frames[-1].tb_frame.f_code is as_python.__code__:
        for each in reversed(frames):
            if _classify(each.tb_frame.f_code.co_filename, each.tb_frame.f_code.co_name)[0] >= 2:
                each.tb_next = None
                return


def line_of(error: Exception) -> str | None:
    """The place where *error* was raised, as `locate` names places. The lines come from the traceback, since frames that have
    been left go on to other lines."""
    frames = list(traceback.walk_tb(error.__traceback__))
    for wanted in (3, 2):
        for frame, line in reversed(frames):
            if frame.f_code.co_filename == TRACED:
                place = _line_of_user(frame, line)
                return getattr(place, "user", "") or place
            rank, name = _classify(frame.f_code.co_filename, frame.f_code.co_name)
            if rank == wanted:
                return f"{name}:{line}"
    return locate(frames[-1][0])


def _line_here(frame: FrameType) -> str | None:
    """That of a frame's present line, which Python counts from the first line of its code, and is therefore kept."""
    known: dict[tuple[int, int], str | None] = frame.f_globals["known"]
    at = id(frame.f_code), frame.f_lasti
    if at not in known:
        known[at] = _line_of_user(frame, frame.f_lineno)
    return known[at]


def _line_of_user(frame: FrameType, line: int) -> str | None:
    """That which a line of the code of a traced program comes from."""
    place: str | None = frame.f_globals["lines"][line]
    return place


@functools.cache  # by file and function: equal code of two files is equal
def _classify(file: str, function: str) -> tuple[int, str]:
    """0: the machine, an instruction, or CuTe DSL; 1: elsewhere in the library; 2: a shipped schedule; 3: the user's code; 4:
    where a warp's program was started. And the file's name to show."""
    path = os.path.abspath(file)
    if (path, function) in ((_TRACE, "trace"), (_KERNEL, "kernel_main")):
        return 4, ""
    own, shipped = path.startswith(LIBRARY), path.startswith(SCHEDULES)
    traced = file in ("<if>", TRACED) or "nvidia_cutlass_dsl" in path  # by which CuTe DSL calls parts of a body
    rank = 0 if path.startswith((_MACHINE, _ISA, _PROGRAM)) or traced else 2 if shipped else 1 if own else 3
    shown = os.path.relpath(path, os.path.dirname(LIBRARY[:-1])) if path.startswith(LIBRARY) else path
    return rank, shown
