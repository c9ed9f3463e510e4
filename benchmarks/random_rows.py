"""Softmax and rmsnorm of rows of random lengths, to which nothing was fitted, beside QuACK's kernels; suite `rows_random`.

python -m benchmarks.random_rows --seed 0x1234abcd                   what `tmapipe.schedules` takes, beside the peers
python -m benchmarks.random_rows --explore 10 --alone                ten forms of each length, to see what the model misses
python -m benchmarks.random_rows --report                            prints the stored results; needs no GPU

256 MiB are read, as many written. Where QuACK refuses a length, torch and torch.compile are the peers. Kernels are compiled in
other processes before measuring; all variants of a length run in one process, in random order, rested; each result is checked
against torch's in fp32. With ``--seconds`` it ends after that time; with ``--append`` the next run does what is left.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases import checker
from benchmarks.cli import add_options, gpu_of, kept, method_of, settings
from benchmarks.results import OURS, Results, print_table, read
from tmapipe.schedules.rmsnorm import RmsNorm, RmsNormRows
from tmapipe.schedules.rowform import RowForm, row_forms
from tmapipe.schedules.rows import Rows
from tmapipe.schedules.softmax import Softmax, SoftmaxRows
from tmapipe.tma_rules import ALIGNMENT
from tmapipe.tuning.compiling import compile_each, ready
from tmapipe.tuning.timing import rested

BYTES = 256 << 20
LEAST, MOST = 64, 262144
SIZES = {"bf16": 2, "fp32": 4}
KERNELS = "softmax", "rmsnorm"
LIMIT = 1e-2


class Case(NamedTuple):
    kernel: str
    length: int
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.length}"

    @property
    def aligned(self) -> int:
        """Bytes of which all rows are whole multiples, up to 16."""
        return math.gcd(ALIGNMENT, self.length * SIZES[self.dtype])


def draw(seed: int, count: int = 40) -> list[Case]:
    """Lengths log-uniform from 64 to 262,144, every second one a multiple of 8 and the others not, bf16 and fp32 in turn by
    pairs; both kernels of each."""
    rng, found = random.Random(seed), []
    for i in range(count):
        length = round(math.exp(rng.uniform(math.log(LEAST), math.log(MOST))))
        length = max(LEAST, length // 8 * 8) if i % 2 == 0 else length + (length % 8 == 0) * rng.randint(1, 7)
        found.append((min(length, MOST - (i % 2)), ("bf16", "fp32")[i // 2 % 2]))
    return [Case(kernel, *each) for each in found for kernel in KERNELS]


# ---- ours ---------------------------------------------------------------------------------------------------------------


def forms_of(case: Case, count: int) -> list[RowForm]:
    """What is taken; with 2 also the best that takes one tile a CTA, if that takes several, or the other way round; with more,
    others, better ones first."""
    size, norm = SIZES[case.dtype], case.kernel == "rmsnorm"
    kind = RmsNorm if norm else Softmax
    every = row_forms(case.length, size, case.aligned, vectors=size if norm else 0, hold=kind.hold)
    found = every[:1]
    rng = random.Random(case.name)
    if count == 2:
        return [*found, *(form for form in every if (form.each > 1) != (found[0].each > 1))][:2]
    others = every[1:]
    weights = [0.93**i for i in range(len(others))]
    while len(found) < count and others:
        (index,) = rng.choices(range(len(others)), weights)
        found.append(others.pop(index))
        weights.pop(index)
    return found


def schedule_of(case: Case, form: RowForm) -> Rows:
    if case.kernel == "softmax":
        return SoftmaxRows(form, case.aligned)
    return RmsNormRows(form, stored=case.aligned)


def job_of(case: Case, form: RowForm) -> tuple[Rows, dict[str, str], dict[str, int]]:
    """As `tmapipe.tuning.compiling.Job`."""
    ranks = {"x": 1 if form.packed else 2, "y": 2 if form.apart == 1 else 3}
    ranks |= {"weight": 1} if case.kernel == "rmsnorm" else {}
    return schedule_of(case, form), dict.fromkeys(ranks, case.dtype), ranks


def text_of(form: RowForm) -> str:
    narrow = form.width is not None and form.width != form.unit
    packed = ", packed" * form.packed
    held = ", held" * form.held + f", {form.each} each" * (form.each > 1) + f", vectors of {form.width}" * narrow
    return f"{form.rows} x {form.columns} by {form.ctas} CTAs of {form.warps} warps, {form.share}{packed}{held}"


# ---- measuring ----------------------------------------------------------------------------------------------------------


def runs_of(case: Case, ours: dict[str, Rows], peers: bool) -> tuple[dict[tuple[str, str], Callable[[], Any]], Any]:
    """The variants, and what they return."""
    import torch

    height, kind = (
        BYTES // SIZES[case.dtype] // case.length,
        {"bf16": torch.bfloat16, "fp32": torch.float32}[case.dtype],
    )
    x = torch.randn(height, case.length, device="cuda", dtype=kind)
    weight = torch.randn(case.length, device="cuda", dtype=kind)
    out = torch.full_like(x, float("nan"))
    others = {"weight": weight} if case.kernel == "rmsnorm" else {}

    def run(rows: Rows) -> Any:
        rows.run({"x": x, "y": out}, others)
        return out

    def softmax(x: Any, weight: Any) -> Any:
        return torch.softmax(x, 1)

    def rms_norm(x: Any, weight: Any) -> Any:
        return torch.nn.functional.rms_norm(x, (case.length,), weight, 1e-6)

    reference = softmax if case.kernel == "softmax" else rms_norm
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    first = True
    for title, rows in ours.items():
        if first:  # as users call it
            kernel = Softmax() if case.kernel == "softmax" else RmsNorm()
            kernel.fit = lambda *_, rows=rows: rows  # compiled elsewhere
            call = functools.partial(kernel, x, *others.values(), out=out)
        runs[OURS, title] = call if first else functools.partial(run, rows)
        first = False
    runs |= quack(case, x, weight) if peers else {}
    if peers and not any(peer == "quack" for peer, _ in runs):
        torch._dynamo.reset()
        compiled = torch.compile(reference, dynamic=False)
        runs["torch", "eager"] = functools.partial(reference, x, weight)
        runs["torch", "compile"] = functools.partial(compiled, x, weight)
    return runs, reference(x, weight)


def quack(case: Case, x: Any, weight: Any) -> dict[tuple[str, str], Callable[[], Any]]:
    """QuACK's kernel, where it takes the length."""
    try:
        from quack.rmsnorm import rmsnorm_fwd
        from quack.softmax import softmax_fwd

        if case.kernel == "softmax":
            softmax_fwd(x[:8])
            return {("quack", "softmax_fwd"): functools.partial(softmax_fwd, x)}
        rmsnorm_fwd(x[:8], weight)
        return {("quack", "rmsnorm_fwd"): lambda: rmsnorm_fwd(x, weight)[0]}
    except Exception as error:  # any: an assertion, or the compiler's
        print(f"  quack: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}")
        return {}


