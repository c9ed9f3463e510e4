"""`tp.schedules.Attention` beside FlashAttention's CuTe kernel and cuDNN; suite `attention`.

python -m benchmarks.attention --append                    everything below, going on where the last run stopped
python -m benchmarks.attention --only rows wide            some parts; --seconds ends the run after that time
python -m benchmarks.attention --only decode               one query, 8 heads a group, 1 GiB of keys and values, beside `Copy`
python -m benchmarks.attention --merge FILE                 adds the rows of such a run to the committed file
python -m benchmarks.attention --dry                       lists the problems and plans their kernels; needs no GPU
python -m benchmarks.attention --sass                      counts the instructions of a block of keys; needs no GPU

rows     16,384 tokens of 2,048 elements, heads of 64 and 128, causal or not, 1,024 to 16,384 tokens a sequence
wide     the same, heads of 96 and 256, 4,096 and 16,384 tokens
drawn    24 problems by a seed, by default the first eight digits of the commit, of any lengths, with LSE
forms    8,192 tokens, causal: plain, windows, a mask by TMA, with a bound too, softcap, sinks; of the plain one's rate
decode   keys and values of 1 GiB

All kernels are compiled first, those of FlashAttention too, in as many processes as there are cores, into caches on disk.
Every result is compared with float64 on sampled rows. Rows are written as they are measured, to
``benchmarks/results/attention.json``.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import attrs

import tmapipe as tp
from benchmarks.cli import add_options, finish, gpu_of, kept, method_of, settings
from benchmarks.results import OURS, Results, commit, folder_of, print_table, read, text_of
from tmapipe.schedules import Attention, Copy, Score
from tmapipe.tuning.cost import rested

TOKENS, WIDTH, SAMPLED, WRONG = 16384, 2048, 48, 1e-2
RESULTS = folder_of() / "attention.json"
PARTS = ("rows", "wide", "drawn", "forms", "decode")
LENGTHS = (1024, 2048, 4096, 8192, 16384)
DRAWN, LEAST_FLOP, MOST_FLOP, MOST_BYTES = 24, 1e9, 4e12, 6e9
CAP = 30.0


def capped(x: Any, i: Any, j: Any) -> Any:
    """A soft limit of scores, as a schedule takes it."""
    return CAP * tp.math.tanh(x * (1 / CAP))  # a division takes as long as ten multiplications


#: What the schedule is of -> its options, and those of the same in float64.
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window 512": {"window": 512},
    "window 4096": {"window": 4096},
    "mask": {"score": Score(mask="h m s")},
    "bounded mask": {"score": Score(mask="h m s", bound=CAP)},
    "softcap": {"score": Score(capped, bound=CAP)},
    "sinks": {"score": Score(sinks=True)},
}


@attrs.frozen
class Case:
    """A problem. causal: "start", "end" or None. options: others of `Attention`, by their names in `FORMS`."""

    part: str
    batch: int
    heads: int
    groups: int
    m: int
    s: int
    d: int
    causal: str | None = None
    form: str = "plain"

    @property
    def name(self) -> str:
        heads = f"{self.heads}/{self.groups}" if self.groups < self.heads else str(self.heads)
        lengths = str(self.m) if self.m == self.s else f"{self.m}:{self.s}"
        more = [self.form] * (self.part == "forms") + ["causal"] * (self.causal is not None)
        return " ".join([f"{self.batch}x{heads}x{lengths}x{self.d}", *more])

    @property
    def options(self) -> dict[str, Any]:
        return {"causal": self.causal, "lse": self.part == "drawn", **FORMS[self.form]}

    @property
    def flop(self) -> float:
        """Of the products of queries with keys that they see, and of the weights with values."""
        return 4.0 * self.batch * self.heads * self.d * self.seen

    @property
    def seen(self) -> float:
        """Keys that the queries of a head see, all together."""
        window = self.options.get("window")
        if self.causal is None:
            return self.m * self.s
        first = 1 + (self.s - self.m if self.causal == "end" else 0)  # keys that query 0 sees, or fewer than none
        most = self.s if window is None else min(window, self.s)
        if self.m == self.s and window is None:
            return self.m * self.s / 2  # as all kernels are compared
        return float(sum(min(max(first + i, 0), most) for i in range(self.m)))

    @property
    def bytes(self) -> int:
        return 2 * self.batch * self.d * 2 * (self.heads * self.m + self.groups * self.s)

    def schedule(self) -> Attention:
        """What `Attention.of` chooses, which is checked on a CPU."""
        import torch

        q, k = (torch.empty(self.batch, h, n, self.d, device="meta") for h, n in zip(*self._extents(), strict=True))
        made = Attention.of(q, k, **{name: value for name, value in self.options.items() if value})
        made.checked = False
        return made

    def _extents(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.heads, self.groups), (self.m, self.s)

    def tensors(self, device: str = "cuda") -> dict[str, Any]:
        """q, k, v and what the form has more, random normal."""
        import torch

        shapes = zip(*self._extents(), strict=True)
        q, k = (torch.randn(self.batch, h, n, self.d, device=device).bfloat16() for h, n in shapes)
        found = {"q": q, "k": k, "v": torch.randn_like(k)}
        if "mask" in self.form:
            found["mask"] = torch.randn(self.heads, self.m, self.s, device=device).bfloat16()
        if self.form == "sinks":
            found["sinks"] = torch.randn(self.heads, device=device)
        return found


def cases(seed: str) -> Iterator[Case]:
    """All problems. seed: of those that are drawn."""
    for length in LENGTHS:
        for d in (128, 64):
            for causal in (None, "start"):
                yield Case("rows", TOKENS // length, WIDTH // d, WIDTH // d, length, length, d, causal)
    for length in (4096, 16384):
        for d in (96, 256):
            for causal in (None, "start"):
                yield Case("wide", TOKENS // length, WIDTH // d, WIDTH // d, length, length, d, causal)
    for form in FORMS:
        yield Case("forms", 2, 16, 16, 8192, 8192, 128, "start", form)
    yield from drawn(seed)
    for batch, groups, length, d in ((8, 8, 32768, 128), (64, 8, 4096, 128), (16, 8, 32768, 64)):
        yield Case("decode", batch, 8 * groups, groups, 1, length, d)


def drawn(seed: str) -> Iterator[Case]:
    """Problems of any lengths: batch 1 to 32, 1 to 64 heads, of which 1 to 8 share a group, up to 32,768 queries and keys."""
    source, count = random.Random(seed), 0
    while count < DRAWN:
        together = source.choice((1, 2, 4, 8))
        groups = source.randint(1, 64 // together)
        m, s = (max(1, round(math.exp(source.uniform(0, math.log(32768))))) for _ in range(2))
        causal = source.choice((None, "end"))
        case = Case("drawn", source.randint(1, 32), together * groups, groups, m, s, source.choice((64, 128)), causal)
        if LEAST_FLOP <= case.flop <= MOST_FLOP and case.bytes <= MOST_BYTES:
            count += 1
            yield case


# ---- what is right -----------------------------------------------------------------------------------------------------


def errors_of(o: Any, lse: Any, case: Case, q: Any, k: Any, v: Any, mask: Any = None, sinks: Any = None) -> Any:
    """(||o - want|| / ||want|| over sampled rows, the largest error of their LSE or None), in float64."""
    import torch

    source, off, all_, of_lse = random.Random(1), 0.0, 0.0, 0.0
    together = case.heads // case.groups
    for _ in range(SAMPLED):
        b, h, i = (source.randrange(extent) for extent in q.shape[:3])
        end = case.s if case.causal is None else i + 1 + (case.s - case.m if case.causal == "end" else 0)
        begin = max(0, end - case.options["window"]) if "window" in case.options else 0
        keys, values = (x[b, h // together, begin : max(0, min(end, case.s))].double() for x in (k, v))
        scores = (keys @ q[b, h, i].double()) / math.sqrt(case.d)
        if case.form == "softcap":
            scores = CAP * torch.tanh(scores / CAP)
        if mask is not None:
            scores = scores + mask[h, i, begin : begin + len(keys)].double()
        more = sinks[h : h + 1].double() if sinks is not None else scores[:0]
        want_lse = torch.cat([scores, more]).logsumexp(0)
        want = torch.exp(scores - want_lse) @ values if len(keys) else torch.zeros_like(o[b, h, i]).double()
        off += float((o[b, h, i].double() - want).square().sum())
        all_ += float(want.square().sum())
        if lse is not None and len(keys):
            of_lse = max(of_lse, float((lse[b, h, i].double() - want_lse).abs()))
    return math.sqrt(off / all_) if all_ else off, of_lse if lse is not None else None


# ---- what is timed -----------------------------------------------------------------------------------------------------


def ours(case: Case, given: dict[str, Any]) -> Callable[[], Any]:
    schedule, out = case.schedule(), given["q"].new_empty(given["q"].shape)
    more = {"lse": given["q"].new_empty(given["q"].shape[:3]).float()} if case.options["lse"] else {}
    return lambda: schedule(*given.values(), out=out, **more)


def flash(case: Case, given: dict[str, Any]) -> Callable[[], Any] | None:
    """FlashAttention's CuTe kernel on the same numbers in its own order of dimensions, where it is installed."""
    try:
        from flash_attn.cute.interface import flash_attn_func
    except ImportError:
        return None
    own = [x.transpose(1, 2).contiguous() for x in given.values()]
    options = {"causal": case.causal is not None, "return_lse": case.options["lse"]}

    def run() -> Any:
        o, *lse = found if isinstance(found := bare(), tuple) else (found,)
        return (o.transpose(1, 2), *(lse if case.options["lse"] else ()))

    def bare() -> Any:
        return flash_attn_func(*own, **options)

    run.timed = bare  # type: ignore[attr-defined]
    return run


