"""The CPU backend, a model of the hardware: `Machine` runs a kernel's program, every warp of every CTA, as scheduled.

`State` is the model itself, a transition system. Other drivers (the check, the exhaustive search of the tests) use it with
operations that were listed before. `tmapipe.isa` documents the operations.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any

import greenlet
import numpy as np

from tmapipe.errors import DeadlockError, HazardError, InputError, PipelineError
from tmapipe.isa.ops import Agent, Counted, Exit, Flight
from tmapipe.model.layout import Layout, Shapes, set_location
from tmapipe.model.layout import locate as find_location
from tmapipe.model.memory import Memory, Written
from tmapipe.model.run import Run, TraceEntry
from tmapipe.model.state import APPLY, WAITS, State
from tmapipe.model.warp import MachineIsa
from tmapipe.plan.model import Plan

__all__ = [
    "Counted", "Flight", "Layout", "Machine", "MachineIsa", "Run", "Scheduler", "State", "TraceEntry", "steps_for",
]  # fmt: skip

# ---- deadlock --------------------------------------------------------------------------------------------------------
#
# The text of a deadlock: one line per group of warps that wait for the same thing, and who could signal it.


def deadlock(state: State, blocked: dict[int, Any], where: Callable[[int], str | None] | None = None) -> DeadlockError:
    """The error for a state in which nothing can move. blocked: agent -> the operation it cannot execute; where: agent ->
    its source line. The error has the attributes `blocked` and `state`."""
    layout = state.layout
    waits: dict[tuple, list[int]] = {}  # (CTA, role, what for, where) -> warps
    for agent in sorted(blocked):
        cta, warp = divmod(agent, layout.warps)
        line = getattr(blocked[agent], "where", None) or (where(agent) if where else None)
        key = (cta, layout.role(agent), WAITS[type(blocked[agent])].says(state, agent, blocked[agent]), line)
        waits.setdefault(key, []).append(warp)
    alike: dict[tuple, list[int]] = {}  # (warps, role, what for, where) -> CTAs
    for (cta, *rest), warps in waits.items():
        alike.setdefault((tuple(warps), *rest), []).append(cta)
    lines = [
        f"  {role} ({_numbers('warp', warps)}) of {_numbers('CTA', ctas)} waits for {text}"
        + (f", at {line}" if line else "")
        for (warps, role, text, line), ctas in alike.items()
    ]
    error: Any = DeadlockError("deadlock: nothing can move.\n" + "\n".join(lines))
    error.blocked, error.state = blocked, state
    return error


def _numbers(word: str, numbers: Sequence[int]) -> str:
    """E.g. ``warp 3``, ``warps 4-11`` or ``CTAs 0, 2``."""
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{word}s {numbers[0]}-{numbers[-1]}"
    return f"{word}s {', '.join(map(str, numbers))}"


# ---- scheduler -------------------------------------------------------------------------------------------------------
#
# The scheduler: in which order agents take their steps.
#
# Warps run until they block. Policies:
#
# - "fair": warps in turn, each until it blocks; engines take their steps in order whenever a warp has blocked. -
# "random": after a few operations another warp or engine, drawn by the seed, goes on. - "late": engines move only
# when no warp can, one step at a time, drawn by the seed: asynchronous work ends as late as it can.
#
# Deterministic for a policy and a seed. A correct kernel gives the same result under all of them.


POLICIES = ("fair", "random", "late")

Watcher = Callable[[Agent, Any, Any], None]


class Scheduler:
    """Runs the warps' programs on *state* until all have returned and all engines are idle.

    programs: for each agent, an iterator of its operations, the last one `Exit`; watchers: called in order with (agent,
    operation, facts) after each transition; where: source line of a warp's present operation, asked for in errors only.
    `reached[agent]`: number of the transition before which a warp that blocked
    came to its present operation.
    """

    def __init__(
        self,
        state: State,
        programs: list[Iterator[Any]],
        policy: str = "fair",
        seed: int = 0,
        watchers: tuple[Watcher, ...] = (),
        max_steps: int = 50_000_000,
        where: Callable[[int], str | None] | None = None,
    ):
        self.state, self.programs, self.policy, self.watchers = state, programs, policy, watchers
        self.max_steps, self.where = max_steps, where
        self.random = random.Random(seed)
        self.current: list[Any] = [None] * len(programs)  # the operation that a warp will execute next, once fetched
        self.ready = list(range(len(programs)))
        self.blocked: dict[Hashable, list[int]] = {}  # key -> agents
        self.flights: list[Flight] = []  # with a step to take, oldest first
        self.step_count = 0
        self.reached = [-1] * len(programs)
        if seed:
            self.random.shuffle(self.ready)

    def run(self) -> None:
        """Raises `HazardError`, `DeadlockError`, or `PipelineError` when `max_steps` is not enough."""
        try:
            if self.policy == "fair":
                self._run_fair()
            else:
                self._run_drawn(late=self.policy == "late")
        except HazardError as error:
            agent = getattr(error, "agent", None)
            if self.where is not None and isinstance(agent, int):
                set_location(error, self.where(agent))
            raise
        if self.blocked:
            waiting = {agent: self.current[agent] for agents in self.blocked.values() for agent in agents}
            raise deadlock(self.state, waiting, self.where)

    # ---- policies -------------------------------------------------------------------------------------------------

    def _run_fair(self) -> None:
        while self.ready or self.flights:
            now, self.ready = self.ready, []
            for agent in now:
                self._advance(agent, self.max_steps)
                self._move_all()
            if not self.ready:
                self._move_all()

    def _move_all(self) -> None:
        """Lets each copy or matmul in flight that can go on take one step."""
        flights, self.flights = self.flights, []
        for flight in flights:
            self._move(flight)

    def _run_drawn(self, late: bool) -> None:
        draw = self.random.random
        while True:
            warps, flights = len(self.ready), len(self.flights)
            if warps and (late or int(draw() * (warps + flights)) < warps):
                agent = self._take(self.ready, int(draw() * warps))
                if self._advance(agent, 1 + int(draw() * 8)):
                    self.ready.append(agent)
            elif flights:
                self._move(self._take(self.flights, int(draw() * flights)))
            else:
                return

    @staticmethod
    def _take(items: list[Any], i: int) -> Any:
        items[i], items[-1] = items[-1], items[i]
        return items.pop()

    # ---- steps ----------------------------------------------------------------------------------------------------

    def _advance(self, agent: int, budget: int) -> bool:
        """Executes up to *budget* operations of a warp. Returns whether it can go on (neither blocked nor returned)."""
        state, watchers, program = self.state, self.watchers, self.programs[agent]
        woken, started = state.woken, state.started
        op = self.current[agent]
        steps = 0
        try:
            while steps < budget:
                if op is None:
                    op = next(program, None)
                    if op is None:
                        return False
                kind = type(op)
                wait = WAITS.get(kind)
                if wait is not None and not wait.enabled(state, agent, op):
                    self.blocked.setdefault(wait.key(state, agent, op), []).append(agent)
                    self.reached[agent] = self.step_count + steps
                    return False
                facts = APPLY[kind](state, agent, op)
                for watcher in watchers:
                    watcher(agent, op, facts)
                steps += 1
                op = None
                if woken or started:
                    self._go_on()
            return True
        finally:
            self.current[agent] = op
            self._count(steps)

    def _move(self, flight: Flight) -> None:
        """One step of an engine."""
        state = self.state
        step = state.step_of(flight)
        assert step is not None, flight
        facts = APPLY[type(step)](state, flight, step)
        for watcher in self.watchers:
            watcher(flight, step, facts)
        self._count(1)
        self._go_on()

    def _go_on(self) -> None:
        """Takes up the warps whose operations may have become enabled, and flights with a step to take."""
        for key in self.state.woken:
            agents = self.blocked.pop(key, None)
            if agents:
                self.ready += agents
        self.state.woken.clear()
        self.flights += self.state.started
        self.state.started.clear()

    def _count(self, steps: int) -> None:
        self.step_count += steps
        if self.step_count > self.max_steps:
            raise PipelineError(
                f"stopped after {self.max_steps} operations of one cluster, the limit given as max_steps, before all warps "
                f"had returned{self._places()}. Fix: see that every loop of a body ends."
            )

    def _places(self) -> str:
        """Where the roles are."""
        if self.where is None:
            return ""
        places: dict[tuple[str, str], None] = {}
        for agent in range(len(self.programs)):
            line = self.where(agent)
            if line is not None:
                places.setdefault((self.state.layout.role(agent), line))
        return ": " + ", ".join(f"{role} is at {line}" for role, line in places) if places else ""


# ---- machine ---------------------------------------------------------------------------------------------------------
#
# Machine: runs a kernel program on the CPU, every warp of every CTA.


Entry = Callable[[MachineIsa], None]


#: Transitions of an output tile, and of each warp that works on it, beyond which a loop does not seem to end.
STEPS_OF_TILE, STEPS_OF_WARP = 500_000, 50_000


def steps_for(plan: Plan, tiles: int) -> int:
    """Transitions of a cluster that computes *tiles* output tiles, after which a run stops."""
    return max(1, tiles) * (STEPS_OF_TILE + STEPS_OF_WARP * plan.cluster_size * plan.threads // 32)


class Machine:
    """The CPU backend for kernels of one plan.

    Args:
        plan: Of the kernels.
        seed: Of the interleaving.
        policy: In which order agents take their steps (see `scheduler`).
        trace: Whether `Run.trace` is kept, and operations have their source line.
        observer: Called with (agent, operation, facts) after each transition, in the order of execution.
        max_steps: Transitions of one cluster after which a run stops with a `PipelineError`.
        whole: Outputs all of whose elements have to be written.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        seed: int = 0,
        policy: str = "random",
        trace: bool = False,
        observer: Watcher | None = None,
        max_steps: int = 50_000_000,
        whole: Collection[str] = (),
    ):
        if policy not in POLICIES:
            raise InputError("Machine(policy)", policy, f"is one of {', '.join(POLICIES)}", 'use "random"')
        self.layout = Layout(plan)
        self.plan, self.seed, self.policy = plan, seed, policy
        self.trace, self.observer, self.max_steps, self.whole = trace, observer, max_steps, whole

    def run(self, entry: Entry, tensors: dict[str, Any], clusters: int = 1) -> Run:
        """Calls ``entry(isa)`` once for each warp of a grid of *clusters* clusters, one cluster after another.

        Args:
            entry: The program of a warp.
            tensors: Argument -> NumPy array with the dimensions of the load or store.
            clusters: In the grid.

        Raises:
            DeadlockError: No agent can take another step.
            HazardError: An access that the hardware would not order; an element of an output that is written twice, with
                different values, or not at all though it has to be.
        """
        self._check(tensors)
        run, written = Run(self.layout, self.trace), Written(self.layout, tensors)
        for cluster in range(clusters):
            self._run_cluster(run, entry, tensors, cluster, clusters, written)
        written.finish(self.whole)
        return run

    def isa(self, *arguments: Any) -> MachineIsa:
        """The instruction set of one warp, of arguments as of `MachineIsa`."""
        return MachineIsa(*arguments)

    def scheduler(self, state: State, programs: list[Iterator[Any]], where: Callable[[int], str | None]) -> Scheduler:
        """What runs one cluster. Arguments as of `Scheduler`."""
        return Scheduler(state, programs, self.policy, self.seed, (), self.max_steps, where)

    def _check(self, tensors: dict[str, Any]) -> None:
        shapes = shapes_of(tensors)
        for part in self.plan.transfers:
            shape = shapes.get(part.argument)
            if shape is None or len(shape) != len(part.dims):
                dims = " ".join(part.dims)
                raise InputError(part.argument, shape, f"needs an array with the dimensions {dims}", "pass one")
            if tensors[part.argument].dtype != part.buffer.dtype.numpy:
                have, want = tensors[part.argument].dtype, part.buffer.dtype.name
                raise InputError(part.argument, str(have), f"is moved through slots of {want}", "convert the array")

    def _run_cluster(
        self, run: Run, entry: Entry, tensors: dict[str, Any], cluster: int, clusters: int, written: Written
    ) -> None:
        memory, hub = Memory(self.layout, tensors, written), greenlet.getcurrent()
        emit = _locating(hub.switch) if self.trace else hub.switch
        shapes = shapes_of(tensors)
        warps = [greenlet.greenlet(entry) for _ in range(self.layout.agents)]
        programs = [
            _operations(warp, self.isa(self.layout, agent, cluster, clusters, shapes, emit, memory))
            for agent, warp in enumerate(warps)
        ]

        def where(agent: int) -> str | None:
            frame = warps[agent].gr_frame
            return None if frame is None else find_location(frame)

        state = State(self.layout, split_loads=True)
        scheduler = self.scheduler(state, programs, where)
        written.begin(cluster, where)
        watchers: list[Watcher] = [written.watch, memory.perform, run.watch]
        if self.observer is not None:
            watchers.append(self.observer)
        if run.trace is not None:
            watchers.append(_tracer(run.trace, cluster, scheduler))
        scheduler.watchers = tuple(watchers)
        scheduler.run()


def _operations(warp: greenlet.greenlet, isa: MachineIsa) -> Iterator[Any]:
    """The operations of a warp, which runs as a greenlet: it goes on when its last operation has been executed."""
    op = warp.switch(isa)
    while not warp.dead:
        yield op
        op = warp.switch()
    yield Exit()


def shapes_of(tensors: dict[str, Any]) -> Shapes:
    """Shapes of arrays, or of what already is a shape."""
    return {name: tuple(t.shape) if isinstance(t, np.ndarray) else tuple(t) for name, t in tensors.items()}


def _locating(emit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda op: emit(op._replace(where=find_location()))


def _tracer(trace: list[TraceEntry], cluster: int, scheduler: Scheduler) -> Watcher:
    number = 0
    reached = scheduler.reached

    def watch(agent: Any, op: Any, facts: Any) -> None:
        nonlocal number
        began = number
        if type(agent) is int and reached[agent] >= 0:
            began, reached[agent] = reached[agent], -1
        trace.append(TraceEntry(cluster, number, agent, op, facts, began))
        number += 1

    return watch
