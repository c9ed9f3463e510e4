"""The transpose of a matrix through swizzled shared memory: one warp loads tiles, four transpose them, one stores them.

python examples/transpose.py     on the GPU if there is one, else on the CPU model of the hardware
"""

import sys

import torch

import tmapipe as tp


def transpose_of(
    dtype: str = "bf16", rows: int = 64, columns: int = 64, ctas: int | None = None, each: int = 1
) -> tp.Schedule:
    """The transpose of matrices of *dtype*, in tiles of *rows* x *columns* elements. A CTA takes *each* of them, and
    *ctas* CTAs share a multiprocessor.

    The hardware takes the tiles along m first, so that those in flight write rows of the output that are next to each other.
    What is read stays in L2, so that what is written leaves it soon, while its neighbours do: matrices are larger than L2.
    """

    class Transpose(tp.Schedule):
        """y[n, m] = x[m, n]."""

        tiles = tp.tiles.GridTiles(tp.tiles.Grouped(1), ctas, each)
        load, work, store = tp.Role(warps=1), tp.Role(warpgroups=columns // 64), tp.Role(warps=1)
        ring = tp.BarrierRing(each, chain=(load, work, store))
        x = tp.TmaLoadStage("m n", tile=(rows, columns), ring=ring, dtype=dtype, swizzle=128, l2_hint="evict_last")
        z = tp.SharedStage(tile=(columns, rows), ring=ring, writer=work, dtype=dtype, swizzle=128)
        y = tp.TmaStoreStage("n m", source=z, stages=each - 1)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def transpose(self, k, tile):
            with k.ring.consume() as slot:
                slot.z.write(slot.x.read(transposed=True))

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store(tile)

    return Transpose()


def main() -> None:
    transpose = transpose_of()
    print(transpose.explain())
    print(transpose.check())
    gpu = torch.cuda.is_available()
    x = torch.randn((16384, 8192) if gpu else (200, 120), device="cuda" if gpu else "cpu").to(torch.bfloat16)
    y = transpose(x)
    print(f"\n{tuple(x.shape)} on {'the GPU' if gpu else 'the CPU model'}: y == x.T is {torch.equal(x.T, y)}")
    if not torch.equal(x.T, y):
        sys.exit("the result is wrong")


if __name__ == "__main__":
    main()
