"""Ready-made row and element-wise kernels beside QuACK, torch and torch.compile; suite `rows_kernels`, GB/s read and written.

python -m benchmarks.row_kernels                          compiles in other processes first, then measures
python -m benchmarks.row_kernels --seconds 60             ends after that time; with --append the next run does what is left
python -m benchmarks.row_kernels --problems cumsum        those whose names begin so

Each kernel is called as a user calls it, without a number. All variants of a problem run in one process, in random order,
rested; every result is compared with torch's in fp32. The first problem of each kernel comes first.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cases import Case, checker, returning
from benchmarks.cli import add_options, gpu_of, kept, method_of, settings
from benchmarks.results import OURS, Results, print_table
from tmapipe.tuning.cost import rested

BYTES = 128 << 20  # of the largest tensor
LIMIT, SUMS = 1e-2, 1e-1  # relative errors; torch adds up bf16 in bf16
Runs = dict[tuple[str, str], Callable[[], Any]]
Made = tuple[Runs, Any]


def compiled_later(plain: Callable[..., Any]) -> Callable[..., Any]:
    """*plain* as torch compiles it, at its first call."""
    made: list[Callable[..., Any]] = []

    def call(*inputs: Any) -> Any:
        import torch

        if not made:
            torch._dynamo.reset()
            made.append(torch.compile(plain, dynamic=False))
        return made[0](*inputs)

    return call


def _variants(ours: Callable[[], Any], plain: Callable[..., Any], *inputs: Any, compiled: bool = True) -> Made:
    """Ours, torch's as it is and compiled, and what comes out in fp32."""

    runs: Runs = {(OURS, "called"): ours, ("torch", "eager"): functools.partial(plain, *inputs)}
    if compiled:
        runs["torch", "compile"] = functools.partial(compiled_later(plain), *inputs)
    return runs, plain(*(x.float() if x.is_floating_point() else x for x in inputs))


