"""Machine: runs a kernel program on the CPU, every warp of every CTA."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import greenlet
import numpy as np

from tmapipe.errors import InputError
from tmapipe.isa.ops import Exit
from tmapipe.machine.layout import Layout, Shapes
from tmapipe.machine.locate import locate as find_location
from tmapipe.machine.memory import Memory
from tmapipe.machine.run import Run, TraceEntry
from tmapipe.machine.scheduler import POLICIES, Scheduler, Watcher
from tmapipe.machine.state import State
from tmapipe.machine.warp import MachineIsa
from tmapipe.machine.written import Written
from tmapipe.plan.model import Plan

__all__ = ["Entry", "Machine", "shapes_of", "steps_for"]

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
