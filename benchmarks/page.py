"""Writes the tables of docs/timeline.md and of the pages in docs/internals from the result files.

    python -m benchmarks.page            # writes them
    python -m benchmarks.page --plot     # also draws docs/img/performance.svg (needs matplotlib)
    python -m benchmarks.page --check    # says which are out of date

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; `TABLES` says what each has. Text outside is left alone.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plot import dots
from benchmarks.results import OURS, best, folder_of, read
from tests.oracle import mutant_table

_INTERNALS = Path(__file__).resolve().parents[1] / "docs" / "internals"
_TUTORIALS = sorted(_INTERNALS.parent.glob("tutorials/[0-9]*.md"))
PAGES = [
    _INTERNALS / "performance.md",
    _INTERNALS / "appendix-checker.md",
    _INTERNALS.parent / "timeline.md",
    *_TUTORIALS,
]
RESULTS = folder_of()
_PLACE = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.S)

Rows = list[dict[str, Any]]


def rows_of(suite: str) -> tuple[Rows, str]:
    """The rows of a result file, and where they come from, in words."""
    found = read(RESULTS / f"{suite}.json")
    return found["rows"], f"{found['gpu'].replace('NVIDIA ', '')}, {found['date'][:10]}, `{suite}.json`"


def table(headers: Sequence[str], body: Iterable[Sequence[Any]], source: str) -> str:
    """A table of Markdown, with its source below."""
    lines = [headers, ["---"] * len(headers), *body]
    text = "\n".join("| " + " | ".join("" if x is None else str(x) for x in line) + " |" for line in lines)
    return f"{text}\n\n({source}.)\n"


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def compared(suite: str, measure: str, keep: Callable[[dict[str, Any]], bool]) -> dict[str, dict[str, dict[str, Any]]]:
    """Of each problem, the best row of each peer that has one, with "speed"; of problems that are measured of ours, too."""
    rows = [
        {**r, "speed": 1 / r["us"] if measure == "us" else r[measure]}
        for r in rows_of(suite)[0]
        if keep(r) and measure in r
    ]
    name = {id(r): " ".join(filter(None, (r["problem"], r.get("accumulate")))) for r in rows}
    peers = dict.fromkeys(r["peer"] for r in rows)
    found = {}
    for problem in dict.fromkeys(name.values()):
        mine = [r for r in rows if name[id(r)] == problem]
        bests = {peer: best(mine, "speed", peer=peer) for peer in peers}
        if bests.get(OURS):
            found[problem] = {peer: row for peer, row in bests.items() if row}
    return found


def ratio_of(bests: dict[str, dict[str, Any]]) -> float | None:
    """Our speed over the fastest peer's; None without a peer."""
    theirs = [row["speed"] for peer, row in bests.items() if peer != OURS]
    return bests[OURS]["speed"] / max(theirs) if theirs else None


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
    found, source = compared(suite, measure, keep), rows_of(suite)[1]
    peers = [peer for peer in dict.fromkeys(r["peer"] for r in rows_of(suite)[0] if keep(r)) if peer != OURS]
    ratios = [ratio for ratio in map(ratio_of, found.values()) if ratio]
    body = []
    for problem, bests in found.items():
        numbers = [f"{bests[p][measure]:.{digits}f}" if p in bests else None for p in (*peers, OURS)]
        ratio = ratio_of(bests)
        body.append([problem, *numbers, f"{ratio:.2f}" if ratio else None])
    if len(ratios) > 1:
        body.append([f"geometric mean of {len(ratios)}", *[None] * (1 + len(peers)), f"{mean(ratios):.3f}"])
    return table([unit, *peers, OURS, "of the best peer"], body, source)


def drawn_ratios(suite: str, belongs: Callable[[dict[str, Any]], bool]) -> dict[tuple[str, str | None], float]:
    """By problem and type: the speed of what is chosen without a number, over the fastest peer's."""
    mine = [r for r in rows_of(suite)[0] if belongs(r)]
    ratios = {}
    for problem in dict.fromkeys((r["problem"], r.get("dtype")) for r in mine):
        these = [r for r in mine if (r["problem"], r.get("dtype")) == problem]
        ours = [r["us"] for r in these if r["peer"] == OURS and (r.get("looked") or r.get("chosen"))]
        looked = [r["us"] for r in these if r["peer"] == OURS and r.get("looked")]
        theirs = [r["us"] for r in these if r["peer"] != OURS]
        if ours and theirs:
            ratios[problem] = min(theirs) / (looked or ours)[0]
    return ratios


