"""Loops of a disassembled kernel, found from its control flow, and the instructions that one trip of them executes.

The steady state of a pipelined loop is the path on which every wait succeeds at once. Compilers place the retry of a wait out
of line, as a small loop of its own, which is not counted. Predicated instructions and both arms of a branch are counted, since
some warp issues them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import attrs

__all__ = ["Instruction", "Loop", "innermost", "loops", "parse"]

_LABEL = re.compile(r"^(\.L\w*):")
_INSTRUCTION = re.compile(
    r"^/\*[0-9a-f]+\*/\s+(?P<guard>@!?U?P\w+\s+)?(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>[^;]*?)\s*;?\s*$"
)
_TARGET = re.compile(r"`\((\.L\w*)\)")


@attrs.frozen
class Instruction:
    """opcode: with its modifiers, e.g. "SYNCS.ARRIVE.TRANS64"; guard: "@!P0" or ""; target: a branch's label or None."""

    opcode: str
    guard: str = ""
    operands: str = ""
    target: str | None = None

    @property
    def leaves(self) -> bool:
        """Does control never go on to the next instruction?"""
        if self.guard or self.opcode.split(".")[0] not in ("BRA", "EXIT", "RET"):
            return False
        return not self.target or self.operands == f"`({self.target})"  # `BRA.DIV UR4, ...` and `BRA.U UP0, ...` go on


@attrs.frozen
class Loop:
    """instructions: of a trip in the steady state; header: the first instruction's index in the listing."""

    header: int
    instructions: tuple[Instruction, ...]
    blocks: frozenset[int] = attrs.field(repr=False)

    def count(self, opcode: str) -> int:
        """Instructions whose opcode matches the regular expression *opcode*."""
        return sum(1 for i in self.instructions if re.match(opcode, i.opcode))

    def opcodes(self) -> Counter[str]:
        """How many of each, without modifiers."""
        return Counter(i.opcode.split(".")[0] for i in self.instructions)


def parse(listing: str) -> tuple[list[Instruction], dict[str, int]]:
    """Instructions of an ``nvdisasm -c`` listing, and each label's index among them."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for raw in listing.splitlines():
        line = raw.strip()
        label = _LABEL.match(line)
        if label:
            labels[label[1]] = len(instructions)
            continue
        found = _INSTRUCTION.match(line)
        if found:
            target = _TARGET.search(found["operands"])
            instructions.append(
                Instruction(
                    found["opcode"], (found["guard"] or "").strip(), found["operands"], target[1] if target else None
                )
            )
    return instructions, labels


def loops(instructions: list[Instruction], labels: dict[str, int]) -> list[Loop]:
    """Every natural loop, by header."""
    starts, following = _blocks(instructions, labels)
    dominators = _dominators(following)
    bodies: dict[int, set[int]] = {}
    preceding = _reversed(following)
    for block, nexts in enumerate(following):
        for header in nexts:
            if header in dominators[block]:
                bodies.setdefault(header, {header}).update(_reaching(block, header, preceding))
    ends = [*starts[1:], len(instructions)]
    found = []
    for header, body in bodies.items():
        inner = [other for h, other in bodies.items() if h != header and other < body]
        kept = _steady(header, body, inner, following)
        lines = tuple(i for block in sorted(kept) for i in instructions[starts[block] : ends[block]])
        found.append(Loop(starts[header], lines, frozenset(body)))
    return sorted(found, key=lambda loop: loop.header)


def innermost(found: Iterable[Loop], opcode: str) -> Loop | None:
    """Among the loops that execute *opcode* (a regular expression) and hold no other such loop, the one with most of them."""
    having = [loop for loop in found if loop.count(opcode)]
    inner = [loop for loop in having if not any(other.blocks < loop.blocks for other in having)]
    return max(inner, key=lambda loop: loop.count(opcode), default=None)


def _blocks(instructions: list[Instruction], labels: dict[str, int]) -> tuple[list[int], list[list[int]]]:
    """First instruction of each basic block, and the blocks that may follow it."""
    leaders = {0, *(at for at in labels.values() if at < len(instructions))}
    leaders |= {i + 1 for i, ins in enumerate(instructions) if (ins.target or ins.leaves) and i + 1 < len(instructions)}
    starts = sorted(leaders)
    number = {start: block for block, start in enumerate(starts)}
    following: list[list[int]] = []
    for block, end in enumerate([*starts[1:], len(instructions)]):
        last = instructions[end - 1]
        nexts = [] if last.leaves or end == len(instructions) else [block + 1]
        if last.target and labels.get(last.target, len(instructions)) < len(instructions):
            nexts.append(number[labels[last.target]])
        following.append(nexts)
    return starts, following


def _dominators(following: list[list[int]]) -> list[set[int]]:
    preceding = _reversed(following)
    everything = set(range(len(following)))
    dominators = [{0}, *(set(everything) for _ in following[1:])]
    changed = True
    while changed:
        changed = False
        for block in range(1, len(following)):
            before = [dominators[p] for p in preceding[block]]
            new = {block, *(set.intersection(*before) if before else set())}
            if new != dominators[block]:
                dominators[block], changed = new, True
    return dominators


def _reversed(following: list[list[int]]) -> list[list[int]]:
    preceding: list[list[int]] = [[] for _ in following]
    for block, nexts in enumerate(following):
        for nxt in nexts:
            preceding[nxt].append(block)
    return preceding


def _reaching(block: int, header: int, preceding: list[list[int]]) -> set[int]:
    """Blocks from which *block* is reached without passing *header*."""
    seen, todo = {header}, [block]
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += preceding[at]
    return seen


def _steady(header: int, body: set[int], inner: list[set[int]], following: list[list[int]]) -> set[int]:
    """The body without the loops inside it that a trip can go around."""
    kept = set(body)
    for loop in sorted(inner, key=len):
        rest = _on_a_trip(header, kept - loop, following)
        if rest:
            kept = rest
    return kept


def _on_a_trip(header: int, body: set[int], following: list[list[int]]) -> set[int]:
    """Blocks of *body* on some path from the header back to it within *body*; empty if there is no such path."""
    if header not in body:
        return set()
    forward, todo = set(), [header]
    while todo:
        at = todo.pop()
        if at not in forward:
            forward.add(at)
            todo += [n for n in following[at] if n in body]
    preceding = _reversed(following)
    backward: set[int] = set()
    todo = [p for p in preceding[header] if p in forward]
    while todo:
        at = todo.pop()
        if at not in backward:
            backward.add(at)
            todo += [p for p in preceding[at] if p in forward and at != header]
    return backward if header in backward else set()
