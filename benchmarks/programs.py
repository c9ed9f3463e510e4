"""The programs of `examples/` beside torch, eager and compiled: stencils, GEMMs on values, attention.

python -m benchmarks.programs
python -m benchmarks.programs --only stencil attention --rounds 8

Every result is compared with torch's in fp32. rel_err is ||out - ref|| / ||ref||. gbps counts what must be read and written
once; tflops the multiplications and additions of the products. Rows, transposes and convolutions have suites of their own.
Writes ``benchmarks/results/programs.json``.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

import attrs

from benchmarks.cli import add_options, finish, gpu_of, kept, method_of, settings
from benchmarks.results import Results
from examples.attention import attention_of
from examples.dequant_gemm import dequant_gemm, packed
from examples.gemm_block_scaled import BlockScaledGemm, quantized
from examples.gemm_row_max import GemmRowMax
from examples.histogram import BINS, Histogram
from examples.mlp import Mlp
from examples.ragged import RaggedSums
from examples.row_sums import RowSums
from examples.stencil import Stencil
from tmapipe.tuning.cost import rested


@attrs.frozen
class Case:
    """Args:
    name: Of the program.
    problem: Its extents, as they are printed.
    ours: Variant -> schedule.
    inputs: By argument, on the device.
    torch: The same in torch, of the inputs by name: a tensor, or a tuple that begins with it.
    output: Which of our outputs that is.
    work: Bytes read and written ("gbps"), or operations ("tflops").
    unit: "gbps" or "tflops".
    compiles: Whether torch.compile is tried.
    peers: Other runs that return the same as torch's, by name.
    """

    name: str
    problem: str
    ours: dict[str, Any]
    inputs: dict[str, Any]
    torch: Callable[..., Any]
    output: str
    work: float
    unit: str = "gbps"
    compiles: bool = True
    peers: dict[str, Callable[[], Any]] = attrs.field(factory=dict)


def moves() -> list[Case]:
    """Stencil and row sums."""
    import torch

    m, n = 16384, 16384
    found = []
    x = torch.randn(m, n, device="cuda")
    kernel = torch.tensor([[0, 1, 0], [1, 1, 1], [0, 1, 0]], device="cuda", dtype=torch.float32)[None, None] / 5

    def stencil(x: Any) -> Any:
        return torch.nn.functional.conv2d(x[None, None], kernel, padding=1)[0, 0]

    found.append(
        Case(
            "stencil",
            f"{m}x{n}",
            {"": Stencil()},
            {"x": x},
            stencil,
            "y",
            2.0 * x.nbytes,
            compiles=False,
        )
    )
    x = torch.randn(2048, 1 << 17, device="cuda")
    found.append(
        Case(
            "row_sums",
            "2048x131072",
            {"": RowSums()},
            {"x": x},
            lambda x: x.sum(1),
            "y",
            x.nbytes,
        )
    )
    return found


def groups() -> list[Case]:
    """Histograms of rows, sums of ragged groups of rows."""
    import torch

    m, n = 16384, 8192
    x = torch.randint(0, BINS, (m, n), device="cuda", dtype=torch.int32)

    def histogram(x: Any) -> Any:
        return torch.zeros(x.shape[0], BINS, device="cuda").scatter_add_(
            1, x.long(), torch.ones_like(x, dtype=torch.float32)
        )

    ours = {"": Histogram()}
    found = [Case("histogram", f"{m}x{n}", ours, {"x": x}, histogram, "h", x.nbytes, compiles=False)]
    m, n, count = 1 << 17, 2048, 4096
    x = torch.randn(m, n, device="cuda")
    begins = torch.randint(0, m + 1, (count + 1,), device="cuda").sort().values.int()
    begins[0], begins[-1] = 0, m

    def sums(x: Any, begins: Any) -> Any:
        return torch.segment_reduce(x, "sum", offsets=begins.long(), axis=0, initial=0)

    ours, inputs = {"": RaggedSums()}, {"x": x, "begins": begins}
    found.append(Case("ragged", f"{m}x{n}, {count} groups", ours, inputs, sums, "y", x.nbytes, compiles=False))
    return found


def matmuls() -> list[Case]:
    """A GEMM with row maxima, an fp8 GEMM with block scales."""
    import torch

    found = []
    m, n, k = 16896, 4096, 4096  # 132 blocks of 128 rows, one a multiprocessor
    a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    ours = {"": GemmRowMax()}

    def row_max(a: Any, b: Any) -> Any:
        return (a @ b.T).amax(1).float()

    found.append(
        Case("gemm_row_max", f"{m}x{n}x{k}", ours, {"a": a, "b": b}, row_max, "top", 2.0 * m * n * k, "tflops")
    )
    (qa, sa), (qb, sb) = quantized(a.float(), 1), quantized(b.float(), 128)
    wide_a = (qa.float() * sa.repeat_interleave(128, 1)).bfloat16()
    wide_b = (qb.float() * sb.repeat_interleave(128, 0).repeat_interleave(128, 1)).bfloat16()
    inputs = {"a": qa, "b": qb, "sa": sa.T.contiguous(), "sb": sb}

    def as_bf16(a: Any, b: Any, sa: Any, sb: Any) -> Any:
        return wide_a @ wide_b.T

    ours = {"": BlockScaledGemm()}
    found.append(
        Case("gemm_block_scaled", f"{m}x{n}x{k}", ours, inputs, as_bf16, "d", 2.0 * m * n * k, "tflops", compiles=False)
    )
    return found


def several() -> list[Case]:
    """Two GEMMs in one kernel, and GEMMs with weights of 8 and 4 bits."""
    import torch

    m, k, h, n = 1 << 17, 256, 1024, 256
    x, w1, w2 = (torch.randn(shape, device="cuda").bfloat16() for shape in ((m, k), (h, k), (n, h)))

    def mlp(x: Any, w1: Any, w2: Any) -> Any:
        return torch.relu(x @ w1.T) @ w2.T

    work = 2.0 * m * h * (k + n)
    ours, inputs = {"": Mlp()}, {"x": x, "w1": w1, "w2": w2}
    found = [Case("mlp", f"{m}x{k}x{h}x{n}", ours, inputs, mlp, "y", work, "tflops")]
    m, n, k = 4096, 4096, 4096
    x, scale = torch.randn(m, k, device="cuda").bfloat16(), torch.rand(n, device="cuda")
    for bits in (8, 4):
        w = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (n, k), device="cuda")

        small = w.to(torch.int8)

        def widened(x: Any, packed: Any, scale: Any, w: Any = small) -> Any:
            return (x @ w.bfloat16().T) * scale.bfloat16()

        ours = {"": dequant_gemm(bits)}
        inputs = {"x": x, "packed": packed(w, bits), "scale": scale}
        work = 2.0 * m * n * k
        found.append(Case(f"dequant_gemm int{bits}", f"{m}x{n}x{k}", ours, inputs, widened, "d", work, "tflops"))
    return found


def attention() -> list[Case]:
    """Attention of 16,384 tokens of 2048 elements over all heads; the last one with heads that share keys and values."""
    import torch

    found = []
    shapes = [(d, seq, 2048 // d, 1, causal) for d in (128, 64) for causal in (False, True) for seq in (2048, 16384)]
    for d, seq, groups, shared, causal in [*shapes, (128, 8192, 4, 4, True)]:
        batch = 16384 // seq
        q = torch.randn(batch, groups, shared, seq, d, device="cuda").bfloat16()
        k, v = (torch.randn(batch, groups, seq, d, device="cuda").bfloat16() for _ in range(2))

        def sdpa(q: Any, k: Any, v: Any, causal: bool = causal) -> Any:
            function = torch.nn.functional.scaled_dot_product_attention
            return function(q.flatten(1, 2), k, v, is_causal=causal, enable_gqa=q.shape[2] > 1).view(q.shape)

        ours = {"": attention_of(d, causal)}
        work = 4.0 * q.numel() * seq * (0.5 if causal else 1)
        text = f"{batch}x{groups * shared}/{groups}x{seq}x{d}{' causal' if causal else ''}"
        inputs = {"q": q, "k": k, "v": v}
        peers = flash(q, k, v, causal)
        found.append(Case("attention", text, ours, inputs, sdpa, "o", work, "tflops", False, peers))
    return found


def flash(q: Any, k: Any, v: Any, causal: bool) -> dict[str, Callable[[], Any]]:
    """FlashAttention's CuTe kernel on the same numbers in its own order of dimensions, where it is installed."""
    try:
        from flash_attn.cute.interface import flash_attn_func
    except ImportError:
        return {}
    own = [x.transpose(1, 2).contiguous() for x in (q.flatten(1, 2), k, v)]

    def run() -> Any:
        found = flash_attn_func(*own, causal=causal)
        return first(found).transpose(1, 2).reshape(q.shape)

    def bare() -> Any:
        return flash_attn_func(*own, causal=causal)

    run.timed = bare  # type: ignore[attr-defined]
    return {"FlashAttention CuTe": run}


