"""Schedules on which the judge and the traced program are compared: all that are registered, examples, and those of tests."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator
from typing import Any

import attrs

import tests.check
import tests.machine
import tests.oracle
import tmapipe as tp
from tests.emit.kernels import KERNELS
from tests.oracle.judge import entry_of, operations
from tests.oracle.registry import REGISTRY
from tests.programs import PROGRAMS
from tmapipe.plan.model import Plan

__all__ = ["Judged", "compared", "schedules", "shapes_of"]

PLACES = ((0, 1), (1, 3))  #: cluster, and of how many


@attrs.frozen
class Judged:
    """make: a new schedule; dtypes: of its tensors; extents: elements of each
    dimension; "": of the dimensions that are not named."""

    make: Callable[[], tp.Schedule]
    dtypes: dict[str, str] = attrs.field(factory=dict)
    extents: dict[str, int] = attrs.field(factory=dict)


def schedules() -> dict[str, Judged]:
    """Every registered schedule, example and kernel of tests, and every schedule that a test declares and that needs no
    arguments, by name."""
    found = {f"registered: {each.name}": Judged(each.make) for each in REGISTRY}
    found |= {f"registered: {each.name}, small": Judged(each.make_small) for each in REGISTRY}
    found |= {f"example: {name}": Judged(program.make) for name, program in PROGRAMS.items()}
    found |= {f"kernel: {name}": Judged(each.make, each.dtypes, each.extents) for name, each in KERNELS.items()}
    known = {type(each.make) for each in found.values()}
    for kind in _declared():
        if kind not in known:
            found[f"test: {kind.__module__.removeprefix('tests.')}.{kind.__qualname__}"] = Judged(kind)
    return found


def _declared() -> Iterator[type[tp.Schedule]]:
    """Schedules that modules of tests declare."""
    for package in (tests.machine, tests.oracle, tests.check):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if any(each in module.name for each in ("mistakes.programs", "__main__", "tirx")):
                continue  # texts of programs; commands; what needs another package
            for value in vars(importlib.import_module(module.name)).values():
                ours = isinstance(value, type) and issubclass(value, tp.Schedule) and value.__module__ == module.name
                if ours and _made(value) is not None:
                    yield value


def _made(kind: Callable[[], Any]) -> Any:
    try:
        schedule = kind()
        schedule.plan()
    except Exception:  # it needs arguments, or is wrong on purpose
        return None
    return schedule


def shapes_of(judged: Judged, schedule: tp.Schedule, plan: Plan, rng: random.Random) -> dict[str, tuple[int, ...]]:
    """Drawn shapes: each dimension has one element, a few, about a tile, or some tiles; or the extents that it is run with."""
    spans: dict[str, int] = {}
    for part in plan.transfers:
        for dim, span in zip(part.dims, part.span, strict=True):
            spans[dim] = max(span, spans.get(dim, 1))
    dims = dict.fromkeys(dim for dims in plan.dims.values() for dim in dims)
    extents, tiles = dict(judged.extents), 1
    for dim in rng.sample(list(dims), len(dims)):
        span = spans.get(dim, 1) * plan.cluster.get(dim, 1)
        if not judged.extents or rng.random() < 0.5:
            most = max(1, min(3, 12 // tiles))  # tiles of all dimensions together: a dozen
            extents[dim] = rng.choice(
                (1, 2, rng.randint(3, 9), span, span + 1, 2 * span - 1, rng.randint(1, 3 * span), 3 * span)
            )
            extents[dim] = min(extents[dim], most * span)
        tiles *= -(-extents.get(dim, 1) // span)
    for store in schedule.declared.stores.values():
        extents |= store.derive(extents)
    return plan.shapes(extents)


def compared(
    judged: Judged, shapes: dict[str, tuple[int, ...]], cluster: int, clusters: int, program: Any = None
) -> str:
    """How the operations of the traced program differ from the judge's; "" if they do not. program: what makes the entry of a
    schedule that is traced."""
    from tests.oracle.judged_bodies import difference, program_of

    schedule = judged.make()
    plan = schedule.plan(judged.dtypes)
    want = operations(plan, entry_of(schedule), shapes, cluster, clusters)
    found = operations(plan, (program or program_of)(schedule, plan), shapes, cluster, clusters)
    return "" if want == found else difference(want, found)
