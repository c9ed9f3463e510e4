"""A bar chart of a results file: for each problem, the best variant of each peer.

python -m benchmarks.plot benchmarks/results/gemm.json [--out gemm.svg]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from benchmarks.results import OURS, best, read

__all__ = ["dots", "mark", "plot"]


def plot(results: dict[str, Any], path: Path, *, mode: str = "rested") -> bool:
    """Writes the chart to *path* (its suffix names the format). Without matplotlib it says so and returns False."""
    try:
        import matplotlib
    except ImportError:
        print(f"no plot {path}: matplotlib is not installed (it is in the extra 'bench')")
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [r for r in results["rows"] if r.get("mode", "rested") == mode]
    measure, unit = ("gbps", "GB/s") if any("gbps" in r for r in rows) else ("tflops", "TFLOP/s")
    problems = list(dict.fromkeys((r["problem"], r["dtype"]) for r in rows))
    peers = sorted({r["peer"] for r in rows}, key=lambda peer: (peer != OURS, peer))
    width = 0.8 / max(len(peers), 1)
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.1 * len(problems)), 4.5), layout="constrained")
    for i, peer in enumerate(peers):
        tops = [best(rows, measure, problem=p, dtype=d, peer=peer) for p, d in problems]
        heights = [top[measure] if top else 0.0 for top in tops]
        axes.bar([x + i * width for x in range(len(problems))], heights, width, label=peer)
    axes.set_xticks([x + width * (len(peers) - 1) / 2 for x in range(len(problems))])
    axes.set_xticklabels([f"{p}\n{d}" for p, d in problems], rotation=30, ha="right", fontsize=8)
    axes.set_ylabel(unit)
    axes.set_title(f"{results['suite']} on {results['gpu']}, {results['date'][:10]}, {mode}")
    axes.legend(fontsize=8)
    figure.savefig(path)
    pyplot.close(figure)
    return True


def mark(groups: dict[str, list[float]]) -> str:
    """What a plot of these *groups* has in its description, by which a test sees that a plot is out of date."""
    text = json.dumps({name: [round(ratio, 4) for ratio in ratios] for name, ratios in groups.items()})
    return f"ratios {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def dots(groups: dict[str, list[float]], path: Path) -> None:
    """Draws a line a group, with a dot for each problem at its speed over the fastest peer's. Needs matplotlib.

    Args:
        groups: The ratios by the group's name. A bar marks their geometric mean.
        path: The file, an SVG. The same groups give the same bytes with one version of matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tmapipe"
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(8.0, 0.8 + 0.34 * len(groups)), layout="constrained")
    for line, ratios in enumerate(groups.values()):
        axes.scatter(ratios, [line] * len(ratios), s=26, alpha=0.35, color="#2a6f97", linewidths=0)
        axes.scatter([math.exp(sum(map(math.log, ratios)) / len(ratios))], [line], s=60, marker="|", color="#012a4a")
    axes.axvline(1.0, color="#888888", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.FixedLocator([0.33, 0.5, 0.75, 1, 1.5, 2, 3, 5]))
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_yticks(range(len(groups)), [f"{name} ({len(ratios)})" for name, ratios in groups.items()], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("speed over the fastest peer's; the bar is the geometric mean")
    figure.savefig(path, metadata={"Date": None, "Description": mark(groups)})
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, help="default: beside the results, as .svg")
    parser.add_argument("--mode", default="rested", choices=("rested", "sustained"))
    args = parser.parse_args(argv)
    path = args.out or args.results.with_suffix(".svg")
    if plot(read(args.results), path, mode=args.mode):
        print(path)


if __name__ == "__main__":
    main()
