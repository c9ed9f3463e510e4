"""The kinds of tiles: what bodies decide on, and the values of it that are looked at.

A *variation* is a term that bodies use and that is not computed of others that they use. A kind of tile is a value for each
variation. Whatever the bodies do at a tile depends on its kind alone. Values go on without end, so those above some number
must be alike: a count grows by the same operations, and a comparison stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs

from tmapipe.machine.decisions import COUNT, Decisions, Term, Use
from tmapipe.machine.varying import COMPARED, VALUE, Varying
from tmapipe.machine.varying_text import text_of

__all__ = ["Kinds", "Variation", "kinds_of", "sources"]

Key = tuple[Any, ...]
MOST_KINDS = 700
FARTHEST = 24  # a number that something may be compared with
ALL = 20  # as many values of something bounded are all looked at


@attrs.frozen
class Variation:
    """Something that varies.

    key, term: of `Decisions`; counted: whether it counts loops; far: up to which value, and down to which negative one, it is
    compared with numbers; others: terms that are used only in one sum with it, so that it stands for the sum, and they are 0.
    """

    key: Key
    term: Term
    counted: bool
    far: int
    others: tuple[tuple[Key, int], ...] = ()

    @property
    def all(self) -> bool:
        """Whether it has so few values that all are looked at."""
        low, high = self.term.empty, self.term.high
        return low is not None and high is not None and high - low < ALL

    def values(self, laps: int, at_once: int) -> list[int]:
        """Those to look at. laps: as many as show that a count goes on by the same operations."""
        low = -(self.far + 2) if self.term.empty is None else self.term.empty
        if self.all:
            assert self.term.high is not None
            return list(range(low, self.term.high + 1))
        return list(range(low, max(low, 0) + self.far + (at_once * laps if self.counted else 1) + 1))

    @property
    def text(self) -> str:
        return text_of(((self.key, 1), *self.others))


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
        found = dict(zip(self.keys, kind, strict=True))
        return found | {key: 0 for each in self.variations for key, _ in each.others}


def kinds_of(decisions: Decisions, uses: list[Use] | None = None) -> Kinds:
    """What varies, by all that has been recorded."""
    uses = list(decisions.uses) if uses is None else uses
    terms = decisions.terms
    used = dict.fromkeys(key for use in uses for key, _ in use.terms)
    for key in [key for key in used if terms[key].by_index]:  # of the index of a loop, and maybe of others
        used.update(dict.fromkeys(terms[key].of))
    keys = [key for key in used if not terms[key].by_index]
    while True:
        half = next((key for key in keys if _halved(key, keys)), None)
        if half is None:
            break
        keys.remove(half)
    found, reasons = [], []
    sums = _sums(terms, uses, keys)
    for key in keys:
        if any(key in of for of in sums.values()):
            continue
        own = [use for use in uses if key in sources(terms, use.terms, keys) or not sources(terms, use.terms, keys)]
        counted = any(use.how == COUNT or _by_index(terms, use) or _mixed(terms, use, keys, sums) for use in own)
        far = max([_distance(use) * _scale(use, keys) for use in own if use.how != VALUE], default=0)
        others = sums.get(key, {})
        term = _of_sum(decisions, key, others) if others else terms[key]
        found.append(Variation(key, term, counted, far, tuple(others.items())))
        if far > FARTHEST:
            reasons.append(f"{found[-1].text}, which is compared with numbers as large as {far}")
    for use in uses:
        reasons += _not_seen_through(terms, use, found)
    return Kinds(tuple(found), tuple(dict.fromkeys(reasons)))


def _sums(terms: dict[Key, Term], uses: list[Use], keys: list[Key]) -> dict[Key, dict[Key, int]]:
    """Terms that are used only together, in one sum: one of each sum -> the others, with their factors if its own is 1."""
    found: dict[Key, dict[Key, int]] = {}
    for use in uses:
        own = {key: factor for key, factor in use.terms if key in keys}
        first = next((key for f in (1, -1) for key, factor in own.items() if factor == f), None)
        if len(own) < 2 or first is None or first in found:
            continue
        sign = own.pop(first)
        others = {key: factor * sign for key, factor in own.items()}
        if all(_together(terms, each, keys, {first: 1, **others}) for each in uses):
            found[first] = others
    return found


def _together(terms: dict[Key, Term], use: Use, keys: list[Key], all_of: dict[Key, int]) -> bool:
    """Whether a use is of a multiple of this sum, or of none of its terms."""
    own = {key: factor for key, factor in use.terms if key in all_of}
    rest = tuple((key, factor) for key, factor in use.terms if key not in own)
    if sources(terms, rest, keys) & all_of.keys():
        return False
    return not own or {key: factor * own.get(next(iter(all_of)), 0) for key, factor in all_of.items()} == own


def _of_sum(decisions: Decisions, key: Key, others: dict[Key, int]) -> Term:
    """What is known of a sum."""
    whole = Varying(decisions, {key: 1, **others}, 0, 0)
    low, empty, high = (decisions.bound(whole, end) for end in ("low", "empty", "high"))
    known = [decisions.terms[part] for part in whole.terms]
    return Term(low, empty, high, per_tile=any(term.per_tile for term in known))


def _halved(key: Key, keys: list[Key]) -> bool:
    """Whether it is half or a third of one of *keys*, or the remainder: steps that are taken two by two, or by three.

    Any other term that is computed of something varies by itself.
    """
    if key[0] not in ("quotient", "remainder") or key[2] not in (2, 3):
        return False
    (terms, _) = key[1]
    return len(terms) == 1 and terms[0][1] == 1 and terms[0][0] in keys


def sources(terms: dict[Key, Term], of: tuple[tuple[Key, int], ...], keys: Collection[Key]) -> set[Key]:
    """Those of *keys* that a sum is computed of."""
    found, todo = set(), [key for key, _ in of]
    while todo:
        key = todo.pop()
        if key in keys:
            found.add(key)
        else:
            todo += terms[key].of
    return found


def _by_index(terms: dict[Key, Term], use: Use) -> bool:
    return any(terms[key].by_index for key, _ in use.terms)


def _distance(use: Use) -> int:
    """How far from 0 the values lie at which a comparison changes."""
    if use.how == COUNT and use.const >= 0 and all(factor > 0 for _, factor in use.terms):
        return 0
    return abs(use.const) // min(abs(factor) for _, factor in use.terms) + 1


def _scale(use: Use, keys: list[Key]) -> int:
    """By how much larger numbers a half or a third is computed of."""
    return max([key[2] for key, _ in use.terms if _halved(key, keys)], default=1)


def _mixed(terms: dict[Key, Term], use: Use, keys: list[Key], sums: dict[Key, dict[Key, int]]) -> bool:
    """Whether a use is of several variations, or of a half of one."""
    own = {key for key, _ in use.terms if not any(key in of for of in sums.values())}
    return len(sources(terms, use.terms, keys) & own) > 1 or any(_halved(key, keys) for key in own)


def _not_seen_through(terms: dict[Key, Term], use: Use, found: list[Variation]) -> list[str]:
    """Why a use is not seen through; nothing if it is."""
    text = text_of(use.terms, use.const)
    known = {each.key: each for each in found}
    if use.how == VALUE:
        few = all(key in known and known[key].all for key, _ in use.terms)
        return [] if few else [f"{text}, which {use.how}"]
    factors = {key: factor for key, factor in use.terms if not terms[key].by_index}
    others = {key for each in found for key, _ in each.others}
    several = len(factors.keys() - others) > 1 and any(abs(factor) > 1 for factor in factors.values())
    if not _by_index(terms, use):
        grows = use.how == COUNT and all(factor > 0 for factor in factors.values())
        return [f"{text}, which {use.how}"] if several and not grows else []
    if use.how == COUNT:
        return [f"{text}, which counts a loop inside another"]
    indices = [(key, factor) for key, factor in use.terms if key[0] == "index"]
    halves = [key for key, _ in use.terms if terms[key].by_index and key[0] != "index"]
    if any(key[0] != "remainder" or key[2] not in (2, 3) for key in halves) or len(indices) + len(halves) > 1:
        return [f"{text}, which {COMPARED}"]
    for key, factor in indices:  # a few turns after the first or before the last, or at another number
        to_the_end = {term: -factor * each for term, each in key[2]} == factors
        if abs(factor) > 1 or not (to_the_end or all(abs(each) == 1 for each in factors.values())):
            return [f"{text}, which {COMPARED}"]
    return []
