"""The judge: bodies as CPython runs them, with concrete numbers, once for each warp and tile.

What the model, the proof and the GPU read is one trace of a body, so an error of the trace is an error of all three. The judge
shares nothing with what traces (`tmapipe.program`): it calls the function that the user wrote, unchanged, on `JudgeIsa`, whose
control flow is Python's. It yields the operations of each warp with their operands, and the tensors that a run leaves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from tmapipe.isa.ops import Ballot, Exit, StAsync, TableLoad
from tmapipe.kernel import kernel_main
from tmapipe.machine.blocks import block
from tmapipe.machine.fragments import MachineFragments
from tmapipe.machine.layout import Layout
from tmapipe.machine.machine import Machine
from tmapipe.machine.warp import MachineIsa
from tmapipe.plan.model import Plan
from tmapipe.schedule import Schedule

__all__ = ["JudgeIsa", "Ran", "entry_of", "operations", "ran"]

Entry = Callable[[Any], None]


class JudgeIsa(MachineIsa):
    """One warp's instructions. Control flow, numbers and calls are Python's own, whatever the model makes of them."""

    @classmethod
    def of(cls, isa: MachineIsa) -> JudgeIsa:
        """The judge's view of the warp that *isa* is."""
        made = object.__new__(cls)
        vars(made).update(vars(isa))
        made.fragments = MachineFragments(made)
        return made

    def cells(self, *initial: Any) -> list[Any]:
        return list(initial)

    def select(self, condition: Any, then: Any, otherwise: Any) -> Any:
        return then if condition else otherwise

    def here(self, value: Any) -> Any:
        return value

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        if condition:
            body()

    def lane_0(self, body: Callable[[], None], when: Any = True) -> None:
        if when:
            body()

    def loop(self, trips: Any, body: Callable[[Any], None]) -> None:
        for i in range(trips):
            body(i)

    def loop_while(self, state: Any, body: Callable[[], None], iterations: Callable[[], int] | None = None) -> None:
        if self.memory is None and iterations is not None:
            for _ in range(iterations()):
                body()
        while state[0]:
            body()

    def block(self) -> tuple[Any, ...]:
        return block(self.body)

    def call(self, body: Callable[..., None], *arguments: Any) -> None:
        plain = inspect.unwrap(body)
        self.body = plain.__code__
        plain(*arguments)

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def extent(self, argument: str, dim: int) -> int:
        return int(super().extent(argument, dim))

    def divisors(self, values: dict[str, int]) -> dict[str, int]:
        return values


def entry_of(schedule: Schedule) -> Entry:
    """The program of a warp, as the judge has it."""
    return lambda isa: kernel_main(JudgeIsa.of(isa), schedule)


def _up_to_the_last(program: list[Any]) -> list[Any]:
    """The operations of a warp. Of a scheduler's, without what it finds behind the last tile, which nobody looks at: a grid of
    one tile along a dimension is numbered by shorter arithmetic, where Python knows that."""
    told = [i for i, op in enumerate(program) if type(op) is StAsync and op.words]
    tiles = [i for i in told if program[i].words[0]]
    first = (tiles[-1] + 1 if tiles else 0) if told else len(program)
    return [*program[:first], *map(_without_finds, program[first:])]


def _without_finds(op: Any) -> Any:
    if type(op) is StAsync:
        return op._replace(words=op.words[:1])
    return op._replace(votes=0) if type(op) is Ballot else op._replace(entries=()) if type(op) is TableLoad else op


def operations(
    plan: Plan, entry: Entry, shapes: dict[str, Sequence[int]], cluster: int = 0, clusters: int = 1
) -> list[list[Any]]:
    """The operations of each warp of one cluster, which runs without data.

    What a queue says behind its last tile is left out.
    """
    layout = Layout(plan)
    made: list[list[Any]] = []
    for agent in range(layout.agents):
        found: list[Any] = []
        entry(MachineIsa(layout, agent, cluster, clusters, {n: tuple(s) for n, s in shapes.items()}, found.append))
        made.append([*_up_to_the_last(found), Exit()])
    return made


@attrs.frozen
class Ran:
    """operations: of each warp of each cluster, by (cluster, warp); outputs: tensors as the run left them."""

    operations: dict[tuple[int, int], list[Any]]
    outputs: dict[str, np.ndarray]


def ran(schedule: Schedule, entry: Entry, tensors: dict[str, Any], clusters: int = 1, seed: int = 0) -> Ran:
    """A run of *entry* with data.

    Args:
        schedule: Whose plan and outputs these are.
        entry: The program of a warp: the judge's (`entry_of`), or another one that is compared with it.
        tensors: Inputs by argument.
        clusters: In the grid.
        seed: Of the interleaving.
    """
    bound = schedule.bind(
        **{name: tensor.copy() if isinstance(tensor, np.ndarray) else tensor for name, tensor in tensors.items()}
    )
    arrays = bound.arrays()
    outputs = {store.argument: arrays[store.argument] for store in schedule.plan(bound.dtypes).stores}
    for array in outputs.values():
        array[...] = np.zeros((), array.dtype)
    found: dict[tuple[int, int], list[Any]] = {}
    number = -1

    def watch(agent: Any, op: Any, facts: Any) -> None:
        if type(agent) is int:
            found.setdefault((number, agent), []).append(op)

    def each(isa: MachineIsa) -> None:
        nonlocal number
        number = isa.cluster_id
        entry(isa)

    Machine(schedule.plan(bound.dtypes), seed=seed, observer=watch).run(each, arrays, clusters)
    return Ran(
        {warp: _up_to_the_last(ops) for warp, ops in found.items()},
        {name: np.array(array) for name, array in outputs.items()},
    )