def drawn(suite: str, groups: dict[str, Callable[[dict[str, Any]], bool]]) -> str:
    """Problems drawn at random: what is chosen without a number, over the fastest peer. A line a group.

    Args:
        groups: What each line is of, and whether a row belongs to it.
    """
    source, body = rows_of(suite)[1], []
    for name, belongs in groups.items():
        ratios = drawn_ratios(suite, belongs)
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


def byproducts() -> str:
    """Sums beside GEMMs, and products of a matrix with its transpose: speeds by variant."""
    rows, source = rows_of("byproducts")
    found: dict[str, list[float]] = {}
    for r in rows:
        if "fraction_of_plain" in r:
            found.setdefault(r["variant"], []).append(r["fraction_of_plain"])
    body = [[name, len(each), f"{mean(each):.3f}", f"{min(each):.3f}"] for name, each in found.items()]
    return table(["of the plain GEMM; of torch.mm for x x^T", "problems", "mean", "least"], body, source)


def _rested(row: dict[str, Any]) -> bool:
    return row.get("mode", "rested") == "rested"


ROWS = ("softmax", "rmsnorm")
LENGTHS = ("lengths that 8 divides", "other lengths")


def _kinds(suite: str) -> dict[str, Callable[[dict[str, Any]], bool]]:
    """Groups of the rows of a suite: by the first word of the problem."""
    kinds = dict.fromkeys(r["problem"].split()[0] for r in rows_of(suite)[0])
    return {kind: lambda r, kind=kind: r["problem"].split()[0] == kind for kind in kinds}  # type: ignore[misc]


