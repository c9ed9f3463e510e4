"""Two GEMMs in one kernel: y = relu(x w1^T) w2^T, whose intermediate stays in shared memory.

One warpgroup multiplies x and w1, a block of the hidden dimension at a time, and hands relu of it on in a ring. Two others add
up its products with w2.

python examples/mlp.py     on the GPU if there is one, else on the CPU model of the hardware
"""

import sys

import torch

import tmapipe as tp


class Mlp(tp.Schedule):
    """y[m, n] = sum over h of relu(sum over k of x[m, k] w1[h, k]) w2[n, h]."""

    load, first, second = tp.Role(warps=1), tp.Role(warpgroups=1), tp.Role(warpgroups=2)
    inputs = tp.BarrierRing(3, producer=load, consumer=first)
    weights = tp.BarrierRing(2, producer=load, consumer=second)
    hidden = tp.BarrierRing(2, producer=first, consumer=second)
    x = tp.TmaLoadStage("m k", tile=(128, 64), ring=inputs)
    w1 = tp.TmaLoadStage("h k", tile=(64, 64), ring=inputs)
    w2 = tp.TmaLoadStage("n h", tile=(256, 64), ring=weights)
    middle = tp.SharedStage("m h", tile=(128, 64), ring=hidden, writer=first, dtype="bf16")
    up = tp.Wgmma(x, w1)
    down = tp.Wgmma(middle, w2)
    y = tp.TmaStoreStage("m n", source=down)

    @load.jit
    def fill(self, k, tile):
        for h in range(k.steps("w1", "h")):
            for step in range(k.steps("x", "k")):
                with k.inputs.produce() as slot:
                    slot.x.load(tile, k=step)
                    slot.w1.load(h=h, k=step)
            with k.weights.produce() as slot:
                slot.w2.load(tile, h=h)

    @first.jit
    def widen(self, k, tile):
        for _ in range(k.steps("w1", "h")):
            with k.up.accumulate() as acc:
                for _ in range(k.steps("x", "k")):
                    with k.inputs.consume() as slot:
                        acc.add(slot.x, slot.w1)
            with k.hidden.produce() as slot:
                slot.middle.write(tp.math.relu(acc.values()))

    @second.jit
    def narrow(self, k, tile):
        with k.down.accumulate() as acc:
            for _ in range(k.steps("w1", "h")):
                with k.hidden.consume() as left, k.weights.consume() as right:
                    acc.add(left.middle, right.w2)
        k.y.store(tile, acc)


def main() -> None:
    mlp = Mlp()
    print(mlp.explain())
    print(mlp.check())
    gpu = torch.cuda.is_available()
    m, k, h, n = (65536, 256, 1024, 256) if gpu else (200, 72, 136, 200)
    x = torch.randn((m, k), device="cuda" if gpu else "cpu").to(torch.bfloat16)
    w1, w2 = (torch.randn(shape, device=x.device).to(torch.bfloat16) for shape in ((h, k), (n, h)))
    y = mlp(x, w1, w2)
    want = torch.relu(x.float() @ w1.float().T).to(torch.bfloat16).float() @ w2.float().T
    error = ((y.float() - want).norm() / want.norm()).item()
    print(f"\n{m} x {k} x {h} x {n} on {'the GPU' if gpu else 'the CPU model'}: relative error {error:.1e}")
    if error > 4e-3:
        sys.exit("the result is wrong")


if __name__ == "__main__":
    main()
