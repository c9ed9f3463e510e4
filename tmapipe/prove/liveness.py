"""Which variables of a traced program are still read from a place on."""

from __future__ import annotations

from typing import Any

from tmapipe.program.nodes import Call, For, If, While
from tmapipe.prove.slicing import variables

__all__ = ["live"]


def used(nodes: Any, at: int = 0, memo: dict[Any, Any] = {}) -> frozenset[Any]:  # noqa: B006
    """The variables that these nodes read, from number *at* on."""
    key = id(nodes), at
    if key not in memo:
        found: set[Any] = set()
        for node in nodes[at:]:
            _of_node(node, found)
        memo[key] = frozenset(found), nodes
    return memo[key][0]


def _of_node(node: Any, found: set[Any]) -> None:
    kind = type(node)
    if kind is Call:
        _of_value(node.args, found)
        _of_value(node.named, found)
    elif kind is If:
        _of_value(node.condition, found)
        found |= used(node.then) | used(node.other)
        _of_value([x for _, *both in node.phis for x in both], found)
    elif kind in (For, While):
        found |= of_loop(node)
        _of_value([initial for _, initial, _, _ in node.carried], found)


def of_loop(node: Any) -> frozenset[Any]:
    """The variables that iterations of a loop read."""
    found = set(used(node.body))
    _of_value([last for _, _, last, _ in node.carried], found)
    _of_value(node.count if type(node) is For else node.condition, found)
    return frozenset(found)


def live(frames: list[tuple[Any, ...]], memo: dict[Any, Any] = {}) -> set[Any]:  # noqa: B006
    """The variables that a warp at these frames still reads. Each is given its value at one place of the program."""
    key = tuple((f[0], id(f[1]), f[2] if f[0] == "block" else None) if len(f) > 1 else f for f in frames)
    if key not in memo:
        memo[key] = _live(frames), frames  # which keeps the nodes
    return memo[key][0]


def _live(frames: list[tuple[Any, ...]]) -> set[Any]:
    found: set[Any] = set()
    for frame, inner in zip(frames, (*frames[1:], ("",)), strict=False):
        kind = "head" if inner[0] == "iterated" else frame[0]  # what it carries is that of the next iteration already
        if kind == "block":
            before, given = used(frame[1], frame[2]), defined(frame[1], frame[2])
            found = (found | before) - given
        elif kind == "arm":
            found -= {phi for phi, _, _ in frame[1].phis}
            _of_value([x for _, *values in frame[1].phis for x in values], found)
        elif kind in ("joint", "for", "one", "head"):
            node = frame[1]
            phis, inside = {phi for phi, *_ in node.carried}, defined(node.body)
            found -= {after for *_, after in node.carried}
            body = of_loop(node) - inside - phis - {getattr(node, "index", None)}
            found |= body
            if kind == "head":
                found |= phis
            else:
                _of_value([last for _, _, last, _ in node.carried], found)
                if type(node) is While:
                    _of_value(node.condition, found)
    return found


def defined(nodes: Any, at: int = 0, memo: dict[Any, Any] = {}) -> frozenset[Any]:  # noqa: B006
    """The variables to which these nodes give values, from number *at* on."""
    key = id(nodes), at
    if key not in memo:
        memo[key] = frozenset(_defined(nodes[at:])), nodes
    return memo[key][0]


def _defined(nodes: Any) -> set[Any]:
    found: set[Any] = set()
    for node in nodes:
        kind = type(node)
        if kind is Call:
            found.update(node.results)
        elif kind is If:
            found |= defined(node.then) | defined(node.other) | {phi for phi, _, _ in node.phis}
        elif kind in (For, While):
            found |= defined(node.body) | {each for phi, _, _, after in node.carried for each in (phi, after)}
            found.add(getattr(node, "index", None))
    return found


def _of_value(x: Any, found: set[Any]) -> None:
    found |= variables(x)