def measure(case: Case, ours: dict[str, Rows], clock: Any, results: Results, args: argparse.Namespace) -> None:
    """Adds a row for each variant that is right."""
    runs, want = runs_of(case, ours, not args.alone)
    runs, check = kept(runs, args), checker(want)
    errors = {}
    for key, run in list(runs.items()):
        try:
            errors[key] = check(run)
            if not errors[key] < LIMIT:
                raise RuntimeError(f"WRONG, relative error {errors[key]:.2e}")
        except Exception as error:
            clock.rest(0.0)  # raises if the device itself is lost
            print(f"  left out: {' '.join(key)}: {(str(error).splitlines() or [''])[0][:160]}")
            del runs[key]
    del want, check
    for index, ((peer, variant), timing) in enumerate(rested(runs, clock, method_of(args)).items()):
        results.add(
            problem=case.name, dtype=case.dtype, peer=peer, variant=variant, us=timing.us,
            gbps=2 * BYTES / timing.us / 1e3, spread=timing.spread, rel_err=errors[peer, variant],
            chosen=True if index == 0 and peer == OURS else None,
        )  # fmt: skip


# ---- reports ------------------------------------------------------------------------------------------------------------


def report(rows: Iterable[dict[str, Any]]) -> None:
    """Prints what was chosen beside the best measured form and the best peer, and geometric means."""
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault((row["problem"], row["dtype"]), []).append(row)
    body, ratios = [], dict[str, list[float]]()
    for (name, dtype), mine in cases.items():
        ours = [row for row in mine if row["peer"] == OURS]
        chosen = next((row for row in ours if row.get("chosen")), None)
        peer = min((row for row in mine if row["peer"] != OURS), key=lambda row: row["us"], default=None)
        best = min(ours, key=lambda row: row["us"], default=None)
        if chosen is None or best is None:
            body.append([name, dtype, "no result of ours", "", "", "", "", ""])
            continue
        ratio = peer["us"] / chosen["us"] if peer else float("nan")
        if peer:
            odd = "whole" if int(name.split()[1]) % 8 == 0 else "odd"
            for view in (name.split()[0], dtype, odd, peer["peer"], "all"):
                ratios.setdefault(view, []).append(ratio)
        beside = f"{peer['peer']} {peer['gbps']:.0f}" if peer else ""
        body.append([name, dtype, f"{chosen['gbps']:.0f}", beside, f"{ratio:.3f}", chosen["variant"], f"{best['gbps']:.0f}",
                     "" if best is chosen else best["variant"]])  # fmt: skip
    print_table(body, ["", "", "GB/s", "best peer", "ratio", "form", "best form", ""], "rows of random lengths")
    means = [[view, len(each), f"{math.exp(statistics.fmean(map(math.log, each))):.3f}", f"{min(each):.3f}",
              sum(value < 0.93 for value in each)] for view, each in ratios.items()]  # fmt: skip
    print_table(means, ["of the best peer", "cases", "mean", "least", "< 0.93"])


