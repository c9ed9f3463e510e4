"""Who has written each element of an output, in a run with data.

Tiles are held against each other, not CTAs: which CTA takes which tile depends on how many are launched. Two stores to one
element are ordered only if both are of one tile of one CTA, and the first one's thread had waited for it in full, or is the
same warp's and stores from registers. If they are not, they must write the same value. An output that is reduced into is
left out: its elements may be reached any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from tmapipe.errors import HazardError
from tmapipe.isa.ops import Agent, BulkCommit, BulkStore, BulkWait, Flight, TileStore, TmaScatter, TmaStore
from tmapipe.machine.hazard import hazard, set_location
from tmapipe.machine.layout import Layout
from tmapipe.plan.model import Store

__all__ = ["Written"]

STORES = (TmaStore, BulkStore, TmaScatter, TileStore)
Where = Callable[[int], "str | None"]


class Issue:
    """One store. number: in the order of issue, from 1 on; tile: of the output, which the warp is at; group: of its thread,
    once it is committed; waited: whether its thread has waited until it was written."""

    known: frozenset[Issue] = frozenset()  # those before it that its thread knew to be written

    def __init__(self, number: int, agent: int, op: Any, cluster: int, tile: str, where: str | None):
        self.number, self.agent, self.op, self.cluster, self.tile, self.where = number, agent, op, cluster, tile, where
        self.group: int | None = None
        self.waited = False

    def before(self, later: Issue, layout: Layout) -> bool:
        """Whether it has been written before *later* was issued, however the warps go on."""
        own = self.agent // layout.warps == later.agent // layout.warps and self.cluster == later.cluster
        ordered = self.agent == later.agent if type(self.op) is TileStore else self in later.known
        return own and self.tile == later.tile and ordered


class Written:
    """What is known of all outputs of a run.

    tiles: by agent, the output tile that it is at, in words; owners: by output, the number of the store that has last written
    each element, 0 for none.
    """

    def __init__(self, layout: Layout, tensors: dict[str, np.ndarray]):
        self.layout = layout
        self.stores = {store.name: store for store in layout.plan.stores if store.reduce is None}
        self.owners = {
            store.argument: np.zeros(tensors[store.argument].shape, np.int32) for store in self.stores.values()
        }
        self.issues: list[Issue] = []
        self.begin(0, lambda agent: None)

    def begin(self, cluster: int, where: Where) -> None:
        """A cluster begins. where: source line of a warp's present operation."""
        self.cluster, self.where = cluster, where
        self.tiles = [""] * self.layout.agents
        self.flights: dict[Flight, Issue] = {}
        self.open: dict[Agent, list[Issue]] = {}  # by warp

    def watch(self, agent: Agent, op: Any, facts: Any) -> None:
        """One transition. It comes before what it does to data."""
        if isinstance(agent, Flight):
            return
        kind = type(op)
        if kind in STORES and op.store in self.stores:
            open_ = self.open.setdefault(agent, [])
            issue = Issue(len(self.issues) + 1, agent, op, self.cluster, self.tiles[agent], self.where(agent))
            issue.known = frozenset(each for each in open_ if each.waited)
            self.issues.append(issue)
            open_.append(issue)
            self.flights |= dict.fromkeys(facts or (), issue)
            if facts is None:
                self.present = issue
        elif kind is BulkCommit:
            for flight in facts[1]:
                if flight in self.flights:
                    self.flights[flight].group = facts[0]
        elif kind is BulkWait and not op.read:
            for issue in self.open.get(agent, ()):
                issue.waited |= issue.group is not None and issue.group < facts

    def note(self, of: Flight | int, store: Store, inside: Any, old: np.ndarray, new: np.ndarray) -> None:
        """Elements *inside* the output are written, from the values *old* to *new*. of: the flight, or the warp."""
        if store.name not in self.stores:
            return
        issue = self.flights[of] if type(of) is Flight else self.present
        owners = self.owners[store.argument]
        before = owners[inside]
        if before.any():
            differ = (before != 0) & (before != issue.number) & (_bits(old) != _bits(new))
            for number in np.unique(before[differ]):
                other = self.issues[number - 1]
                if not other.before(issue, self.layout) and not issue.before(other, self.layout):
                    raise self._conflict(store, other, issue)
        owners[inside] = issue.number

    def finish(self, whole: Collection[str]) -> None:
        """All clusters have ended: raises `HazardError` if elements of one of the outputs *whole* have not been written."""
        for name, store in self.stores.items():
            if name not in whole:
                continue
            left = self.owners[store.argument] == 0
            if left.any():
                first = tuple(int(i) for i in np.argwhere(left)[0])
                where = next((issue.where for issue in self.issues if issue.op.store == name), None)
                text = (
                    f"{np.count_nonzero(left)} of {left.size} elements of {name} are written by nobody, the first one"
                )
                text = f"{text} at {first}"
                raise set_location(hazard(self.layout, "output-unwritten", None, None, text), where)

    def _conflict(self, store: Store, one: Issue, other: Issue) -> HazardError:
        one, other = sorted((one, other), key=lambda issue: issue.number)
        layout = self.layout
        if one.tile == other.tile and one.cluster == other.cluster:
            which = f"stores {store.name} at {other.op.at} a second time, with another value"
            rule = "output-twice"
        else:
            which = (
                f"stores {store.name} at {other.op.at}{_of(other)}, where another tile{_of(one)} stores another value"
            )
            rule = "output-shared"
        if one.where and one.where != other.where:
            which += f" (at {one.where})"
        return set_location(hazard(layout, rule, other.agent, other.op, which), other.where)


def _of(issue: Issue) -> str:
    return f" of the tile at {issue.tile}" if issue.tile else ""


def _bits(values: np.ndarray) -> np.ndarray:
    """Values as integers, so that equal NaNs are equal."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
