"""Writes the tables of docs/internals/performance.md from the result files.

    python -m benchmarks.page            # writes them
    python -m benchmarks.page --check    # says which are out of date

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; `TABLES` says what each has. Text outside is left alone.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import OURS, best, read

PAGE = Path(__file__).resolve().parents[1] / "docs" / "internals" / "performance.md"
_RESULTS = Path(__file__).resolve().parent / "results"
_PLACE = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.S)

Rows = list[dict[str, Any]]


def rows_of(suite: str) -> tuple[Rows, str]:
    """The rows of a result file, and where they come from, in words."""
    found = read(_RESULTS / f"{suite}.json")
    return found["rows"], f"{found['gpu'].replace('NVIDIA ', '')}, {found['date'][:10]}, `{suite}.json`"


def table(headers: Sequence[str], body: Iterable[Sequence[Any]], source: str) -> str:
    """A table of Markdown, with its source below."""
    lines = [headers, ["---"] * len(headers), *body]
    text = "\n".join("| " + " | ".join("" if x is None else str(x) for x in line) + " |" for line in lines)
    return f"{text}\n\n({source}.)\n"


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def beside_peers(
    suite: str, measure: str, unit: str, keep: Callable[[dict[str, Any]], bool] = lambda row: True, digits: int = 0
) -> str:
    """The best variant of each peer on each problem, and ours over the fastest of them.

    Args:
        suite: The result file's name.
        measure: "tflops", "gbps" or "us" (less is better).
        unit: What the numbers are, for the first column's head.
        keep: Which rows are meant.
        digits: Decimals of the numbers.
    """
    rows, source = rows_of(suite)
    rows = [{**r, "speed": 1 / r["us"] if measure == "us" else r[measure]} for r in rows if keep(r) and measure in r]
    name = {id(r): " ".join(filter(None, (r["problem"], r.get("accumulate")))) for r in rows}
    peers = [peer for peer in dict.fromkeys(r["peer"] for r in rows) if peer != OURS]
    body, ratios = [], []
    for problem in dict.fromkeys(name.values()):
        mine = [r for r in rows if name[id(r)] == problem]
        ours, theirs = best(mine, "speed", peer=OURS), [best(mine, "speed", peer=peer) for peer in peers]
        fastest = max((r["speed"] for r in theirs if r), default=None)
        if ours is None:
            continue
        ratio = ours["speed"] / fastest if fastest else None
        ratios += [ratio] if ratio else []
        numbers = [f"{r[measure]:.{digits}f}" if r else None for r in (*theirs, ours)]
        body.append([problem, *numbers, f"{ratio:.2f}" if ratio else None])
    if len(ratios) > 1:
        body.append([f"geometric mean of {len(ratios)}", *[None] * (1 + len(peers)), f"{mean(ratios):.3f}"])
    return table([unit, *peers, OURS, "of the best peer"], body, source)


def drawn(suite: str, groups: dict[str, Callable[[dict[str, Any]], bool]]) -> str:
    """Problems drawn at random: what is chosen without a number, over the fastest peer. A line a group.

    Args:
        groups: What each line is of, and whether a row belongs to it.
    """
    rows, source = rows_of(suite)
    body = []
    for name, belongs in groups.items():
        mine = [r for r in rows if belongs(r)]
        ratios = {}
        for problem in dict.fromkeys((r["problem"], r.get("dtype")) for r in mine):
            these = [r for r in mine if (r["problem"], r.get("dtype")) == problem]
            ours = [r["us"] for r in these if r["peer"] == OURS and (r.get("looked") or r.get("chosen"))]
            looked = [r["us"] for r in these if r["peer"] == OURS and r.get("looked")]
            theirs = [r["us"] for r in these if r["peer"] != OURS]
            if ours and theirs:
                ratios[problem] = min(theirs) / (looked or ours)[0]
        if ratios:
            worst = min(ratios, key=ratios.__getitem__)
            under = [sum(ratio < limit for ratio in ratios.values()) for limit in (0.9, 0.95)]
            last = f"{ratios[worst]:.3f} ({' '.join(filter(None, worst))})"
            body.append([name, len(ratios), f"{mean(list(ratios.values())):.3f}", last, *under])
    return table(["of the best peer", "problems", "mean", "least", "under 0.90", "under 0.95"], body, source)


def parts_removed() -> str:
    """The same kernels with a part removed."""
    rows, source = rows_of("ceiling")
    kinds = ("whole", "without loads", "without stores")
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for r in rows:
        schedule, _, kind = r["variant"].rpartition(", ")
        found.setdefault((r["problem"], schedule), {})[kind] = r
    body = [
        [*place, *(f"{each[kind]['tflops']:.0f}" for kind in kinds), f"{each['whole']['fraction_of_ceiling']:.3f}"]
        for place, each in found.items()
        if all(kind in each for kind in kinds)
    ]
    return table(["M x N x K, TFLOP/s", "schedule", *kinds, "of the ceiling"], body, source)


def _rested(row: dict[str, Any]) -> bool:
    return row.get("mode", "rested") == "rested"


ROWS = ("softmax", "rmsnorm")
LENGTHS = ("lengths that 8 divides", "other lengths")


def _lengths(kind: str, what: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a row is of that kernel and of such a length."""

    def belongs(row: dict[str, Any]) -> bool:
        name, length = row["problem"].split()[:2]
        return bool(name == kind and (int(length) % 8 == 0) == (what == LENGTHS[0]))

    return belongs


