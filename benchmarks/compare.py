"""One problem: all variants of all peers in one process on the same data; checks, screens and measures them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs

from benchmarks.results import OURS, Results, best
from benchmarks.sustained import estimate_seconds, sustained
from tmapipe.tuning.cost import Clock, Method, Run, rested, screen

__all__ = ["Problem", "compare"]

Key = tuple[str, str]  # peer, variant


@attrs.frozen
class Problem:
    """work: floating-point operations, or bytes read and written, of a launch; measure: "tflops" or "gbps"; peak: of the
    datasheet, in that unit, None if unknown; check: runs a variant into a poisoned output and returns its relative error;
    limit: the error from which a result is wrong."""

    name: str
    dtype: str
    work: float
    measure: str
    peak: float | None
    check: Callable[[Run], float] = attrs.field(repr=False)
    limit: float = 1e-2

    def speed(self, us: float) -> float:
        """TFLOP/s or GB/s of a launch that takes *us* microseconds."""
        return self.work / us / (1e6 if self.measure == "tflops" else 1e3)


def compare(
    problem: Problem,
    candidates: Mapping[Key, Run],
    clock: Clock,
    method: Method,
    results: Results,
    *,
    keep: int = 2,
    pinned: Collection[Key] = (),
    sustained_too: bool = False,
) -> list[str]:
    """Adds a row for each variant measured to *results*; returns what failed, as lines. keep: variants of each peer that
    enter the rounds after a short look at all (and those *pinned*)."""
    errors, failed = _check(problem, candidates, clock)
    chosen = _screen({key: candidates[key] for key in errors}, clock, keep, pinned, method.seed)
    if not chosen:
        return failed
    seconds = estimate_seconds(len(chosen), method)
    print(f"  measuring {len(chosen)} of {len(candidates)} variants, about {seconds:.0f} s", flush=True)
    rows = []
    for (peer, variant), timing in rested(chosen, clock, method).items():
        rows.append(_row(problem, peer, variant, timing, "rested", errors[peer, variant]))
    if sustained_too:
        tops = [best(rows, problem.measure, peer=p, accumulate=a) for p, a in _groups(chosen)]
        finalists = {(top["peer"], top["variant"]): chosen[top["peer"], top["variant"]] for top in tops if top}
        base = next((key for key in finalists if key[0] == "cublas"), next(iter(finalists)))
        seconds = estimate_seconds(len(finalists), method, hot=True)
        print(f"  sustained: {len(finalists)} variants, about {seconds:.0f} s", flush=True)
        for (peer, variant), timing in sustained(finalists, clock, method, base).items():
            row = _row(problem, peer, variant, timing, "sustained", errors[peer, variant])
            rows.append({**row, "baseline": " ".join(base), "ratio_to_baseline": timing.ratio})
    _add_fractions(problem, rows)
    for row in rows:
        results.add(**row)
    return failed


def _check(problem: Problem, candidates: Mapping[Key, Run], clock: Clock) -> tuple[dict[Key, float], list[str]]:
    errors: dict[Key, float] = {}
    failed: list[str] = []
    counts = Counter(peer for peer, _ in candidates)
    print("  checking " + ", ".join(f"{count} of {peer}" for peer, count in counts.items()), flush=True)

    def fail(line: str) -> None:
        failed.append(line)
        print(f"  left out: {line}", flush=True)

    for (peer, variant), run in candidates.items():
        try:
            error = problem.check(run)
        except Exception as reason:
            clock.rest(0.0)  # raises if the device itself is lost: then nothing more can be measured
            first = (str(reason).strip().splitlines() or [""])[0]
            fail(f"{peer} {variant}: {problem.name}: {type(reason).__name__}: {first[:200]}")
            continue
        if error <= problem.limit:  # NaN is not
            errors[peer, variant] = error
        else:
            fail(f"{peer} {variant}: {problem.name}: WRONG, relative error {error:.2e}")
    return errors, failed


def _screen(
    candidates: Mapping[Key, Run], clock: Clock, keep: int, pinned: Collection[Key], seed: int
) -> dict[Key, Run]:
    """Each peer, and each kind of accumulation, is screened by itself."""
    kept: dict[Key, Run] = {}
    for group in _groups(candidates):
        mine = {v: run for (p, v), run in candidates.items() if (p, _accumulate(v)) == group}
        names = screen(mine, clock, keep, pinned=[v for p, v in pinned if p == group[0] and v in mine], seed=seed)
        kept |= {(group[0], name): mine[name] for name in names}
    return kept


def _row(problem: Problem, peer: str, variant: str, timing: Any, mode: str, error: float) -> dict[str, Any]:
    return {
        "problem": problem.name,
        "dtype": problem.dtype,
        "peer": peer,
        "variant": variant,
        "us": timing.us,
        problem.measure: problem.speed(timing.us),
        "rel_err": error,
        "spread": timing.spread,
        "mode": mode,
        "accumulate": _accumulate(variant),
    }


def _add_fractions(problem: Problem, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if problem.peak:
            row["fraction_of_peak"] = row[problem.measure] / problem.peak
        alike = {name: row[name] for name in ("mode", "accumulate")}
        theirs = best([r for r in rows if r["peer"] != OURS], problem.measure, **alike)
        if theirs:
            row["fraction_of_best_peer"] = row[problem.measure] / theirs[problem.measure]


def _groups(keys: Iterable[Key]) -> list[tuple[str, str | None]]:
    """The peers, fp8 peers once for each kind of accumulation."""
    return list(dict.fromkeys((peer, _accumulate(variant)) for peer, variant in keys))


def _accumulate(variant: str) -> str | None:
    first = variant.split(" ", 1)[0]
    return first if first in ("fast", "promoted") else None
