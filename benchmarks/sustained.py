"""The second measurement: a hot card, no rests, no flushes. How long a measurement takes."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping

from tmapipe.tuning.cost import Clock, Method, Name, Run, Timing

__all__ = ["estimate_seconds", "sustained"]


def sustained(variants: Mapping[Name, Run], clock: Clock, method: Method, baseline: Name) -> dict[Name, Timing]:
    """All variants in random order, batch after batch, on a hot card.

    `Timing.ratio` is the baseline's time over the variant's time, paired within each round.
    """
    order = random.Random(method.seed)
    for run in variants.values():
        clock.span(run, method.preheat / len(variants))
    rounds: dict[Name, list[float]] = {name: [] for name in variants}
    for _ in range(method.rounds):
        for name in order.sample(list(variants), len(variants)):
            rounds[name].append(clock.span(variants[name], method.hot))
    return {
        name: Timing.of(values, statistics.median(b / v for b, v in zip(rounds[baseline], values, strict=True)))
        for name, values in rounds.items()
    }


def estimate_seconds(variants: int, method: Method, *, hot: bool = False, us: float = 1500.0) -> float:
    """Wall-clock seconds that the measurement of one problem takes.

    Args:
        variants: How many.
        hot: Whether the sustained rounds, not the rested ones.
        us: About how long a launch takes (microseconds).
    """
    if hot:
        return method.preheat + method.rounds * variants * method.hot
    launch = (us + 100.0) / 1e6  # a flush takes about 100 us
    return method.rounds * variants * (method.rest + method.batch * launch + 2e-3)
