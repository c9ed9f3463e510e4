"""How to measure on a GPU that runs at its power limit.

Launched back to back, the same kernel takes 1386 to 1585 us, depending on its position in the queue. So `rested` lets the
device rest before every batch, shuffles the variants in every round, and takes medians of short batches; this repeats within
0.2 %. `benchmarks.sustained` is the other way: a hot card, long batches, and ratios between variants of a round (good to 2 %).

All times are microseconds of GPU time per launch. The clock is an object, so this file needs neither a GPU nor torch
(`tmapipe.gpu.clock` has the real one).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Protocol, TypeVar

import attrs

__all__ = ["Clock", "Method", "Timing", "rested", "screen"]

Run = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)


class Clock(Protocol):
    """Times launches on one device."""

    def rest(self, seconds: float) -> None:
        """Leaves the device idle."""

    def batch(self, run: Run, launches: int) -> list[float]:
        """Microseconds of each of *launches* launches; the L2 cache is flushed before each."""

    def span(self, run: Run, seconds: float) -> float:
        """Microseconds per launch of launches back to back for about *seconds*. Very short kernels are bound by the host."""


@attrs.frozen
class Method:
    """How long to measure.

    Args:
        rounds: Each variant is measured once per round.
        batch: Launches at a time.
        rest: Seconds of idle device before each batch.
        preheat: Seconds of load before the sustained rounds.
        hot: Seconds of each sustained batch.
        seed: Of the order of the variants.
    """

    rounds: int = 6
    batch: int = 8
    rest: float = 0.3
    preheat: float = 3.0
    hot: float = 0.25
    seed: int = 0


@attrs.frozen
class Timing:
    """The times of one variant.

    Args:
        us: Median over rounds of the batches' medians (microseconds).
        spread: (p75 - p25) / median of these medians.
        rounds: These medians.
        ratio: Speed relative to the baseline, as the median of the rounds' own ratios (sustained only).
    """

    us: float
    spread: float
    rounds: tuple[float, ...]
    ratio: float | None = None

    @classmethod
    def of(cls, rounds: Iterable[float], ratio: float | None = None) -> Timing:
        values = tuple(rounds)
        median = statistics.median(values)
        return cls(median, _interquartile(values) / median, values, ratio)


def rested(variants: Mapping[Name, Run], clock: Clock, method: Method) -> dict[Name, Timing]:
    """The main measurement: in each round, each variant in random order, with a rest before its batch. One warm-up launch
    each.
    """
    order = random.Random(method.seed)
    medians: dict[Name, list[float]] = {name: [] for name in variants}
    for run in variants.values():
        clock.batch(run, 1)
    for _ in range(method.rounds):
        for name in order.sample(list(variants), len(variants)):
            clock.rest(method.rest)
            medians[name].append(statistics.median(clock.batch(variants[name], method.batch)))
    return {name: Timing.of(values) for name, values in medians.items()}


def screen(
    variants: Mapping[Name, Run], clock: Clock, keep: int, *, pinned: Iterable[Name] = (), seed: int = 0
) -> list[Name]:
    """A short look at each of many configurations (0.1 s of rest, 8 launches), to leave out what is far behind.

    Keeps the *keep* fastest, those within 1 % of these (at most as many again), and the *pinned* ones, in the order of
    *variants*. Too coarse to report.
    """
    if len(variants) <= keep:
        return list(variants)
    seen: dict[Name, float] = {}
    for name in random.Random(seed).sample(list(variants), len(variants)):
        clock.rest(0.1)
        seen[name] = statistics.median(clock.batch(variants[name], 8))
    fastest = sorted(seen, key=seen.__getitem__)[: 2 * keep]
    kept = {*(name for name in fastest if seen[name] <= 1.01 * seen[fastest[keep - 1]]), *pinned}
    return [name for name in variants if name in kept]


def _interquartile(values: tuple[float, ...]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low
