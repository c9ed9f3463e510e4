"""A bar chart of a results file: for each problem, the best variant of each peer.

python -m benchmarks.plot benchmarks/results/gemm.json [--out gemm.svg]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.results import OURS, best, read

__all__ = ["plot"]


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