def device_of() -> str:
    """Where tensors of problems lie: on the GPU if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def some(*shape: int, dtype: str = "bfloat16") -> Any:
    """A tensor of random numbers."""
    import torch

    return torch.randn(shape, device=device_of(), dtype=getattr(torch, dtype))


def elementwise(rows: int, columns: int) -> Made:
    """A gated unit with a bias: two matrices and a row are read."""
    import torch

    import tmapipe as tp

    x, gate, bias = some(rows, columns), some(rows, columns), some(columns)
    kernel = tp.schedules.Elementwise(lambda x, gate, bias: x * tp.math.silu(gate) + bias)
    ours = functools.partial(kernel, x, gate, bias, out=torch.empty_like(x))
    return _variants(ours, lambda x, gate, bias: x * torch.nn.functional.silu(gate) + bias, x, gate, bias)


def cumsum(rows: int, columns: int) -> Made:
    """Running sums of rows."""
    import torch

    import tmapipe as tp

    x = some(rows, columns)
    ours = functools.partial(tp.schedules.Cumsum(), x, out=torch.empty_like(x))
    return _variants(ours, functools.partial(torch.cumsum, dim=1), x, compiled=columns <= 4096)


def rotary(shape: tuple[int, ...], pairs: bool, dtype: str = "bfloat16") -> Made:
    """[batch, positions, heads, columns], or with heads before positions where there are fewer of them."""
    import torch

    import tmapipe as tp

    x, first = some(*shape), shape[1] > shape[2]
    angles = 9 * torch.rand(max(shape[1:3]), shape[3] // 2, device=device_of())
    cos, sin = (each.to(getattr(torch, dtype)) for each in (angles.cos(), angles.sin()))
    cos, sin = (each[:, None] if first else each for each in (cos, sin))

    def plain(x: Any, cos: Any, sin: Any) -> Any:
        one, two = (x[..., ::2], x[..., 1::2]) if pairs else x.chunk(2, -1)
        both = one * cos - two * sin, two * cos + one * sin
        found = torch.stack(both, -1).flatten(-2) if pairs else torch.cat(both, -1)
        return found.to(x.dtype)

    ours = functools.partial(tp.schedules.Rotary(pairs), x, cos, sin, out=torch.empty_like(x))
    runs, want = _variants(ours, plain, x, cos, sin)
    try:
        from quack.rotary import apply_rotary
    except ImportError as error:
        print(f"  quack: absent ({error})")
    else:
        seen, tables = x if first else x.transpose(1, 2), [each.flatten(0, -2) for each in (cos, sin)]

        def quack() -> Any:
            found = apply_rotary(seen, *tables, interleaved=pairs)
            return found if first else found.transpose(1, 2)

        runs["quack", "apply_rotary"] = quack
    return runs, want


def transpose(shape: tuple[int, ...], dims: tuple[int, ...], dtype: str = "bfloat16") -> Made:
    """Dimensions in another order."""
    import torch

    import tmapipe as tp

    x = some(*shape, dtype=dtype)
    out = torch.empty([shape[dim] for dim in dims], device=x.device, dtype=x.dtype)
    ours = functools.partial(tp.schedules.Transpose(dims), x, out=out)
    runs, want = _variants(ours, lambda x: x.permute(dims).contiguous(), x)
    other = torch.empty_like(out)
    runs["torch", "copy_"] = returning(lambda: other.copy_(x.permute(dims)), other)
    return runs, want


def products(batch: int, m: int, n: int, k: int, explore: int = 0) -> Made:
    """Batches of small products by what `choose` takes after a look at four candidates. With a number to *explore*: by what
    `choose` takes without a look, by so many likely candidates, and by candidates of several CTAs a multiprocessor."""
    import torch

    import tmapipe as tp

    a, b = some(batch, m, k), some(batch, n, k)
    problem, out = tp.tuning.Problem.of(a, b), torch.empty(batch, m, n, device=a.device, dtype=a.dtype)
    ours = functools.partial(tp.tuning.choose(problem, look=1 if explore else None), a, b, out=out)
    runs, want = _variants(ours, lambda a, b: torch.bmm(a, b.mT), a, b, compiled=False)
    every = [candidate for candidate, _ in tp.tuning.ranked(problem)] if explore else []
    for candidate in dict.fromkeys([*every[:explore], *(each for each in every if each.share > 1)]):
        runs[OURS, str(candidate)] = functools.partial(candidate.build(problem), a, b, out=out)
    return runs, want


def rows(name: str, length: int) -> Made:
    """A kernel of `benchmarks.random_rows`, called as it is."""
    import torch

    from benchmarks.random_rows import KERNELS

    beside, x = KERNELS[name], some(BYTES // 2 // length, length)
    inputs = x, *beside.inputs(x)
    out = {"out": torch.empty_like(x)} if beside.stores else {}
    kernel: Any = beside.ours()

    def ours() -> Any:
        found = kernel(*inputs, **out)
        return found[0] if isinstance(found, tuple) else found

    runs, want = _variants(ours, beside.torch, *inputs, compiled=beside.quack is None)
    if beside.quack is not None:
        runs["quack", "fwd"] = functools.partial(beside.quack, *inputs)
    return runs, want


def _cases() -> list[Case]:
    found: dict[str, list[tuple[str, float, Callable[[], Made]]]] = {}

    def add(kernel: str, what: str, work: float, make: Callable[[], Made]) -> None:
        found.setdefault(kernel, []).append((f"{kernel} {what}", work, make))

    for columns in (8192, 1000, 8191):
        n = BYTES // 2 // columns
        add("elementwise", f"{n} x {columns}", 6.0 * n * columns, functools.partial(elementwise, n, columns))
    for columns in (4096, 1000, 65536, 5001):
        n = BYTES // 2 // columns
        add("cumsum", f"{n} x {columns}", 4.0 * n * columns, functools.partial(cumsum, n, columns))
    for shape, pairs in (
        ((4, 4096, 32, 128), False), ((4, 4096, 32, 128), True), ((4, 32, 4096, 128), False), ((8, 8192, 8, 128), False)
    ):  # fmt: skip
        title = f"{' x '.join(map(str, shape))}{' in pairs' * pairs}"
        add("rotary", title, 4.0 * math.prod(shape), functools.partial(rotary, shape, pairs))
    for shape, dims in (
        ((8192, 8192), (1, 0)), ((64, 3136, 256), (0, 2, 1)), ((8, 2048, 32, 128), (0, 2, 3, 1)), ((8191, 8193), (1, 0))
    ):  # fmt: skip
        title = f"{' x '.join(map(str, shape))} to {dims}"
        add("transpose", title, 4.0 * math.prod(shape), functools.partial(transpose, shape, dims))
    for batch, m, n, k in ((1000, 64, 64, 64), (2000, 128, 128, 128), (4000, 32, 64, 48), (1500, 96, 40, 128)):
        work = 2.0 * batch * (m * k + n * k + m * n)
        add("products", f"{batch} x {m} x {n} x {k}", work, functools.partial(products, batch, m, n, k))
    for name, lengths in (
        ("cross_entropy", (50257, 32000, 128256)), ("layernorm", (50257, 4096)), ("log_softmax", (32768, 3001))
    ):  # fmt: skip
        for length in lengths:
            n = BYTES // 2 // length
            each = 2.0 if name == "cross_entropy" else 4.0
            add(name, f"{n} x {length}", each * n * length, functools.partial(rows, name, length))
    turns = itertools.zip_longest(*found.values())
    return [Case(name, "bf16", work, lambda device, make=make: make(), SUMS if name.startswith("cumsum") else LIMIT)  # type: ignore[misc]
            for each in turns for name, work, make in filter(None, each)]  # fmt: skip


CASES = _cases()


def warm(cases: list[Case]) -> None:
    """Calls each variant once, so that what it compiles lies on disk."""
    for case in cases:
        runs, _ = case.make("cuda")
        for key, run in runs.items():
            try:
                run()
            except Exception as error:  # any: it is tried again, and reported, where it is measured
                print(f"  {case.name} {' '.join(key)}: {type(error).__name__}: {str(error)[:200]}")


def check_of(want: Any) -> Callable[[Callable[[], Any]], float]:
    """What says how far a run's result is from *want*, which may say that itself."""
    return want if callable(want) else checker(want)


