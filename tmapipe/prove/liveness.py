"""Which variables of a traced program are still read from a place on."""

from __future__ import annotations

from typing import Any

from tmapipe.program.nodes import Call, For, If, While
from tmapipe.prove.slicing import variables

__all__ = ["Liveness"]


class Liveness:
    """What a program's nodes read and give values to, each looked up once for one proof."""

    def __init__(self) -> None:
        self._used: dict[Any, frozenset[Any]] = {}
        self._defined: dict[Any, frozenset[Any]] = {}
        self._live: dict[Any, set[Any]] = {}
        self._kept: list[Any] = []  # what was looked up, which stays alive, so that its `id` is its own

    def live(self, frames: list[tuple[Any, ...]]) -> set[Any]:
        """The variables that a warp at these frames still reads. Each is given its value at one place of the program."""
        key = tuple([(f[0], id(f[1]), f[2] if f[0] == "block" else 0) if len(f) > 1 else f for f in frames])
        if key not in self._live:
            self._live[key] = self._at(frames)
            self._kept += [f[1] for f in frames if len(f) > 1]
        return self._live[key]

    def _at(self, frames: list[tuple[Any, ...]]) -> set[Any]:
        found: set[Any] = set()
        for frame, inner in zip(frames, (*frames[1:], ("",)), strict=False):
            kind = (
                "head" if inner[0] == "iterated" else frame[0]
            )  # what it carries is that of the next iteration already
            if kind == "block":
                found = (found | self.used(frame[1], frame[2])) - self.defined(frame[1], frame[2])
            elif kind == "arm":
                found -= {phi for phi, _, _ in frame[1].phis}
                _of_value([x for _, *values in frame[1].phis for x in values], found)
            elif kind in ("joint", "for", "one", "head"):
                node = frame[1]
                phis, inside = {phi for phi, *_ in node.carried}, self.defined(node.body)
                found -= {after for *_, after in node.carried}
                found |= self._of_loop(node) - inside - phis - {getattr(node, "index", None)}
                if kind == "head":
                    found |= phis
                else:
                    _of_value([last for _, _, last, _ in node.carried], found)
                    if type(node) is While:
                        _of_value(node.condition, found)
        return found

    def used(self, nodes: Any, at: int = 0) -> frozenset[Any]:
        """The variables that these nodes read, from number *at* on."""
        key = id(nodes), at
        if key not in self._used:
            found: set[Any] = set()
            for node in nodes[at:]:
                self._of_node(node, found)
            self._used[key] = frozenset(found)
            self._kept.append(nodes)
        return self._used[key]

    def _of_node(self, node: Any, found: set[Any]) -> None:
        kind = type(node)
        if kind is Call:
            _of_value(node.args, found)
            _of_value(node.named, found)
        elif kind is If:
            _of_value(node.condition, found)
            found |= self.used(node.then) | self.used(node.other)
            _of_value([x for _, *both in node.phis for x in both], found)
        elif kind in (For, While):
            found |= self._of_loop(node)
            _of_value([initial for _, initial, _, _ in node.carried], found)

    def _of_loop(self, node: Any) -> set[Any]:
        """The variables that iterations of a loop read."""
        found = set(self.used(node.body))
        _of_value([last for _, _, last, _ in node.carried], found)
        _of_value(node.count if type(node) is For else node.condition, found)
        return found

    def defined(self, nodes: Any, at: int = 0) -> frozenset[Any]:
        """The variables to which these nodes give values, from number *at* on."""
        key = id(nodes), at
        if key not in self._defined:
            found: set[Any] = set()
            for node in nodes[at:]:
                kind = type(node)
                if kind is Call:
                    found.update(node.results)
                elif kind is If:
                    found |= self.defined(node.then) | self.defined(node.other) | {phi for phi, _, _ in node.phis}
                elif kind in (For, While):
                    found |= self.defined(node.body) | {x for phi, _, _, after in node.carried for x in (phi, after)}
                    found.add(getattr(node, "index", None))
            self._defined[key] = frozenset(found)
            self._kept.append(nodes)
        return self._defined[key]


def _of_value(x: Any, found: set[Any]) -> None:
    found |= variables(x)