def _lengths(kind: str, what: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a row is of that kernel and of such a length."""

    def belongs(row: dict[str, Any]) -> bool:
        name, length = row["problem"].split()[:2]
        return bool(name == kind and (int(length) % 8 == 0) == (what == LENGTHS[0]))

    return belongs


def _last_attention(*parts: str | None) -> Callable[[dict[str, Any]], bool]:
    """Whether a row is of these parts of the suite, and of the last run of its problem that has a peer, or a copy."""
    rows = [r for r in rows_of("attention")[0] if r.get("part") in parts]
    last: dict[str, int] = {}
    for r in rows:
        if r["peer"] != OURS or r["variant"] == "Copy":
            last[r["problem"]] = max(r["run"], last.get(r["problem"], 0))
    return lambda row: bool(row.get("part") in parts and row["run"] == last.get(row["problem"]))


def _attention(*parts: str | None) -> str:
    """Of each problem, the last run that has a peer."""
    source, belongs = rows_of("attention")[1], _last_attention(*parts)
    if not any(map(belongs, rows_of("attention")[0])):
        return NOT_MEASURED.format(parts[0])
    text = beside_peers("attention", "tflops", "TFLOP/s", belongs)
    return text.replace(source, f"{source}; each problem's last run beside a peer")


def _attention_forms() -> str:
    """Forms of one problem, each by its last run, and their rates over that of the plain one in the same run."""
    rows, source = rows_of("attention")
    rows = [r for r in rows if r.get("part") == "forms" and r["peer"] == OURS]
    if not rows:
        return NOT_MEASURED.format("forms")
    rows = list({r["problem"]: r for r in sorted(rows, key=lambda r: r["run"])}.values())
    plain = {
        r["run"]: r["tflops"] for r in rows_of("attention")[0] if " plain" in r["problem"] and r["variant"] == "of"
    }
    body = [[r["problem"], f"{r['tflops']:.0f}", f"{r['tflops'] / plain[r['run']]:.2f}"] for r in rows]
    return table(["form", "TFLOP/s", "of the plain one"], body, source)


def _attention_decode() -> str:
    """Keys and values that are read, over what a copy reads and writes."""
    (rows, source), belongs = rows_of("attention"), _last_attention("decode")
    rows = [r for r in rows if belongs(r)]
    if not rows:
        return NOT_MEASURED.format("decode")
    body = []
    for problem in dict.fromkeys(r["problem"] for r in rows):
        of = {(r["peer"], r["variant"]): r["gbps"] for r in rows if r["problem"] == problem}
        ours, copy, torch = (of.get(key, math.nan) for key in ((OURS, "of"), (OURS, "Copy"), ("torch", "default")))
        body.append(
            [problem, "" if math.isnan(torch) else f"{torch:.0f}", f"{copy:.0f}", f"{ours:.0f}", f"{ours / copy:.2f}"]
        )
    return table(["GB/s", "torch", "`Copy`", OURS, "of `Copy`"], body, source)


GRADIENTS = ", forward", ", step"  # at the end of names of operators' calls that take gradients


def host_times() -> str:
    """Microseconds until a call returns; the bare launch is the kernel's host code with packed arguments."""
    rows, source = rows_of("host_time")
    calls = [r for r in rows if not r["variant"].endswith(GRADIENTS)]
    body = [[r["peer"], f"`{r['variant']}`", f"{r['us']:.1f}", f"{r['ratio']:.2f}"] for r in calls]
    return table(["of", "call", "us", "of torch.mm"], body, source)


def host_steps() -> str:
    """Microseconds until operators called for gradients return, and until both passes do: torch's and ours."""
    rows, source = rows_of("host_time")
    us = {(r["peer"], r["variant"]): f"{r['us']:.0f}" for r in rows if r["variant"].endswith(GRADIENTS)}
    names = dict.fromkeys(variant.partition(",")[0] for _, variant in us)
    body = [[f"`{n}`", *(us[peer, n + kind] for kind in GRADIENTS for peer in ("torch", OURS))] for n in names]
    return table(["us", "forward, torch", OURS, "forward and backward, torch", OURS], body, source)


def layers() -> str:
    """Microseconds of a layer's result and gradients, by each way to run it that was timed."""
    rows, source = rows_of("mlp")
    ways = list(dict.fromkeys((r["peer"], r["variant"]) for r in rows))
    body = []
    for problem in dict.fromkeys(r["problem"] for r in rows):
        of = {(r["peer"], r["variant"]): r["us"] for r in rows if r["problem"] == problem}
        body.append([problem, *(f"{of[way]:.0f}" if way in of else "" for way in ways)])
    return table(["tokens, us", *(" ".join(way) for way in ways)], body, source)


def first_calls() -> str:
    """Seconds of the first calls of processes, and how many kernels were compiled."""
    rows, source = rows_of("first_calls")
    body = [[r["problem"], r["variant"], f"{r['first_s']:.2f}", f"{r['second_s']:.3f}", r["kernels"]] for r in rows]
    return table(["of", "store of kernels", "first call, s", "second call, s", "compiled"], body, source)


def samples() -> str:
    """PyTorch's own samples of its operators, of all types."""
    rows, source = rows_of("operators")
    names = ("samples", "right", "by_kernel", "fell_back")
    kinds = {
        "convolutions": "conv",
        "norms": "norm",
        "softmax, log_softmax": "softmax",
        "cross_entropy": "cross",
        "": "",
    }
    of = {kind: [0] * len(names) for kind in kinds}
    for r in rows:
        kind = next(kind for kind, part in kinds.items() if part in r["problem"])
        of[kind] = [count + r[name] for count, name in zip(of[kind], names, strict=True)]
    of["products"] = of.pop("")
    of["all"] = [sum(each) for each in zip(*of.values(), strict=True)]
    return table(["of", *(name.replace("_", " ") for name in names)], [[kind, *of[kind]] for kind in of], source)


def tutorial(number: int) -> str:
    """What the programs of a tutorial's page do beside torch, and beside themselves with one thing changed."""
    rows, source = rows_of("tutorials")
    rows = [r for r in rows if r["problem"].startswith(f"{number}. ")]
    names = {r["problem"]: r["problem"].partition(". ")[2] for r in rows}
    theirs = {r["problem"]: r["us"] for r in rows if r["peer"] != OURS}
    body = []
    for r in rows:
        name = f"{names[r['problem']]}, {_variant(r)}" if len(names) > 1 else _variant(r)
        ratio = f"{theirs[r['problem']] / r['us']:.2f}" if r["problem"] in theirs else None
        body.append([name, f"{r['us']:.1f}", _speed(r), *([ratio] if theirs else [])])
    return table(["program", "us", "speed", *(["of torch"] if theirs else [])], body, source)


def _speed(row: dict[str, Any]) -> str:
    return f"{row['gbps']:.0f} GB/s" if "gbps" in row else f"{row['tflops']:.0f} TFLOP/s"


def _variant(row: dict[str, Any]) -> str:
    return str(row["variant"] if row["peer"] == OURS else f"torch's {row['variant']}")


BESIDE_PEERS = (None, "rows", "wide")  # parts of the suite; rows of earlier runs name none
NOT_MEASURED = "Not measured yet: `python -m benchmarks.attention --only {}`.\n"


def checks() -> str:
    """How long checks take."""
    rows, _ = rows_of("checker")
    body = [[r["problem"], r["variant"], r["verdict"], r["events"], f"{r['us'] / 1e6:.3f}"] for r in rows]
    return table(["check", "of", "verdict", "events", "seconds"], body, "`checker.json`")


def mutants(by: int) -> str:
    """Mutants and verdicts. by: 0, a line a schedule; 1, a line a change."""
    counts: dict[str, list[int]] = {}
    for row in mutant_table.read(RESULTS / "mutants.json")["rows"]:
        schedule, rule, *numbers = row.values()
        for line in ((schedule, rule)[by], "all"):
            found = counts.setdefault(line, [0] * 5)
            counts[line] = [a + b for a, b in zip(found, numbers, strict=True)]
    counts["all"] = counts.pop("all")
    heads = [
        "schedule" if by == 0 else "change",
        "mutants",
        "can go wrong",
        "caught",
        "false alarms",
        "the oracle gave up",
    ]
    return table(heads, [[name, *numbers] for name, numbers in counts.items()], "`mutants.json`")


def random_schedules() -> str:
    """What the check said of random schedules."""
    found = json.loads((RESULTS / "deciding.json").read_text())
    lines = {**found, **{f"verdict, {name}": count for name, count in found["verdicts"].items()}}
    lines |= {
        f"CPU seconds of a check, {name}": value for name, value in found.get("CPU seconds of a check", {}).items()
    }
    lines["verdicts that a single run contradicts"] = len(found["disagreements"])
    body = [[name, value] for name, value in lines.items() if isinstance(value, int | float)]
    return table(["what", "count"], body, "`deciding.json`")


def _seen(row: dict[str, Any]) -> str | None:
    return "yes" if row["fitted"] else "blind" if row.get("blind") else None


def predicted() -> str:
    """Predicted and measured cycle times of steady states."""
    rows, source = rows_of("predicted")
    body = []
    for r in rows:
        forms = {"measured": "{:.0f}", "predicted": "{:.0f}", "off": "{:+.1%}", "slower": "{:+.1%}"}
        numbers = [form.format(r[name]) if name in r else None for name, form in forms.items()]
        body.append([r["problem"], r["variant"], _seen(r), *numbers])
    for seen in ("yes", None, "blind"):
        off = [abs(r["off"]) for r in rows if _seen(r) == seen and "off" in r]
        if not off:
            continue
        within = ", ".join(f"{sum(x <= most for x in off)} within {most:.0%}" for most in (0.1, 0.15))
        body.append(
            [
                f"{len(off)} {'fitted' if seen == 'yes' else seen or 'others'}",
                within,
                None,
                None,
                None,
                f"{max(off):.1%} at most",
                None,
            ]
        )
    heads = ["schedule", "problem", "fitted", "measured", "predicted", "off", "slower with stamps"]
    return table(heads, body, source)


#: Name of a table, and what writes it.
def few_bits() -> str:
    """Weights of few bits: each problem, the form that is chosen and the fastest one."""
    found, source = rows_of("dequant")
    body = []
    for name in dict.fromkeys(row["problem"] for row in found):
        of = {r["peer"] == OURS: r["us"] for r in found if r["problem"] == name and r["peer"] != OURS}
        mine = sorted((r["us"], r["variant"]) for r in found if r["problem"] == name and r["peer"] == OURS)
        chosen = next((us for us, form in mine if form.endswith(" chosen")), None)
        best = mine[0][0], mine[0][1].removesuffix(" chosen")
        ratios = [f"{of[False] / us:.3f}" if us else "" for us in (chosen, best[0])]
        body.append([name, f"{of[False]:.1f}", *ratios, best[1]])
    return table(["m x n x k, weights", "cuBLAS bf16, us", "chosen", "best", "its form"], body, source)


#: Lines of a table of random views.
VIEWS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "bf16, both operands along k": lambda r: bool(r["kind"] == "along k"),
    "bf16, other majors": lambda r: bool(r["kind"] == "other majors"),
    "fp8, both along k": lambda r: bool(r["kind"] == "fp8"),
}
TABLES: dict[str, Callable[[], str]] = {
    "dequant": few_bits,
    "gemm": lambda: beside_peers("gemm", "tflops", "M x N x K, TFLOP/s", _rested),
    "gemm-fp8": lambda: beside_peers("gemm_fp8", "tflops", "M x N x K, TFLOP/s", _rested),
    "views": lambda: drawn("random_views", VIEWS),
    "peers": lambda: drawn("random_peers", {"bf16, both operands along k": lambda r: True}),
    "h100": lambda: drawn("random_views_h100", VIEWS),
    "attention": lambda: _attention(*BESIDE_PEERS),
    "attention-drawn": lambda: _attention("drawn"),
    "attention-forms": _attention_forms,
    "attention-decode": _attention_decode,
    "epilogue": lambda: beside_peers("epilogue", "us", "microseconds", _rested, 1),
    "programs": lambda: beside_peers("programs", "us", "microseconds", _rested),
    "grouped": lambda: beside_peers("grouped", "tflops", "M x N x K / groups, TFLOP/s", _rested),
    "byproducts": byproducts,
    "rows": lambda: drawn(
        "rows_random", {f"{kind}, {what}": _lengths(kind, what) for kind in ROWS for what in LENGTHS}
    ),
    "row-kernels": lambda: drawn("kernels_random", _kinds("kernels_random")),
    "products": lambda: beside_peers("products_random", "gbps", "GB/s"),
    "copy": lambda: beside_peers("copy", "gbps", "GB/s", _rested),
    "copies": lambda: beside_peers("copies_random", "gbps", "GB/s"),
    "transpose": lambda: beside_peers("transpose", "gbps", "GB/s", _rested),
    "conv2d": lambda: beside_peers("conv2d", "tflops", "TFLOP/s", _rested),
    "gather": lambda: beside_peers("gather", "gbps", "elements of a row, GB/s", _rested),
    "ceiling": parts_removed,
    "predicted": predicted,
    "host": host_times,
    "host-steps": host_steps,
    "layers": layers,
    "first-calls": first_calls,
    "steps": lambda: beside_peers("steps", "us", "microseconds", _rested),
    "operators": samples,
    "checker": checks,
    "mutants-schedules": lambda: mutants(0),
    "mutants-changes": lambda: mutants(1),
    "deciding": random_schedules,
    **{f"tutorial-{number}": functools.partial(tutorial, number) for number in range(1, len(_TUTORIALS) + 1)},
}