def _latest_attention() -> str:
    """Of each problem, the last run that has a peer."""
    rows, source = rows_of("attention")
    beside = [r for r in rows if r["peer"] != OURS]
    last = {
        problem: max(r["run"] for r in beside if r["problem"] == problem) for problem in {r["problem"] for r in rows}
    }
    text = beside_peers("attention", "tflops", "TFLOP/s", lambda r: r["run"] == last[r["problem"]])
    return text.replace(source, f"{source}; each problem's last run beside a peer")


#: Name of a table, and what writes it.
TABLES: dict[str, Callable[[], str]] = {
    "gemm": lambda: beside_peers("gemm", "tflops", "M x N x K, TFLOP/s", _rested),
    "gemm-fp8": lambda: beside_peers("gemm_fp8", "tflops", "M x N x K, TFLOP/s", _rested),
    "views": lambda: drawn(
        "random_views",
        {
            "bf16, both operands along k": lambda r: r["kind"] == "along k",
            "bf16, other majors": lambda r: r["kind"] == "other majors",
        },
    ),
    "h100": lambda: drawn("random_h100", {"bf16, H100": lambda r: True}),
    "attention": _latest_attention,
    "epilogue": lambda: beside_peers("epilogue", "us", "microseconds", _rested, 1),
    "programs": lambda: beside_peers("programs", "us", "microseconds", _rested),
    "grouped": lambda: beside_peers("grouped", "tflops", "M x N x K / groups, TFLOP/s", _rested),
    "rows": lambda: drawn("rows_fresh", {f"{kind}, {what}": _lengths(kind, what) for kind in ROWS for what in LENGTHS}),
    "row-kernels": lambda: beside_peers("rows_kernels", "gbps", "GB/s"),
    "copy": lambda: beside_peers("copy", "gbps", "GB/s", _rested),
    "copies": lambda: beside_peers("rows_more", "gbps", "GB/s", lambda r: r["problem"].startswith("copy")),
    "transpose": lambda: beside_peers("transpose", "gbps", "GB/s", _rested),
    "conv2d": lambda: beside_peers("conv2d", "tflops", "TFLOP/s", _rested),
    "gather": lambda: beside_peers("gather", "gbps", "elements of a row, GB/s", _rested),
    "ceiling": parts_removed,
}


def filled(text: str) -> str:
    """The page's *text* with the tables as the result files say. Raises `KeyError` for a name that no table has."""
    return _PLACE.sub(lambda place: place[1] + TABLES[place[2]]() + place[3], text)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is out of date")
    options = parser.parse_args(argv)
    before = PAGE.read_text()
    after = filled(before)
    if not options.check:
        PAGE.write_text(after)
    elif before != after:
        sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True), n=0))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
