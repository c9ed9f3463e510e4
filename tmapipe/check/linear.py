"""The linear check: one run of the model, watched with vector clocks, decides every interleaving. Also errors of the model as
findings, and how long a check may take."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import sys
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from tmapipe import isa as effects
from tmapipe.check import Finding, FindingLog, Step, events_of
from tmapipe.check.lifetimes import Contents, Lifetimes, Results
from tmapipe.check.phases import Barriers, Clocks, Phases
from tmapipe.check.slots import Fences, Slots, part_of
from tmapipe.errors import InputError
from tmapipe.isa import ALL_LANES, TABLE, Proxy, Scope, Start, declared, scope_of
from tmapipe.isa.ops import Counted, Flight, LoadComplete
from tmapipe.model.layout import Kind, Layout, Shapes
from tmapipe.model.run import bar_name, lines, who

# ---- linear ----------------------------------------------------------------------------------------------------------
#
# The table of operations says which effects an operation has. Here, each effect of a transition is handed to the rules that
# it concerns: `phases` (mbarriers), `barriers` (of warps), `slots` (races and proxies), `lifetimes` (initialization, exit,
# scope, ownership), `fences` (that order nothing), `results` (loads of what was stored) and `contents` (tiles that threads
# write). docs/internals/checker.md has the argument why one run is enough.


class LinearCheck:
    """Watches one run: pass `watch` as the scheduler's watcher, then call `finish`; `findings` has the result.

    holding: the `Rules`, which have state; loads: of loads in flight, the issuer's clock and its step; last: by warp, its last
    asynchronous issue, for reports.
    """

    def __init__(self, layout: Layout, shapes: Shapes, log: FindingLog | None = None, rules: OfOps | None = None):
        self.layout = layout
        self.clocks = Clocks(layout)
        self.log = log or FindingLog(layout)
        self.phases = Phases(self.clocks, self.log)
        self.barriers = Barriers(self.clocks, self.log)
        self.slots = Slots(self.clocks, self.log)
        self.lifetimes = Lifetimes(self.clocks, self.log, shapes)
        self.fences = Fences(self.clocks, self.log, self.slots)
        self.results = Results(self.clocks, self.log, places=bool(shapes))
        self.contents = Contents(self.clocks, self.log)
        holding = self.phases, self.barriers, self.slots, self.lifetimes, self.results, self.contents
        self.holding: tuple[Any, ...] = holding
        self.loads: dict[Flight, tuple[Any, Step]] = {}
        self.last: dict[int, Step] = {}
        self.rules = rules or _rules()

    def copy(self) -> LinearCheck:
        """A check that goes on independently from here, where nothing is in flight, and reports to the same log. It does not
        know which fences are redundant."""
        other = copy.copy(self)
        other.clocks = self.clocks.copy()
        other.holding = tuple(rules.copy(other.clocks) for rules in self.holding)
        other.phases, other.barriers, other.slots, other.lifetimes, other.results, other.contents = other.holding
        other.fences = Fences(other.clocks, self.log, other.slots)
        other.loads, other.last = {}, dict(self.last)
        return other

    @property
    def findings(self) -> list[Finding]:
        return list(self.log.found.values())

    @property
    def order(self) -> int:
        """Transitions so far."""
        return self.log.order

    def watch(self, agent: Any, op: Any, facts: Any) -> None:
        """One transition of the machine, in the order of execution."""
        if type(agent) is int:
            step = self._step(agent, op)
            for rule, effect in self.rules[type(op)]:
                rule(self, effect, step, facts)
        else:
            self.log.order += 1
            if type(op) is LoadComplete:
                self._landed(agent, facts[0])

    def _step(self, agent: int, op: Any) -> Step:
        """The next step of the run, an operation of this warp."""
        self.log.order += 1
        return Step(self.log.order, agent, op, time=self.clocks.tick(agent))

    def refused(self, agent: int, op: Any) -> None:
        """An operation that the machine refused, since something in flight accesses its slot: a race, by the clocks, too."""
        step, own = self._step(agent, op), self.layout.cta_of(agent)
        for effect in declared(type(op)).effects:
            if isinstance(effect, effects.Access):
                self.slots.access(step, effect)
            elif isinstance(effect, Start):
                mask = getattr(op, effect.mask) if effect.mask else None
                ctas = [own] if mask is None else [cta for cta in range(self.layout.ctas) if mask >> cta & 1]
                self.slots.start(step, effect, tuple(Flight("", agent, -1, cta) for cta in ctas))

    def finish(self, through_async: Container[str] = ()) -> None:
        """After a run to its end. through_async: names of buffers that TMA or wgmma access in other runs."""
        self.lifetimes.finish()
        self.fences.finish(through_async)

    # ---- what effects do to clocks: a method for each class of effects ---------------------------------------------

    def _Init(self, effect: effects.Init, step: Step, facts: Any) -> None:
        self.lifetimes.init(step, self.layout.flat_bar(step.agent, getattr(step.op, effect.bar)))

    def _FenceInit(self, effect: effects.FenceInit, step: Step, facts: Any) -> None:
        self.lifetimes.fence_init(step)

    def _Wait(self, effect: effects.Wait, step: Step, phase: int) -> None:
        own = getattr(step.op, effect.bar)
        bar = self.layout.flat_bar(step.agent, own)
        self.lifetimes.use(step, bar, far=False)
        self.lifetimes.wait(step, own)
        self.phases.wait(step, bar, phase)
        if self.contents.of:
            self.contents.wait(step.agent, own)
        for slot in self.slots.copied.get((bar, phase), ()):
            self.fences.access(step.agent, slot)

    def _count(self, effect: _Counts, step: Step, facts: tuple[Counted, ...]) -> None:
        """Arrivals, arming, or both at once."""
        (arrive, arm), op = effect, step.op
        scope = None if arrive is None else scope_of(arrive.scope, op)
        lanes = getattr(op, arrive.lanes) if arrive is not None and arrive.lanes else 1
        order_only = scope is None or scope is Scope.RELAXED
        if len(facts) > 1 and arrive is not None and arrive.lanes:
            self._laps_itself(step.in_phase(facts[0].phase), facts[0].bar, lanes)
        for counted in facts:
            bar = counted.cta * self.layout.nbars + counted.bar
            far = counted.cta != self.layout.cta_of(step.agent)
            self.lifetimes.use(step, bar, far)
            if far:
                self.lifetimes.arrive_far(step, bar, scope)
            if arm is None and counted.nbytes:
                counted = counted._replace(nbytes=0)
            elif arrive is None and counted.arrivals:
                counted = counted._replace(arrivals=0)
            self.phases.arrive(step, bar, counted, lanes == ALL_LANES, order_only)

    def _laps_itself(self, step: Step, own: int, lanes: int) -> None:
        bar, count = self.layout.flat_bar(step.agent, own), self.layout.barrier(own).count
        arrive = f"{lanes.bit_count()} lanes of {who(self.layout, step.agent)} arrive at {bar_name(self.layout, bar)}"
        text = f"{arrive}, whose count is {count}: they complete phase {step.phase} and go on to count in the next"
        fix = "let one lane arrive (lanes=1), or count every lane that arrives"
        self.log.add(Kind.SURPLUS_ARRIVAL, text, fix, step, bar=bar, phase=step.phase)

    def _ArriveAt(self, effect: effects.ArriveAt, step: Step, facts: tuple[int, bool]) -> None:
        relaxed = scope_of(effect.scope, step.op) is Scope.RELAXED
        self.barriers.arrive(step, getattr(step.op, effect.barrier) if effect.barrier else None, facts, relaxed)

    def _WaitAt(self, effect: effects.WaitAt, step: Step, generation: int) -> None:
        self.barriers.wait(step.agent, getattr(step.op, effect.barrier) if effect.barrier else None, generation)

    def _SyncLanes(self, effect: effects.SyncLanes, step: Step, facts: Any) -> None:
        self.clocks.synchronize_lanes(step.agent)

    def _FenceProxy(self, effect: effects.FenceProxy, step: Step, facts: Any) -> None:
        if getattr(step.op, effect.lanes) == ALL_LANES:  # otherwise which lanes have written is not known
            (self.fences if effect.space == "shared" else self.results).fence(step)

    def _Access(self, effect: effects.Access, step: Step, facts: Any) -> None:
        if self.contents.of and not effect.mask:
            slot = getattr(step.op, effect.slot)
            if not effect.write:
                self.contents.read(step, slot, part_of(effect, step.op))
            elif effect.parts:
                self.contents.write(step, slot, part_of(effect, step.op))
        if self.slots.access(step, effect) is Proxy.GENERIC:
            self.fences.access(step.agent, getattr(step.op, effect.slot))
        if effect.mask:
            cta = getattr(step.op, effect.mask).bit_length() - 1
            if cta != self.layout.cta_of(step.agent):
                self.lifetimes.read_far(step, cta)

    def _Start(self, effect: Start, step: Step, flights: tuple[Flight, ...]) -> None:
        self.last[step.agent] = step
        self.slots.start(step, effect, flights)
        if self.contents.of and not effect.write:
            self.contents.read(step, getattr(step.op, effect.slot))
        if effect.until.group is None:
            clock = self.clocks.of[step.agent].copy()
            for flight in flights:
                bar = flight.cta * self.layout.nbars + getattr(step.op, effect.until.bar)
                self.lifetimes.use(step, bar, far=effect.proxy is Proxy.ASYNC)
                self.loads[flight] = clock, step
            self.results.load(step, effect.until.bar, effect.proxy is Proxy.ASYNC, flights)
        elif effect.until.group is effects.Group.BULK:
            self.results.store(step, flights[0])

    def _Tile(self, effect: effects.Tile, step: Step, facts: Any) -> None:
        if not effect.inside:
            return
        anywhere = bool(effect.anywhere) and getattr(step.op, effect.anywhere)
        self.lifetimes.start_tile(step, getattr(step.op, effect.part), getattr(step.op, effect.at), anywhere)

    def _EndGroup(self, effect: effects.EndGroup, step: Step, facts: Any) -> None:
        if effect.group is effects.Group.BULK:
            self.slots.commit(facts)
            self.results.commit(facts)

    def _AwaitGroup(self, effect: effects.AwaitGroup, step: Step, covered: int) -> None:
        if effect.group is effects.Group.BULK:
            self.slots.bulk_wait(step, covered)
            if not (effect.read and getattr(step.op, effect.read)):
                self.results.wait(step, covered)
        else:
            self.slots.mma_wait(step, covered)

    def _Global(self, effect: effects.Global, step: Step, facts: Any) -> None:
        if effect.how == "write" and effect.part:
            self.results.store(step, None)

    def _Return(self, effect: effects.Return, step: Step, facts: Any) -> None:
        self.lifetimes.exit(step.agent)
        self.barriers.exit(step.agent)

    def _landed(self, flight: Flight, counted: Counted) -> None:
        clock, step = self.loads.pop(flight)
        bar = counted.cta * self.layout.nbars + counted.bar
        step = step.in_phase(counted.phase)
        self.slots.landed(flight, counted.phase)
        self.results.landed(flight, counted.phase)
        self.lifetimes.landed(step, bar)
        self.phases.land(clock, step, bar, counted)


_Counts = tuple["effects.Arrive | None", "effects.Arm | None"]
Rule = Callable[[LinearCheck, Any, Step, Any], None]
OfOps = dict[type, list[tuple[Rule, Any]]]


def _rules() -> OfOps:
    """By operation, the rules of its effects. Registers belong to one warp, so only the machine looks at them."""
    found: OfOps = {}
    for op, of in TABLE.items():
        counts = of.effect(effects.Arrive), of.effect(effects.Arm)
        rules: list[tuple[Rule, Any]] = [(LinearCheck._count, counts)] if any(counts) else []
        methods = ((getattr(LinearCheck, f"_{type(effect).__name__}", None), effect) for effect in of.effects)
        found[op] = [*rules, *((method, effect) for method, effect in methods if method is not None)]
    return found


# ---- failures --------------------------------------------------------------------------------------------------------
#
# Errors of the machine as findings.


_IN_FLIGHT = ("slot-being-loaded", "slot-being-stored", "slot-read-by-wgmma")


def hazard_findings(error: Any, check: LinearCheck, programs: Sequence[Sequence[Any]] = ()) -> list[Finding]:
    """The findings of an operation that the machine refused. Accesses to slots in flight are races, which the clocks describe
    better."""
    rule, agent, op = error.rule, error.agent, error.op
    if rule in _IN_FLIGHT and isinstance(agent, int) and op is not None:
        known = len(check.findings)
        check.refused(agent, op)
        if len(check.findings) > known:
            return []
    kind, fix, layout = error.kind, error.fix, check.layout
    steps = [Step(check.order + 1, agent, op)] if isinstance(agent, int) and op is not None else []
    issues: list[Step] = []
    if isinstance(agent, Flight):
        issues = [check.loads[agent][1]] if agent in check.loads else []
    elif rule == "exit-bytes-pending":
        issues = _left_with_bytes(check, layout.cta_of(agent))
    elif rule == "setmaxnreg-warpgroup":
        issues = _uneven_sets(programs, layout.cta_warps(layout.cta_of(agent)))
    elif rule.startswith("exit-") and agent in check.last:
        issues = [check.last[agent]]
    if rule == "exit-unawaited-store" and check.slots.idle_waits:
        wait = next(iter(check.slots.idle_waits.values()))
        if wait.agent != agent:
            kind, issues = Kind.GROUP_OWNER, [wait]
            fix = f"let {who(layout, agent)}, which commits the group, wait for it"
    shown = events_of(layout, [*issues, *steps])
    where = lines((*(e.where for e in shown), error.where))
    agents = (who(layout, agent),) if isinstance(agent, int) else ()
    return [Finding(kind, error.text, fix, agents, where, steps=shown)]


def blamed(tx: int, steps: list[Step]) -> list[Step]:
    """Of the steps that counted in an mbarrier's phase, the one that leaves the phase with *tx* bytes: the expect-tx (or the
    load, if *tx* is below 0) of as many bytes, or the last one."""
    counts = ((step, _nbytes(step.op, armed=tx > 0)) for step in reversed(steps))
    found = [(step, nbytes) for step, nbytes in counts if nbytes]
    return [step for step, nbytes in found if nbytes == abs(tx)][:1] or [step for step, _ in found][:1]


def _uneven_sets(programs: Sequence[Sequence[Any]], agents: range) -> list[Step]:
    """The last setmaxnreg of a warp of these whose warpgroup has other ones."""
    sets = {a: [op for op in programs[a] if declared(type(op)).effect(effects.SetRegisters)] for a in agents}
    counts = {a: [op.registers for op in sets[a]] for a in agents}
    for first in agents[::4]:
        four = [counts[a] for a in agents if a in range(first, first + 4)]
        odd = min(range(len(four)), key=lambda i: (four.count(four[i]), -len(four[i])))
        if four.count(four[odd]) < len(four):
            return [Step(0, first + odd, op) for op in sets[first + odd][-1:]]
    return []


def _left_with_bytes(check: LinearCheck, cta: int) -> list[Step]:
    """The step that leaves bytes on an mbarrier of a CTA that exits."""
    for phase in check.phases.now[cta * check.layout.nbars : (cta + 1) * check.layout.nbars]:
        tx = sum(_nbytes(s.op, armed=True) - _nbytes(s.op, armed=False) for s in phase.steps)
        if tx:
            return blamed(tx, phase.steps)
    return []


def _nbytes(op: Any, armed: bool) -> int:
    """The bytes that an operation arms, or that it delivers."""
    of = declared(type(op))
    arm, start = of.effect(effects.Arm), of.effect(Start)
    if armed:
        return 0 if arm is None else getattr(op, arm.nbytes)
    return 0 if start is None or not start.until.nbytes else getattr(op, start.until.nbytes)


# ---- patience --------------------------------------------------------------------------------------------------------
#
# How long a check may take, and what it says on a terminal while it takes long.

VARIABLE = "TMAPIPE_CHECK_SECONDS"
QUIET = 5.0  # seconds before it says something
PAUSE = 0.25  # seconds between what it says
OFTEN = 128  # calls of `look` for one look at the clock
OF_PROOF = 0.75  # of the time; the rest is for problems that may show an error


class OutOfTime(Exception):
    """The time that the user has given is over."""


class Patience:
    """The time of one check. name: of the schedule; end: when the check must be over, by `time.monotonic`; doing: says what is
    being done."""

    def __init__(self, name: str, seconds: float | None):
        self.name, self.seconds = name, seconds
        self.began = self.said = time.monotonic()
        self.end = math.inf if seconds is None else self.began + seconds
        self.doing: Callable[[], str] = str
        self.calls = 0
        self.shown = False

    def look(self) -> None:
        """Raises `OutOfTime` if the time is over. Once in a while, says on a terminal what is being done."""
        now = time.monotonic()
        if now > self.end:
            raise OutOfTime(f"{self.seconds:g} seconds, the limit that was given, were not enough")
        if now - self.began > QUIET and now - self.said > PAUSE:
            self.said = now
            self.say(f"checking {self.name}, {now - self.began:.0f} s: {self.doing()}")

    def say(self, text: str) -> None:
        """Writes *text* in the place of what the terminal shows of this check."""
        with contextlib.suppress(AttributeError, OSError, ValueError):  # no stderr, or a closed one
            if sys.stderr.isatty():
                print(f"\r\033[K{text}"[:160], end="", file=sys.stderr, flush=True)
                self.shown = bool(text)


_present: ContextVar[Patience | None] = ContextVar("patience", default=None)


@contextlib.contextmanager
def patience(name: str, seconds: float | None) -> Iterator[None]:
    """A scope that has this time."""
    own = Patience(name, seconds)
    token = _present.set(own)
    try:
        yield
    finally:
        _present.reset(token)
        if own.shown:
            own.say("")


@contextlib.contextmanager
def doing(what: Callable[[], str], share: float = 1.0) -> Iterator[None]:
    """A scope in which *what* says what is being done, and which has this share of the time."""
    own = _present.get()
    if own is None:
        yield
        return
    before = own.doing, own.end
    own.doing, own.end = what, own.end if own.seconds is None else min(own.end, own.began + share * own.seconds)
    try:
        yield
    finally:
        own.doing, own.end = before


def look(*_: Any) -> None:
    """Calls `Patience.look` once in `OFTEN` calls: for code that runs often."""
    own = _present.get()
    if own is not None:
        own.calls += 1
        if own.calls % OFTEN == 0:
            own.look()


def look_now() -> None:
    """Calls `Patience.look` each time."""
    own = _present.get()
    if own is not None:
        own.look()


def given(seconds: Any) -> float | None:
    """The limit of time of a check: *seconds*, or what the environment says.

    Raises:
        InputError: It is no positive number of seconds.
    """
    name, value = "seconds", seconds
    if seconds is None:
        name, value = VARIABLE, os.environ.get(VARIABLE)
        if not value:
            return None
        with contextlib.suppress(ValueError):
            value = float(value)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        fix = "e.g. 30; left out, a check takes as long as it needs"
        raise InputError(name, value, "is a positive number of seconds", fix)
    return float(value)