# ---- the command line ---------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="lengths (default %(default)s)")
    parser.add_argument("--draw", type=lambda text: int(text, 0), default=0, help="seed of the lengths")
    parser.add_argument("--lengths", type=int, nargs="+", help="these instead")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    parser.add_argument("--dtypes", nargs="+", choices=SIZES, default=tuple(SIZES))
    parser.add_argument("--explore", type=int, default=1, metavar="N", help="forms of ours (default: what is taken)")
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to end (default %(default)s)")
    parser.add_argument("--jobs", type=int, help="compiling processes")
    parser.add_argument("--report", action="store_true", help="only print the stored results")
    add_options(parser)
    args = parser.parse_args(argv)
    if args.report:
        report(read((Path(args.out) if args.out else Path(__file__).parent / "results") / "rows_random.json")["rows"])
        return 0
    gpu = gpu_of("random_rows")
    if not gpu:
        return 2
    import torch

    from tmapipe.gpu.clock import CudaClock

    started = time.monotonic()
    cases = draw(args.draw, args.count)
    if args.lengths:
        cases = [Case(kernel, n, dtype) for n in args.lengths for dtype in args.dtypes for kernel in KERNELS]
    cases = [case for case in cases if case.kernel in args.kernels and case.dtype in args.dtypes]
    results = Results("rows_random", gpu, {**settings(args), "draw": args.draw})
    if args.append:
        results.resume(args.out)
    known = {(row["problem"], row["dtype"]) for row in results.rows}
    cases = [case for case in cases if (case.name, case.dtype) not in known]
    wanted = [(case, form) for case in cases for form in forms_of(case, args.explore)]
    jobs = [functools.partial(job_of, case, form) for case, form in wanted]
    with tempfile.TemporaryDirectory(prefix="tmapipe-rows-") as name:
        errors = compile_each(jobs, Path(name), args.jobs)
        print(f"{len(jobs)} kernels compiled in {time.monotonic() - started:.0f} s", flush=True)
        clock = CudaClock(args.flush)
        for case in cases:
            if time.monotonic() - started > args.seconds:
                break
            torch.manual_seed(args.seed)
            ours = {}
            for index, (of, form) in enumerate(wanted):
                if of == case and errors[index]:
                    print(f"  {case.name} {text_of(form)}: {errors[index][:200]}")
                elif of == case:
                    ours[text_of(form)] = ready(jobs[index], Path(name), index)
            measure(case, ours, clock, results, args)
            results.write(args.out)
            print(f"{case.name} {case.dtype}: {time.monotonic() - started:.0f} s", flush=True)
    report(results.rows)
    print(f"written: {results.write(args.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
