"""A GEMM whose second output is the maximum of each row: a CTA goes through all columns of its rows.

python examples/gemm_row_max.py     on the GPU if there is one, else on the CPU model of the hardware
"""

import sys

import torch

import tmapipe as tp


class GemmRowMax(tp.Schedule):
    """d = a b^T, and top[m] = max over n of d[m, n] before it is rounded."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=2)
    over = "m"
    ring = tp.BarrierRing(producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(128, 64), ring=ring)
    b = tp.TmaLoadStage("n k", tile=(128, 64), ring=ring)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)
    top = tp.TmaStoreStage("m", tile=(128,), role=math, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        for n in range(k.steps("b", "n")):
            for step in range(k.steps("a", "k")):
                with k.ring.produce() as slot:
                    slot.a.load(tile, k=step)
                    slot.b.load(n=n, k=step)

    @math.jit
    def multiply(self, k, tile):
        top = k.full("mma", float("-inf"), "rows")
        for n in range(k.steps("b", "n")):
            with k.mma.accumulate() as acc:
                for _ in range(k.steps("a", "k")):
                    with k.ring.consume() as slot:
                        acc.add(slot.a, slot.b)
            values = acc.values()
            top = tp.math.maximum(top, tp.math.row_max(values, inside=k.extent("n") - n * 128))
            k.d.store(tile.also(n=n), values)
        k.top.store(tile, top)


def main() -> None:
    gemm = GemmRowMax()
    print(gemm.explain())
    print(gemm.check())
    gpu = torch.cuda.is_available()
    m, n, k = (8192, 4096, 2048) if gpu else (200, 304, 104)
    a, b = (torch.randn(rows, k, device="cuda" if gpu else "cpu").to(torch.bfloat16) for rows in (m, n))
    _, top = gemm(a, b)
    want = a.float() @ b.float().T
    error = (top - want.amax(1)).abs().max().item()
    print(f"\n{m} x {n} x {k} on {'the GPU' if gpu else 'the CPU model'}: off by at most {error:.1e}")
    if error > 1e-2:
        sys.exit("the result is wrong")


if __name__ == "__main__":
    main()
