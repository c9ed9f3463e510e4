"""Tables of a comparison: one for each problem, and a summary of all."""

from __future__ import annotations

import math

from benchmarks.compare import Problem
from benchmarks.results import OURS, Results, best, print_table

__all__ = ["print_problem", "print_summary"]


def print_problem(results: Results, problem: Problem) -> None:
    """The rows of one problem, fastest first, a table for each mode."""
    for mode in ("rested", "sustained"):
        rows = [r for r in results.rows if (r["problem"], r["dtype"], r["mode"]) == (problem.name, problem.dtype, mode)]
        if not rows:
            continue
        rows.sort(key=lambda r: -r[problem.measure])
        unit = {"tflops": "TFLOP/s", "gbps": "GB/s"}[problem.measure]
        headers = ["peer", "variant", "us", unit, "of peak", "of best peer", "spread", "rel_err"]
        body = [
            [
                r["peer"], r["variant"], f"{r['us']:.1f}", f"{r[problem.measure]:.0f}", _ratio(r.get("fraction_of_peak")),
                _ratio(r.get("fraction_of_best_peer")), f"{100 * r['spread']:.1f} %", f"{r['rel_err']:.1e}",
            ]
            for r in rows
        ]  # fmt: skip
        if mode == "sustained":
            headers.append(f"of {rows[0]['baseline']}")
            body = [[*line, _ratio(r["ratio_to_baseline"])] for line, r in zip(body, rows, strict=True)]
        print_table(body, headers, f"{problem.name} {problem.dtype}, {mode}")


def print_summary(results: Results, measure: str, mode: str = "rested") -> None:
    """A line a problem of this *measure*: the best of each peer, and ours as a fraction; geometric means below."""
    rows = [r for r in results.rows if r["mode"] == mode and measure in r]
    groups = list(dict.fromkeys((r["problem"], r["dtype"], r.get("accumulate")) for r in rows))
    peers = [p for p in dict.fromkeys(r["peer"] for r in rows) if p != OURS]
    body, of_best, of_first = [], [], []
    for problem, dtype, accumulate in groups:
        mine = [r for r in rows if (r["problem"], r["dtype"], r.get("accumulate")) == (problem, dtype, accumulate)]
        ours, theirs = best(mine, measure, peer=OURS), [best(mine, measure, peer=p) for p in peers]
        top = max((r[measure] for r in theirs if r), default=None)
        if ours and top:
            of_best.append(ours[measure] / top)
        if ours and theirs and theirs[0]:
            of_first.append(ours[measure] / theirs[0][measure])
        body.append(
            [
                " ".join(filter(None, (problem, dtype, accumulate))),
                *(f"{r[measure]:.0f}" if r else "-" for r in theirs),
                f"{ours[measure]:.0f}" if ours else "-",
                _ratio(ours[measure] / top) if ours and top else "-",
                ours["variant"] if ours else "-",
            ]
        )
    if not body:
        return
    headers = ["problem", *peers, OURS, "of best peer", "variant"]
    print_table(body, headers, f"{results.suite}, {mode}: best of each, {measure}")
    for name, values in (("the best peer", of_best), (peers[0] if peers else "", of_first)):
        if values:
            print(
                f"geometric mean of {name}: {math.exp(sum(map(math.log, values)) / len(values)):.3f} over {len(values)}"
            )


def _ratio(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"