def outputs_of(schedule: Any, inputs: dict[str, Any], output: str) -> Any:
    """One of the outputs of a call."""
    found = schedule(**inputs)
    names = list(schedule.declared.stores)
    return found if len(names) == 1 else found[names.index(output)]


def first(found: Any) -> Any:
    """A tensor, or the first of several."""
    return found[0] if isinstance(found, tuple) else found


def measure(case: Case, clock: Any, args: argparse.Namespace, results: Results) -> list[str]:
    """Times one case. Returns what was wrong."""
    import torch

    failed = []
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, schedule in case.ours.items():
        runs["tmapipe", name or "as written"] = functools.partial(outputs_of, schedule, case.inputs, case.output)
    runs["torch", "eager"] = functools.partial(case.torch, **case.inputs)
    for name, run in case.peers.items():
        runs[name, "default"] = run
    if case.compiles:
        runs["torch.compile", "default"] = functools.partial(torch.compile(case.torch), **case.inputs)
    want = first(case.torch(**case.inputs)).double()
    errors = {key: float((first(run()).double() - want).norm() / want.norm()) for key, run in kept(runs, args).items()}
    for key, error in errors.items():
        if not error < 3e-2:
            failed.append(f"{case.name} {case.problem} {' '.join(key)} has a relative error of {error}")
    right = {key: getattr(run, "timed", run) for key, run in runs.items() if errors.get(key, 1) < 3e-2}
    timings = rested(right, clock, method_of(args))
    for (peer, variant), timing in timings.items():
        speed = case.work / timing.us * (1e-3 if case.unit == "gbps" else 1e-6)
        resources = {}
        if peer == "tmapipe":
            compiled = case.ours["" if variant == "as written" else variant].compile(
                {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in case.inputs.items()}
            )
            resources = {"registers": compiled.resources.registers, "spill_bytes": compiled.resources.spill_bytes}
        results.add(
            problem=f"{case.name} {case.problem}", speed=speed, dtype=str(next(iter(case.inputs.values())).dtype), peer=peer,
            variant=variant, us=timing.us, rel_err=errors[peer, variant], spread=timing.spread, mode="rested",
            **{case.unit: speed}, **resources,
        )  # fmt: skip
        print(
            f"{case.name:<18} {case.problem:<18} {peer:<14} {variant:<18} {timing.us:9.1f} us {speed:8.1f} {case.unit}",
            flush=True,
        )
    results.write(args.out)
    return failed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="names of programs")
    add_options(parser)
    args = parser.parse_args(argv)
    gpu = gpu_of("programs")
    if not gpu:
        return 2
    from tmapipe.gpu.launch import CudaClock

    results, failed = Results("programs", gpu, settings(args)), []
    clock = CudaClock(args.flush)
    for group in (moves, groups, matmuls, several, attention):
        for case in group():
            if not args.only or case.name.split()[0] in args.only:
                failed += measure(case, clock, args, results)
    return finish(results, args, "speed", failed)


if __name__ == "__main__":
    sys.exit(main())