def cudnn(q: Any, k: Any, v: Any, causal: bool) -> Callable[[], Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def run() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] > k.shape[1])

    return run


def runs_of(case: Case, given: dict[str, Any]) -> dict[tuple[str, str], Callable[[], Any]]:
    """What is timed, by (peer, variant)."""
    found: dict[tuple[str, str], Any] = {(OURS, "of"): ours(case, given)}
    if case.part in ("rows", "wide", "drawn"):
        found["FlashAttention CuTe", "default"] = flash(case, given)
        if case.causal is None or case.m == case.s:  # its causal queries begin with the keys
            found["cuDNN", "default"] = cudnn(given["q"], given["k"], given["v"], case.causal is not None)
    if case.part == "decode":
        import torch

        found["torch", "default"] = functools.partial(
            torch.nn.functional.scaled_dot_product_attention, **_by_name(given), enable_gqa=True
        )
    return {key: run for key, run in found.items() if run is not None}


def _by_name(given: dict[str, Any]) -> dict[str, Any]:
    return {"query": given["q"], "key": given["k"], "value": given["v"]}


def measure(case: Case, clock: Any, args: argparse.Namespace, results: Results) -> list[str]:
    """Times one problem. Returns what was wrong."""
    given = case.tensors()
    failed, errors, right = [], {}, {}
    for key, run in kept(runs_of(case, given), args).items():
        try:
            o, *lse = found if isinstance(found := run(), tuple) else (found,)
            errors[key] = errors_of(o, lse[0] if lse else None, case, **given)
        except Exception as error:  # a peer refuses the problem
            failed.append(f"{' '.join(key)}: {case.name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        if errors[key][0] < WRONG:
            right[key] = getattr(run, "timed", run)
        else:
            failed.append(f"{' '.join(key)}: {case.name} is off by {errors[key][0]}")
    copied = _copy() if case.part == "decode" else None
    if copied:
        right[OURS, "Copy"] = copied[0]
    for (peer, variant), timing in rested(right, clock, method_of(args)).items():
        rate = {"tflops": case.flop / timing.us * 1e-6}
        if copied:
            size = copied[1] if variant == "Copy" else given["k"].nbytes + given["v"].nbytes
            rate = {"gbps": size / timing.us * 1e-3}
        rel_err, lse_err = errors.get((peer, variant), (None, None))
        results.add(
            problem=case.name, dtype="bf16", peer=peer, variant=variant, us=timing.us, spread=timing.spread, mode="rested",
            rounds=args.rounds, part=case.part, rel_err=rel_err, lse_err=lse_err, **rate,
        )  # fmt: skip
        print(f"{case.part:<6} {case.name:<34} {peer:<20} {variant:<8} {timing.us:9.1f} us {rate}", flush=True)
    results.write(args.out)
    return failed


@functools.cache
def _copy() -> tuple[Callable[[], Any], int]:
    """A copy of 512 MiB, and the bytes that it reads and writes."""
    import torch

    x, copy = torch.randn(1 << 14, 1 << 14, device="cuda").bfloat16(), Copy()
    y = torch.empty_like(x)
    return lambda: copy(x, out=y), 2 * x.nbytes


# ---- compiling ---------------------------------------------------------------------------------------------------------


def compile_some(wanted: list[Case], args: argparse.Namespace) -> None:
    """Compiles the kernels of every so many-th problem, by calling them once."""
    for case in wanted[args.compile :: args.processes]:
        given = case.tensors()
        for key, run in kept(runs_of(case, given), args).items():
            if key[0] in (OURS, "FlashAttention CuTe"):
                try:
                    run()
                except Exception as error:
                    print(f"{' '.join(key)}: {case.name}: {type(error).__name__} while compiling", flush=True)


def compile_all(args: argparse.Namespace, argv: list[str]) -> None:
    """Compiles in *args.processes* processes."""
    of_flash = {"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1"}  # where it keeps its kernels
    os.environ |= of_flash
    command = [sys.executable, "-m", "benchmarks.attention", *argv, "--processes", str(args.processes), "--compile"]
    for each in [subprocess.Popen([*command, str(i)]) for i in range(args.processes)]:
        each.wait()


def merge(path: str) -> None:
    """Adds the rows of a finished run, whose file *path* is, to those of the committed file, as its next run."""
    found, old = read(path), read(RESULTS)
    number = 1 + max(row["run"] for row in old["rows"])
    new = [{**row, "run": number, "commit": found["commit"][:7]} for row in found["rows"]]
    method = {**old["method"], f"run {number}": f"{found['method']}, {found['gpu']}, {found['date']}"}
    RESULTS.write_text(text_of({**old, "date": found["date"], "method": method, "rows": old["rows"] + new}))


def plan_all(wanted: list[Case]) -> None:
    """Says what each problem is, and plans its kernel."""
    for case in wanted:
        schedule = case.schedule()
        memory = schedule.plan().smem_bytes
        kind, work = type(schedule).__name__, f"{case.flop * 1e-9:9.1f} GFLOP {case.bytes * 1e-6:8.1f} MB"
        print(f"{case.part:<6} {case.name:<34} {work} {kind} of {memory} bytes of shared memory a CTA")


#: Of instructions in SASS, what each is for; others are "other".
KINDS = {
    "HGMMA": ("HGMMA",),
    "MUFU": ("MUFU",),
    "FFMA, FMUL, FADD": ("FFMA", "FMUL", "FADD"),
    "FMNMX": ("FMNMX",),
    "F2FP, conversions": ("F2FP", "I2F", "F2F", "I2FP"),
    "ISETP, FSETP, FSEL, SEL": ("ISETP", "FSETP", "FSEL", "SEL"),
    "LDS": ("LDS",),
    "SHFL": ("SHFL",),
    "uniform": ("UMOV", "UIADD3", "ULOP3", "USEL", "UISETP", "USHF", "ULEA"),
}


def count_instructions() -> None:
    """Prints what a warp issues for a block of keys that all queries see, by kind, and registers at launch."""
    from benchmarks.cubin_tools import disassemble
    from benchmarks.sass_loops import loops, parse
    from tmapipe.gpu.build import build

    columns: dict[str, Counter[str]] = {}
    for d in (128, 64):
        for form in ("plain", "softcap", "mask", "sinks"):
            schedule = Attention(d, **FORMS[form])
            compiled = build(schedule, schedule.plan(), keep=True)
            assert compiled.cubin is not None and compiled.resources is not None
            found = [loop for loop in loops(*parse(disassemble(compiled.cubin))) if loop.count("HGMMA")]
            free = min(found, key=lambda loop: len(loop.instructions))  # the others are of tiles and of masked blocks
            kind = {op: name for name, ops in KINDS.items() for op in ops}
            opcodes = (each.opcode.split(".")[0] for each in free.instructions)
            counts = Counter(kind.get(op, "other") for op in opcodes if op != "NOP")
            counts |= Counter({"all": counts.total(), "registers": compiled.resources.registers})
            counts |= Counter({"keys": schedule.keys_a_block})
            columns[f"d{d} {form}"] = counts
    lines = [
        [name, *(counts[name] for counts in columns.values())] for name in ("all", *KINDS, "other", "registers", "keys")
    ]
    print_table(lines, ["a warp, a block", *columns])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS, help="parts of the suite")
    parser.add_argument("--drawn", metavar="SEED", help="of the problems that are drawn")
    parser.add_argument("--seconds", type=float, default=1e9, help="no problem begins later")
    parser.add_argument("--merge", metavar="FILE", help="only adds such a run to the committed file")
    parser.add_argument("--dry", action="store_true", help="list the problems and plan their kernels")
    parser.add_argument("--sass", action="store_true", help="only count instructions of the loop over blocks")
    parser.add_argument("--compile", type=int, help="only compiles, as this one of --processes")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    add_options(parser)
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    if args.sass:
        count_instructions()
        return 0
    if args.merge:
        merge(args.merge)
        return 0
    seed = args.drawn or commit()[:8]
    wanted = [case for case in cases(seed) if case.part in args.only]
    if args.dry:
        plan_all(wanted)
        return 0
    gpu = gpu_of("attention")
    if not gpu:
        return 2
    begun, failed = time.monotonic(), []
    results = Results("attention", gpu, {**settings(args), "drawn": seed})
    if args.append:
        results.resume(args.out)
    done = {row["problem"] for row in results.rows}
    wanted = [case for case in wanted if case.name not in done]
    if args.compile is not None:
        compile_some(wanted, args)
        return 0
    compile_all(args, given)
    print(f"compiled after {time.monotonic() - begun:.0f} s", flush=True)
    from tmapipe.gpu.launch import CudaClock

    clock = CudaClock(args.flush)
    for case in wanted:
        if time.monotonic() - begun > args.seconds:
            failed.append(f"not reached: {case.name}")
        else:
            failed += measure(case, clock, args, results)
    return finish(results, args, "tflops", failed)


if __name__ == "__main__":
    sys.exit(main())
