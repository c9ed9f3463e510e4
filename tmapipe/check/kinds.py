"""The kinds of tiles: what bodies decide on, and the values of it that are looked at.

A *variation* is a term that bodies use, or a sum of terms that is looked at as a whole. A kind of tile is a value for each
variation. Whatever the bodies do at a tile depends on its kind alone. Values go on without end, so those above some number
must be alike: a count grows by the same operations, and a comparison stays as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import attrs

from tmapipe.machine.decisions import CARRIED, COUNT, START, Decisions, Sum, Term, Use, primitive
from tmapipe.machine.varying import COMPARED, VALUE, Varying
from tmapipe.machine.varying_text import text_of

__all__ = ["Kinds", "Variation", "kinds_of"]

Key = tuple[Any, ...]
MOST_KINDS = 2000
FARTHEST = 24  # a number that a count may be compared with
ALL = 20  # as many values of something bounded are all looked at
BY_ITERATION = "decides on the first or the last iterations of a loop"


@attrs.frozen
class Variation:
    """Something that varies.

    key, term: of `Decisions`; near, far: from which value to which one answers change, or iterations begin; some: the values
    to look at, if it is only compared; indices: of the loops at each of whose iterations it can have another value; around:
    whether it counts a loop at whose iterations something can have another value.
    """

    key: Key
    term: Term
    near: int
    far: int
    some: tuple[int, ...] = ()
    indices: tuple[Key, ...] = ()
    around: bool = False

    @property
    def all(self) -> bool:
        """Whether it has so few values that all are looked at."""
        low, high = self.term.low, self.term.high
        return low is not None and high is not None and high - low < ALL and not self.around

    def values(self, laps: int, at_once: int) -> list[int]:
        """Those to look at. laps: as many as show that a count goes on by the same operations."""
        if self.some:
            return list(self.some)
        low = self.near - 2 * at_once if self.term.low is None else self.term.low
        if self.all:
            assert self.term.high is not None
            return list(range(low, self.term.high + 1))
        return list(range(low, max(low, self.far) + at_once * laps + 1))

    @property
    def text(self) -> str:
        return text_of(((self.key, 1),))


@attrs.frozen
class Kinds:
    """What varies; open: what is not looked through, in words."""

    variations: tuple[Variation, ...] = ()
    open: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(each.key for each in self.variations)

    def text(self, kind: tuple[int, ...]) -> str:
        """A kind, in words."""
        both = zip(self.variations, kind, strict=True)
        return ", ".join(f"{each.text} = {value}" for each, value in both) or "nothing that varies"

    def at(self, kind: tuple[int, ...]) -> dict[Key, int]:
        """The values of terms at a tile of this kind."""
        return dict(zip(self.keys, kind, strict=True))


def kinds_of(decisions: Decisions) -> Kinds:
    """What varies, by all that has been recorded."""
    uses = _uses(decisions)
    keys = list(dict.fromkeys(key for use in uses for key, _ in use.terms))
    halves = {key for key in keys if key != _whole_of(key) in keys}
    loops = {index for key in keys for index in decisions.indices(key)}
    around = {
        _whole_of(part) for index in loops for part, _ in decisions.looked_at(index[2], index[1], keys)
    }  # counts of loops at whose iterations something can have another value
    found = []
    reasons = [
        f"{text_of(use.terms, use.const)}, which {use.how}" for use in decisions.uses if use.how in (START, CARRIED)
    ]
    for key in (key for key in keys if key not in halves):
        own = [use for use in uses if any(key in (part, _whole_of(part)) for part, _ in use.terms)]
        values = any(use.how == VALUE for use in own)
        direct = all(len(use.terms) == 1 and use.terms[0][0] == key for use in own)
        counted = not direct or any(use.how in (COUNT, BY_ITERATION) for use in own)
        scale = max([part[2] for part in halves if _whole_of(part) == key], default=1)
        term = decisions.terms[key]
        changes = [value * scale for use in own if use.how != VALUE for value in _changes(use, halves)] or [0]
        near, far = (end(changes) if term.low is None else max(end(changes), term.low) for end in (min, max))
        some = () if counted or values else _critical(term, own)
        depth = max([len(use.inside) for use in own])
        each = Variation(key, term, near, far, some, decisions.indices(key), key in around)
        found.append((bool(each.indices), depth, each))
        if max(far, -near) > FARTHEST and not some:
            reasons.append(f"{each.text}, which is compared with numbers as large as {max(far, -near)}")
        if values and (term.indices or not each.all):
            reasons.append(f"{each.text}, which {VALUE}")
    found.sort(key=lambda entry: entry[:2])  # loops before those inside them
    return Kinds(tuple(each for _, _, each in found), tuple(dict.fromkeys(reasons)))


def _uses(decisions: Decisions) -> list[Use]:
    """All uses, of what is looked at: terms one by one, or sums as a whole, free of their terms."""
    given = [use for use in decisions.uses if use.how not in (START, CARRIED)]
    pairs = {(outer, inner) for use in given for outer, inner in _nested(use)}
    by_turns = [_by_turn(decisions, use) for use in given]
    wholes = {_sum(use): None for use in by_turns if _is_free(decisions, use, pairs)}
    uses = [
        by_turn if decisions.whole(use.terms, 0, wholes) is None else use
        for use, by_turn in zip(given, by_turns, strict=True)
    ]
    single = [use for use in uses if decisions.whole(use.terms, len(use.inside), wholes) is None]
    for use in single:  # sums of terms that are used in no other way
        parts = {key for key, _ in use.terms}
        others = [each for each in single if primitive(each.terms)[0] != primitive(use.terms)[0]]
        if use.how == COUNT and len(parts) > 1 and not any(key in parts for each in others for key, _ in each.terms):
            wholes["sum", primitive(use.terms)[0], 0] = None
    for key in wholes:
        decisions.terms.setdefault(key, _of_sum(decisions, key[1]))
    return [use._replace(terms=decisions.looked_at(use.terms, len(use.inside), wholes)) for use in uses]


def _nested(use: Use) -> Iterator[tuple[Key, Key]]:
    """(count of a loop, count of a loop inside it) of terms."""
    for index in use.inside if use.how == COUNT else ():
        yield from itertools.product((_whole_of(key) for key, _ in index[2]), (_whole_of(key) for key, _ in use.terms))


def _sum(use: Use) -> Key:
    """The sum as a whole. What counts a loop inside one that it counts, too, is free of that one."""
    return "sum", primitive(use.terms)[0], len(use.inside)


def _by_turn(decisions: Decisions, use: Use) -> Use:
    """A comparison with the first or the last iterations of a loop, as a use of the loop's count; any other use as it is."""
    indices = [(key, factor) for key, factor in use.terms if decisions.terms[key].indices]
    if use.how != COMPARED or len(indices) != 1 or abs(use.const) > FARTHEST:
        return use
    ((key, factor),) = indices
    if len(use.terms) == 1 and key[0] == "remainder" and key[2] in (2, 3) and len(key[1][0]) == 1:
        ((key, factor),) = key[1][0]
    rest = tuple((term, -factor * each) for term, each in use.terms if (term, each) not in indices)
    if key[0] != "index" or abs(factor) != 1 or rest not in ((), key[2]):
        return use
    return Use(BY_ITERATION, key[2], use.const, (key,) * key[1])


