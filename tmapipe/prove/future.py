"""The operations that may still come in a run of a program.

Rings are uniform: whoever uses one stage of a ring comes to use all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tmapipe.check.accesses import COPY, COUNTED
from tmapipe.machine.layout import Layout
from tmapipe.prove.positions import CLUSTER, Live, Positions, Shifts, at_peers, tells_parity
from tmapipe.prove.positions import Key as WarpKey
from tmapipe.prove.renaming import Renaming

__all__ = ["Future", "Here", "Key"]

Key = tuple[Any, ...]  # of what can be known, or of who can know it


class Future:
    """What may still come.

    live: the sorts of operations that come again; busy: the warps that do more than return; sets: sets of warps, by number;
    checked: by that number, who they are; as_one: whether one of them is enough; waiters: the warps that wait for each
    mbarrier of the cluster.
    """

    def __init__(self, layout: Layout, ends: Iterable[Positions], busy: set[int]):
        self.layout = layout
        # what a CTA knows when it exits is what all of its warps know together: one that is busy is enough
        self.busy = sorted(busy if len(set(map(layout.cta_of, busy))) == layout.ctas else range(layout.agents))
        self.touched: dict[WarpKey, set[int]] = {}
        arrivers: dict[int, list[int]] = {CLUSTER: []}
        for end in ends:
            for key, stages in end.touched.items():
                self.touched.setdefault(key, set()).update(stages)
            for agent, id in sorted(end.arrivals):
                which = CLUSTER if id == CLUSTER else 16 * (agent // layout.warps) + id
                if agent not in arrivers.setdefault(which, []):
                    arrivers[which].append(agent)
        self.live = Live(layout, self.touched)
        self.waiters = self._waiters()
        sets: dict[Key, Iterable[int]] = {("all",): self.busy, ("nobody",): ()}
        for kind, by_place in (("slot", self._users()), ("barrier", arrivers), ("use", self._bar_users())):
            sets.update({(kind, place): agents for place, agents in by_place.items()})
        sets.update({("bar", bar): agents for bar, agents in self.waiters.items()})
        sets.update({("exit", cta): layout.cta_warps(cta) for cta in range(layout.ctas)})
        self.sets = {key: number for number, key in enumerate(sets)}
        self.checked = np.zeros((len(sets), layout.agents), bool)
        for row, agents in zip(self.checked, sets.values(), strict=True):
            row[list(agents)] = True
        self.as_one = np.array([key[0] == "exit" for key in sets])
        self.checked_of = _Numbers(lambda key: self.sets[_checked_against(key, self.sets)])  # by fact
        self.facts: dict[Key, int] = {}  # numbers of all that can be known, the same in all states
        self.knowers: dict[Key, int] = {}  # and of all who can know it
        self.forms: dict[tuple[Any, ...], int] = {}  # and of what must be equal in two states
        self._here: dict[Renaming, Here] = {}
        self._renamings: dict[tuple[int, ...], Renaming] = {}

    def here(self, positions: Positions) -> Here:
        """Names where the warps are."""
        rename = self.renaming(positions.from_here(self.live))
        if rename not in self._here:
            self._here[rename] = Here(self, rename)
        return self._here[rename]

    def renaming(self, shifts: Shifts) -> Renaming:
        """The renaming by these shifts of the arrays of `live`."""
        key = tuple(shifts.values())
        if key not in self._renamings:
            self._renamings[key] = Renaming(self.layout, shifts)
        return self._renamings[key]

    def _waiters(self) -> dict[int, tuple[int, ...]]:
        layout = self.layout
        found: dict[int, tuple[int, ...]] = {}
        for agent, sort, array in self.live.keys:
            if tells_parity(sort):
                first = agent // layout.warps * layout.nbars + layout.bar_base[array]
                for stage in range(layout.plan.barrier(array).stages):
                    found[first + stage] = (*found.get(first + stage, ()), agent)
        return found

    def _bar_users(self) -> dict[int, list[int]]:
        """By mbarrier, who waits for it, arrives at it, or starts what counts there."""
        layout = self.layout
        found: dict[int, list[int]] = {}
        for agent, sort, array in self.touched:
            if array in layout.bar_base:
                first, stages = layout.bar_base[array], layout.plan.barrier(array).stages
                for cta in range(layout.ctas) if at_peers(sort) else (agent // layout.warps,):
                    for bar in range(cta * layout.nbars + first, cta * layout.nbars + first + stages):
                        found.setdefault(bar, []).append(agent)
        return found

    def _users(self) -> dict[int, list[int]]:
        """Whoever accesses one slot of a buffer accesses all slots that others who access this one do."""
        layout = self.layout
        found: dict[int, list[int]] = {}
        first_slots: dict[str, int] = {}
        for i, (array, _, _) in enumerate(layout.slot_places):
            first_slots.setdefault(array, i)
        for (agent, sort, array), stages in self.touched.items():
            if array not in first_slots:
                continue
            for others in [s for (_, _, other), s in self.touched.items() if other == array for _ in range(2)]:
                stages = stages | others if stages & others else stages
            for cta in range(layout.ctas) if at_peers(sort) else (agent // layout.warps,):
                for stage in stages:
                    for alias in layout.aliases[first_slots[array] + stage]:
                        found.setdefault(cta * layout.nslots + alias, []).append(agent)
        return found


class Here:
    """Numbers of facts and knowers, by their names where the warps are. rename: to stages counted from there."""

    def __init__(self, future: Future, rename: Renaming):
        knowers, facts = future.knowers, future.facts
        self.rename = rename
        self.knowers = _Numbers(lambda key: _number(knowers, rename, key))
        self.facts = _Numbers(lambda key: _number(facts, rename, key))


def _checked_against(fact: Key, sets: Mapping[Key, int]) -> Key:
    """The set of warps that can be checked against a fact."""
    kind: str = fact[0]
    which: Key = ("all",)
    if kind in ("arrival", "far read"):
        which = "exit", fact[1]
    elif kind == "slot" and fact[2] == COPY and fact[-1] != "fenced":
        pass  # a proxy fence by any warp that knows its end counts
    elif kind in ("slot", "barrier"):
        which = fact[:2]
    elif kind == "bar" and fact[2] in ("landing", "sent"):
        which = "exit", fact[3]
    elif kind == "bar" and fact[2] != "loads of":
        which = fact[:2] if fact[2] in ("before", "last but one") else ("use", fact[1])
    return which if which in sets else ("nobody",)


class _Numbers(dict[Key, Any]):
    """Numbers that are made when they are first asked for."""

    def __init__(self, make: Callable[[Key], Any]):
        self.make = make

    def __missing__(self, key: Key) -> Any:
        self[key] = made = self.make(key)
        return made


def _number(numbers: dict[Key, int], rename: Renaming, key: Key) -> int:
    """Of a fact or a knower, with its barriers and slots renamed."""
    kind = key[0]
    if kind == "slot":
        bars = (rename.bars[key[4]][0], *key[5:]) if key[2] in COUNTED else key[4:]
        key = (kind, rename.slots[key[1]], *key[2:4], *bars)
    elif kind in ("bar", "present", "complete"):
        key = (kind, rename.bars[key[1]][0], *key[2:])
    return numbers.setdefault(key, len(numbers))
