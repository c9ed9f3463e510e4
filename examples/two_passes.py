"""Rows of any length are normalized in two passes: sums are stored, and loaded again once the mean of their row is known.

While one row block is on its second pass, the next one is on its first: they lie at different places of the tensor.

python examples/two_passes.py     on the GPU if there is one, else on the CPU model of the hardware
"""

import sys

import torch

import tmapipe as tp


class Normalize(tp.Schedule):
    """h = x + residual, and y[m, n] = (h[m, n] - mean) / sqrt(variance + 1e-5), both over all n."""

    over = "m"
    load, add, again, norm = tp.Role(warps=1), tp.Role(warps=4), tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(2, producer=load, consumer=add)
    x = tp.TmaLoadStage("m n", tile=(4, 512), ring=ring)
    residual = tp.TmaLoadStage("m n", tile=(4, 512), ring=ring)
    h = tp.TmaStoreStage("m n", tile=(4, 512), role=add)

    done = tp.BarrierRing(2, producer=add, consumer=(again, norm))
    written = tp.StoredStage(h, ring=done)  # the row block's tiles of h can be loaded
    mean = tp.SharedStage(tile=(4,), ring=done, writer=add, dtype="fp32")
    scale = tp.SharedStage(tile=(4,), ring=done, writer=add, dtype="fp32")

    back = tp.BarrierRing(3, producer=again, consumer=norm)
    stored = tp.TmaLoadStage("m n", tile=(4, 512), ring=back).of_result(h)
    y = tp.TmaStoreStage("m n", tile=(4, 512), role=norm)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("x", "n")):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=step)
                slot.residual.load(tile, n=step)

    @add.jit
    def first(self, k, tile):
        total, squares = k.full("x", 0.0, "rows"), k.full("x", 0.0, "rows")
        with k.done.produce() as done:
            for step in range(k.steps("x", "n")):
                with k.ring.consume() as slot:
                    h = slot.x.read() + slot.residual.read()
                total = total + tp.math.row_sum(h)
                squares = squares + tp.math.row_sum(h * h)
                k.h.store(tile.also(n=step), h)
            mean = total / k.extent("n")
            done.mean.write(mean)
            done.scale.write(tp.math.rsqrt(squares / k.extent("n") - mean * mean + 1e-5))
            done.written.publish()

    @again.jit
    def fetch(self, k, tile):
        with k.done.consume():
            for step in range(k.steps("x", "n")):
                with k.back.produce() as slot:
                    slot.stored.load(tile, n=step)

    @norm.jit
    def second(self, k, tile):
        with k.done.consume() as done:
            for step in range(k.steps("x", "n")):
                with k.back.consume() as slot:
                    h = slot.stored.read()
                k.y.store(tile.also(n=step), (h - done.mean.read(rows_of=h)) * done.scale.read(rows_of=h))


def main() -> None:
    gpu = torch.cuda.is_available()
    rows, columns = (4096, 100_000) if gpu else (10, 1304)
    normalize = Normalize()
    print(normalize.check())
    x, residual = (torch.randn((rows, columns), device="cuda" if gpu else "cpu").to(torch.bfloat16) for _ in range(2))
    h, y = normalize(x, residual)
    want = torch.nn.functional.layer_norm(x.float() + residual.float(), (columns,))
    error = (y.float() - want).abs().max().item()
    print(f"\n{rows} x {columns} on {'the GPU' if gpu else 'the CPU model'}: off by at most {error:.1e}")
    if error > 5e-2 or not torch.equal(h, x + residual):
        sys.exit("the result is wrong")


if __name__ == "__main__":
    main()