#: The lines of the plot: a name, and its problems' speeds over the fastest peer's.
RATIOS: dict[str, Callable[[], Iterable[float | None]]] = {
    "GEMM, bf16, twelve shapes": lambda: _beside("gemm", "tflops"),
    "GEMM, fp8": lambda: _beside("gemm_fp8", "tflops"),
    "GEMM, random views": lambda: drawn_ratios("random_views", lambda r: True).values(),
    "GEMM, random, on an H100": lambda: drawn_ratios("random_views_h100", lambda r: True).values(),
    "GEMM with epilogues": lambda: _beside("epilogue", "us"),
    "grouped GEMM": lambda: _beside("grouped", "tflops"),
    "attention": lambda: map(ratio_of, compared("attention", "tflops", _last_attention(*BESIDE_PEERS)).values()),
    "row kernels, random lengths": lambda: drawn_ratios("rows_random", lambda r: True).values(),
    "other row kernels": lambda: drawn_ratios("kernels_random", lambda r: True).values(),
    "small batched products": lambda: _beside("products_random", "gbps"),
    "copies": lambda: _beside("copy", "gbps"),
    "copies of views": lambda: _beside("copies_random", "gbps"),
    "transposes": lambda: _beside("transpose", "gbps"),
    "rows by index": lambda: _beside("gather", "gbps"),
    "convolutions": lambda: _beside("conv2d", "tflops"),
    "programs of examples/": lambda: _beside("programs", "us"),
}


def _beside(suite: str, measure: str) -> Iterable[float | None]:
    return map(ratio_of, compared(suite, measure, _rested).values())


def groups() -> dict[str, list[float]]:
    """The ratios of each line of the plot."""
    return {name: [ratio for ratio in made() if ratio] for name, made in RATIOS.items()}


def filled(text: str) -> str:
    """The page's *text* with the tables as the result files say. Raises `KeyError` for a name that no table has."""
    return _PLACE.sub(lambda place: place[1] + TABLES[place[2]]() + place[3], text)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is out of date")
    parser.add_argument("--plot", action="store_true", help="also draw the ratios (needs matplotlib)")
    options = parser.parse_args(argv)
    if options.plot:
        dots(groups(), _INTERNALS.parent / "img" / "performance.svg")
    late = False
    for page in PAGES:
        before = page.read_text()
        after = filled(before)
        if not options.check:
            page.write_text(after)
        elif before != after:
            sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True), n=0))
            late = True
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
