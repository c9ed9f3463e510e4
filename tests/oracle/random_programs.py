"""Small programs drawn by a seed, right and wrong: what the linear check is compared with the exhaustive oracle on."""

from __future__ import annotations

import random
from typing import Any

import attrs

from tests.oracle.program_families import COPIED, FAMILIES, set_up
from tests.oracle.small_program import SLOT_BYTES, Call, SmallProgram

__all__ = ["COPIES", "anything", "changed", "draw"]


COPIES = 1_000_000


def draw(seed: int) -> SmallProgram:
    """A right program, one with up to three changes, or calls at random. From `COPIES` on: with copies by threads."""
    rng = random.Random(seed)
    if seed < COPIES and rng.random() < 0.25:
        return anything(rng)
    program = rng.choice(FAMILIES if seed < COPIES else COPIED)(rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3))):
        program = changed(program, rng)
    return program


def changed(program: SmallProgram, rng: random.Random) -> SmallProgram:
    """*program* with one thing changed: a call dropped, doubled, moved or with another operand, or a barrier's count."""
    counts = list(program.counts)
    if counts and rng.random() < 0.08:
        i = rng.randrange(len(counts))
        counts[i] = max(1, counts[i] + rng.choice((-1, 1)))
        return attrs.evolve(program, counts=tuple(counts))
    if program.slots > 1 and rng.random() < 0.02:
        return attrs.evolve(program, overlap=SLOT_BYTES // 2 - program.overlap)
    warps = [list(warp) for warp in program.calls]
    warp = rng.choice([w for w in warps if w])
    i = rng.randrange(len(warp))
    how = rng.randrange(8)
    if how <= 1:
        del warp[i]
    elif how == 2:
        warp.insert(i, warp[i])
    elif how == 3 and i + 1 < len(warp):
        warp[i], warp[i + 1] = warp[i + 1], warp[i]
    elif how == 4:
        warp.insert(rng.randrange(len(warp)), warp.pop(i))
    elif how == 5:
        other = rng.choice(warps)
        other.insert(rng.randint(0, len(other)), warp[i])
    else:
        warp[i] = _other_operand(program, warp[i], rng)
    if program.mma and rng.random() < 0.5:  # the same in all four warps
        for cta in range(program.ctas):
            first = cta * program.warps
            four = range(first, first + 4)
            touched = next((j for j in four if warps[j] is warp), None)
            if touched is not None:
                for j in four:
                    keep = [c for c in program.calls[j] if c[0] in ("init", "fence init")]
                    warps[j] = keep + [c for c in warp if c[0] not in ("init", "fence init")]
    return attrs.evolve(program, calls=tuple(map(tuple, warps)))


def _other_operand(program: SmallProgram, call: Call, rng: random.Random) -> Call:
    what, *rest = call
    operands: list[Any] = list(rest)
    bars, slots = len(program.counts), program.slots
    if what == "wait":
        return (what, operands[0], operands[1] ^ 1) if rng.random() < 0.6 else (what, rng.randrange(bars), operands[1])
    if what == "arrive":
        if rng.random() < 0.3:
            return (what, operands[0], 33 - (operands[1] if len(operands) > 1 else 1))
        return (what, rng.randrange(bars), *operands[1:])
    if what == "arrive at":
        if rng.random() < 0.6:
            return (what, operands[0], rng.randrange(1, 1 << program.ctas))
        return (what, *operands[:2], rng.choice(("cta", "relaxed")))
    if what in ("arrive tx", "expect tx"):
        by = rng.choice((-1, 1)) * rng.choice((16, SLOT_BYTES // 2, SLOT_BYTES))
        return (what, operands[0], max(0, operands[1] + by))
    if what == "load":
        if len(operands) > 2 and rng.random() < 0.5:
            return (what, *operands[:2], rng.randrange(1, 1 << program.ctas), rng.randrange(2))
        return (what, rng.randrange(slots), *operands[1:]) if rng.random() < 0.5 else (
            what, operands[0], rng.randrange(bars), *operands[2:]
        )  # fmt: skip
    if what == "copy":
        return (what, rng.randrange(slots), *operands[1:]) if rng.random() < 0.5 else (
            what, operands[0], rng.randrange(bars), *operands[2:]
        )  # fmt: skip
    if what in ("bulk wait", "mma wait"):
        return (what, max(0, operands[0] + rng.choice((-1, 1))), *operands[1:])
    if what in ("read", "write", "store", "mma"):
        return (what, rng.randrange(slots), *operands[1:])
    if what in ("bar sync", "bar arrive"):
        return (rng.choice(("bar sync", "bar arrive")), rng.choice((1, 1, 2)), rng.choice((32, 64)))
    return call


def anything(rng: random.Random) -> SmallProgram:
    """Two or three warps with a few calls each, drawn at random."""
    warps, bars, slots = rng.randint(2, 3), rng.randint(1, 2), rng.randint(1, 2)
    ctas = 2 if rng.random() < 0.15 else 1
    per_cta = 1 if ctas == 2 and rng.random() < 0.5 else warps if ctas == 1 else 2
    lists = [tuple(_any_call(rng, bars, slots, ctas) for _ in range(rng.randint(1, 6))) for _ in range(per_cta * ctas)]
    if rng.random() < 0.4:  # nothing left in flight
        lists = [(*calls, ("commit",), ("bulk wait", 0, True)) for calls in lists]
    counts = tuple(rng.randint(1, 2) for _ in range(bars))
    program = set_up(SmallProgram(counts, slots, tuple(lists), ctas, text="anything"))
    if rng.random() < 0.5:  # few of those can come to an end without it
        end: tuple[Call, ...] = (("cluster arrive",), ("cluster wait",)) if ctas > 1 else (("sync",),)
        program = attrs.evolve(program, calls=tuple((*calls, *end) for calls in program.calls))
    return program


def _any_call(rng: random.Random, bars: int, slots: int, ctas: int) -> Call:
    bar, slot = rng.randrange(bars), rng.randrange(slots)
    calls: list[Call] = [
        ("wait", bar, rng.randint(0, 1)),
        ("wait", bar, rng.randint(0, 1)),
        ("arrive", bar),
        ("arrive", bar),
        ("arrive tx", bar, SLOT_BYTES),
        ("load", slot, bar),
        ("read", slot),
        ("write", slot),
        rng.choice((("warp sync",), ("fence",), ("expect tx", bar, SLOT_BYTES), ("arrive", bar, 32))),
        rng.choice((("bar sync", 1, 64), ("bar arrive", 1, 64), ("store", slot), ("bulk wait", 0, True), ("commit",))),
    ]
    if ctas > 1:
        scope = rng.choice(("cluster", "cluster", "relaxed"))
        calls += [
            ("arrive at", bar, rng.randint(1, 3), scope),
            ("load", slot, bar, rng.randint(1, 3), rng.randint(0, 1)),
        ]
    return rng.choice(calls)
