"""The judge: bodies as CPython runs them, with concrete numbers, once for each warp and tile.

What the model, the proof and the GPU read is one trace of a body, so an error of the trace is an error of all three. The judge
shares nothing with what traces (`tmapipe.program`): it calls the function that the user wrote, unchanged, on `PlainIsa`, whose
control flow is Python's. It yields the operations of each warp with their operands, and the tensors that a run leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from tests.oracle.plain import PlainIsa
from tmapipe.isa.ops import Ballot, Exit, StAsync, TableLoad
from tmapipe.kernel import kernel_main
from tmapipe.model import Machine, MachineIsa
from tmapipe.model.layout import Layout
from tmapipe.plan.model import Plan
from tmapipe.schedule import Schedule

__all__ = ["Ran", "entry_of", "operations", "ran"]

Entry = Callable[[Any], None]


def entry_of(schedule: Schedule) -> Entry:
    """The program of a warp, as the judge has it."""
    return lambda isa: kernel_main(PlainIsa.of(isa), schedule)


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