def measure(case: Case, clock: Any, results: Results, args: argparse.Namespace) -> None:
    """Adds a row for each variant that is right."""
    runs, want = case.make("cuda")
    runs, check = kept(dict(runs), args), check_of(want)
    errors = {}
    for key, run in list(runs.items()):
        try:
            errors[key] = check(run)
            if not errors[key] < case.limit:
                raise RuntimeError(f"WRONG, relative error {errors[key]:.2e}")
        except Exception as error:
            clock.rest(0.0)  # raises if the device itself is lost
            print(f"  left out: {case.name} {' '.join(key)}: {(str(error).splitlines() or [''])[0][:200]}", flush=True)
            del runs[key]
    del want, check
    for (peer, variant), timing in rested(runs, clock, method_of(args)).items():
        results.add(
            problem=case.name, dtype=case.dtype, peer=peer, variant=variant, us=timing.us,
            gbps=case.work / timing.us / 1e3, spread=timing.spread, rel_err=errors[peer, variant],
        )  # fmt: skip


def report(results: Results) -> None:
    """Prints ours beside the best peer of each problem."""
    body = []
    for name in dict.fromkeys(row["problem"] for row in results.rows):
        ours, peers = (
            [row for row in results.rows if row["problem"] == name and (row["peer"] == OURS) == mine]
            for mine in (True, False)
        )
        best = min(peers, key=lambda row: row["us"], default=None)
        mine = next((row for row in ours if row["variant"] == "called"), None)
        ratio = f"{best['us'] / mine['us']:.3f}" if best and mine else ""
        beside = f"{best['peer']} {best['variant']} {best['gbps']:.0f}" if best else ""
        other = min(ours, key=lambda row: row["us"], default=mine)
        explored = f"{other['gbps']:.0f}: {other['variant']}" if other and other is not mine else ""
        body.append([name, f"{mine['gbps']:.0f}" if mine else "none", beside, ratio, explored])
    print_table(body, ["", "GB/s", "best peer", "ratio", "best explored"], "row and element-wise kernels")


def add_time(parser: argparse.ArgumentParser) -> None:
    """The options of a suite that ends after a while and goes on later."""
    parser.add_argument("--problems", nargs="+", default=[""], help="those whose names begin so (default: all)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to end (default %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=8, help="processes that compile first (default %(default)s; 0: none)"
    )
    parser.add_argument(
        "--warm", type=int, nargs=2, metavar=("I", "OF"), help="only call every OF-th problem once, from I on"
    )
    add_options(parser)


def run_suite(suite: str, cases: list[Case], args: argparse.Namespace, command: list[str]) -> int:
    """Measures the cases that *args* name and that have no result yet. *command*: the module, and its own arguments, that
    other processes call to compile first. The exit status."""
    gpu = gpu_of(command[0].removeprefix("benchmarks."))
    if not gpu:
        return 2
    import torch

    from tmapipe.gpu.launch import CudaClock

    started, results = time.monotonic(), Results(suite, gpu, settings(args))
    if args.append:
        results.resume(args.out)
    known = {(row["problem"], row["dtype"]) for row in results.rows}
    cases = [c for c in cases if c.name.startswith(tuple(args.problems)) and (c.name, c.dtype) not in known]
    if args.warm:
        first, of = args.warm
        warm(cases[first::of])
        return 0
    whole = [sys.executable, "-m", *command, "--problems", *args.problems, *["--append"] * args.append]
    whole += ["--out", args.out] if args.out else []
    others = [subprocess.Popen([*whole, "--warm", str(i), str(args.jobs)]) for i in range(args.jobs)]
    for other in others:
        try:
            other.wait(max(1.0, 0.7 * args.seconds - (time.monotonic() - started)))
        except subprocess.TimeoutExpired:  # what it has compiled is kept; the rest is compiled where it is measured
            other.kill()
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    clock = CudaClock(args.flush)
    for case in cases:
        if time.monotonic() - started > args.seconds:
            print(f"left for the next run, with --append: {case.name} and what follows")
            break
        torch.manual_seed(args.seed)
        measure(case, clock, results, args)
        results.write(args.out)
        print(f"{case.name}: {time.monotonic() - started:.0f} s", flush=True)
    report(results)
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_time(parser)
    args = parser.parse_args(argv)
    return run_suite("rows_kernels", CASES, args, ["benchmarks.row_kernels"])


if __name__ == "__main__":
    sys.exit(main())