def _is_free(decisions: Decisions, use: Use, pairs: set[tuple[Key, Key]]) -> bool:
    """Whether a sum is looked at as a whole, whatever its terms are. pairs: of counts of loops in each other."""
    if use.how not in (COUNT, COMPARED):
        return False
    if any(decisions.terms[key].indices for key, _ in use.terms):
        return True
    if use.how == COMPARED:
        return len(use.terms) > 1
    return any((inner, outer) in pairs for outer, inner in _nested(use)) or any(factor < 0 for _, factor in use.terms)


def _whole_of(key: Key) -> Key:
    """The term of which this is half or a third, or the remainder: steps that are taken two by two, or by three.

    Any other term that is computed of something varies by itself.
    """
    if key[0] not in ("quotient", "remainder") or key[2] not in (2, 3):
        return key
    (terms, _) = key[1]
    return terms[0][0] if len(terms) == 1 and terms[0][1] == 1 else key


def _of_sum(decisions: Decisions, terms: Sum) -> Term:
    """What is known of a sum."""
    whole = Varying(decisions, dict(terms), 0, 0)
    (low,), (high,) = decisions.bounds(whole)
    return Term(low, high, per_tile=any(decisions.terms[key].per_tile for key, _ in terms))


def _changes(use: Use, halves: Collection[Key] = ()) -> list[int]:
    """The least and the largest value of a term at which what a body does with it changes."""
    ((key, factor), *others) = use.terms
    if others or use.how == BY_ITERATION or key in halves:
        far = abs(use.const) // min(abs(factor) for _, factor in use.terms) + 1
        return [-far, far]
    below, rest = divmod(-use.const, factor)
    return [below, below + bool(rest)]


def _critical(term: Term, uses: list[Use]) -> tuple[int, ...]:
    """Values that stand for all, if something is only compared: those at which an answer changes, and beside them."""
    changes = [_changes(use) for use in uses]
    found = {value for least, most in changes for value in (least, most)}
    found |= {value for least, most in changes if least == most for value in (least - 1, least + 1)}
    low = min(found) if term.low is None else term.low
    high = max(found) if term.high is None else term.high
    return tuple(sorted({min(max(value, low), high) for value in found}))
