"""A warp-specialized GEMM, d[m, n] = sum over k of a[m, k] * b[n, k], written with tmapipe's objects.

python examples/gemm_ws.py                     on the GPU if there is one, else on the CPU model of the hardware
python examples/gemm_ws.py --shape 4096 4096 4096 --dtype fp16 --tile 128 128 64 --cluster 1 2 --stages 6
"""

import argparse
import statistics
import sys
import time

import torch

import tmapipe as tp


class Gemm(tp.Schedule):
    """One warp loads tiles of a and b, two warpgroups multiply them and store the sums."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=2)

    def __init__(self, tile, cluster, stages):
        m, n, k = tile
        self.cluster = {"m": cluster[0], "n": cluster[1]}
        self.ring = tp.BarrierRing(stages, producer=self.load, consumer=self.math)
        # CTAs along n want the same tile of a, CTAs along m the same tile of b: each loads its share for all of them.
        self.a = tp.TmaLoadStage("m k", tile=(m, k), ring=self.ring, multicast=tp.MulticastGroup("n"))
        self.b = tp.TmaLoadStage("n k", tile=(n, k), ring=self.ring, multicast=tp.MulticastGroup("m"))
        self.mma = tp.Wgmma(self.a, self.b, in_flight=1)  # a slot is read for one step longer, and released that late
        self.d = tp.TmaStoreStage("m n", source=self.mma, stages=2)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.b.load(tile, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("a", "k")):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
        k.d.store(tile, acc)


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shape", type=int, nargs=3, metavar=("M", "N", "K"), help="default 8192^3, or 256 256 512 on the CPU"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--tile", type=int, nargs=3, default=[128, 256, 64], metavar=("M", "N", "K"))
    parser.add_argument("--cluster", type=int, nargs=2, default=[2, 1], metavar=("M", "N"), help="CTAs along m and n")
    parser.add_argument("--stages", type=int, help="slots in the ring; default: as many as shared memory holds")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def relative_error(d, a, b) -> float:
    """|d - a b^T| / |a b^T| on up to 256 random rows, with the reference in float64."""
    rows = torch.randperm(a.shape[0], device=a.device)[:256]
    reference = a[rows].double() @ b.double().t()
    return ((d[rows].double() - reference).norm() / reference.norm()).item()


def tflops(run, flop: float) -> float:
    """Median over 6 rested batches of 8 launches (a GPU at its power limit slows down when it is never rested)."""
    medians = []
    for _ in range(6):
        time.sleep(0.3)
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(8)]
        for start, end in pairs:
            start.record()
            run()
            end.record()
        torch.cuda.synchronize()
        medians.append(statistics.median(start.elapsed_time(end) for start, end in pairs))
    return flop / statistics.median(medians) / 1e9


def main() -> None:
    args = options()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: there is no GPU here. Leave the option out to run on the CPU model.")
    gemm = Gemm(args.tile, args.cluster, args.stages)
    print(gemm.explain({"a": args.dtype, "b": args.dtype, "d": args.dtype}))

    m, n, k = args.shape or ((8192, 8192, 8192) if args.device == "cuda" else (256, 256, 512))
    torch.manual_seed(0)
    a = torch.randn(m, k, device=args.device).to(DTYPES[args.dtype])
    b = torch.randn(n, k, device=args.device).to(DTYPES[args.dtype])
    started = time.perf_counter()
    d = gemm(a, b)
    if args.device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    error = relative_error(d, a, b)
    where = "the GPU, compilation included" if args.device == "cuda" else "the CPU model"
    print(f"\n{m} x {n} x {k} {args.dtype}: {seconds:.2f} s on {where}; relative error {error:.1e}")

    if args.device == "cuda":
        flop = 2.0 * m * n * k
        ours = tflops(lambda: gemm(a, b, out=d), flop)
        torch_out = torch.empty_like(d)
        theirs = tflops(lambda: torch.mm(a, b.t(), out=torch_out), flop)
        print(f"tmapipe {ours:.0f} TFLOP/s, torch.mm {theirs:.0f} TFLOP/s on the same data ({ours / theirs:.3f})")
    else:
        used = gemm.compile({"a": args.dtype, "b": args.dtype, "d": args.dtype}).resources
        print(
            f"compiled for {gemm.arch}: {used.registers} registers a thread at launch, {used.spill_bytes} bytes spilled, "
            f"{used.shared_bytes} bytes of shared memory"
        )
    if not error < 1e-2:
        sys.exit("the result is wrong")


if __name__ == "__main__":
    main()
