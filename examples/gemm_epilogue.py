"""A GEMM of one's own with a fused epilogue: d = gelu(a b^T + bias), with multicast over the cluster.

python examples/gemm_epilogue.py               on the GPU if there is one, else on the CPU model of the hardware
python examples/gemm_epilogue.py --shape 4096 4096 4096
"""

import argparse
import sys

import torch

import tmapipe as tp


class GeluGemm(tp.Schedule):
    """One warp loads tiles of a and b, one the bias; two warpgroups multiply, compute the epilogue and store."""

    load, fetch, math = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warpgroups=2)
    cluster = {"m": 2, "n": 1}  # noqa: RUF012

    ring = tp.BarrierRing(4, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(128, 64), ring=ring, multicast=tp.MulticastGroup("n"))
    b = tp.TmaLoadStage("n k", tile=(256, 64), ring=ring, multicast=tp.MulticastGroup("m"))
    mma = tp.Wgmma(a, b)

    side = tp.BarrierRing(2, producer=fetch, consumer=math)
    operands = tp.epilogue.Operands(
        {"bias": tp.epilogue.PerColumn()}, lambda acc, bias: tp.math.gelu(acc + bias), ring=side, matmul=mma
    )
    bias = operands.stages["bias"]
    d = tp.TmaStoreStage("m n", source=mma, columns=operands.width)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.b.load(tile, k=step)

    @fetch.jit
    def fetch_bias(self, k, tile):
        self.operands.load(k, tile)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("a", "k")):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
        k.d.store(tile, acc, self.operands.epilogue, operands=self.operands.reader(k, tile))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=3, metavar=("M", "N", "K"), help="default 8192^3, or 300 520 200")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    m, n, k = args.shape or ((8192, 8192, 8192) if device == "cuda" else (300, 520, 200))
    gemm = GeluGemm()
    print(gemm.explain())
    print(gemm.check())

    torch.manual_seed(0)
    a, b = (torch.randn(rows, k, device=device).to(torch.bfloat16) for rows in (m, n))
    bias = torch.randn(n, device=device).to(torch.bfloat16)
    d = gemm(a, b, bias)
    reference = torch.nn.functional.gelu(a.float() @ b.float().T + bias.float(), approximate="tanh")
    error = ((d.float() - reference).norm() / reference.norm()).item()
    print(f"{m} x {n} x {k} on {'the GPU' if device == 'cuda' else 'the CPU model'}: relative error {error:.1e}")
    used = gemm.compile().resources
    print(f"compiled for {gemm.arch}: {used.registers} registers a thread at launch, {used.spill_bytes} bytes spilled")
    if not error < 1e-2:
        sys.exit("the result is wrong")


if __name__ == "__main__":
    main()
