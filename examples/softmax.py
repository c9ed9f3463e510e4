"""Softmax of each row: one warp loads rows, the others find the sum of the powers of each, and store what it becomes.

A row lies in one CTA, or in those of a cluster.

python examples/softmax.py     on the GPU if there is one, else on the CPU model of the hardware
"""

import sys

import torch

import tmapipe as tp


def softmax_of(
    columns: int,
    rows: int = 1,
    warps: int = 4,
    ctas: int = 1,
    length: int | None = None,
    share: int | None = None,
    held: bool = False,
) -> tp.Schedule:
    """Softmax of rows of up to *ctas* x *columns* elements, *rows* at a time.

    Of rows of one *length*, each CTA takes one tile, as many as *share* says are on a multiprocessor, and threads store. If
    that length is all that the CTAs take, nothing is masked, which halves the registers. The powers of e are computed
    again when their sum is known, or *held* in registers, which takes two reductions.
    """

    even = length == ctas * columns
    hint = "evict_last" if length else None  # so that L2 is left by what is written, in the order in which it is

    class Softmax(tp.Schedule):
        """y[m, n] = exp(x[m, n]) / sum over n of exp(x[m, n])."""

        relations = (tp.Dim("n", size=length) if length else tp.Dim("n", at_most=ctas * columns),)
        tiles = tp.tiles.GridTiles(ctas=share) if length else tp.tiles.PersistentTiles()
        load, work = tp.Role(warps=1), tp.Role(warps=warps)
        cluster = {"n": ctas}  # noqa: RUF012
        ring = tp.BarrierRing(1 if length else None, producer=load, consumer=work)
        x = (
            tp.BulkLoadStage("m n", tile=(columns,), ring=ring, l2_hint=hint)  # one instruction, where boxes take many
            if even and rows == 1
            else tp.TmaLoadStage("m n", tile=(rows, columns), ring=ring, l2_hint=hint)
        )
        y = (tp.ThreadStoreStage if length else tp.TmaStoreStage)("m n", tile=(rows, columns), role=work)
        across = tp.ReductionScratch(
            work, rows=rows, group=tp.MulticastGroup("n")
        )  # a row lies in several warps and CTAs

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def normalize(self, k, tile):
            first = columns * tile.n if ctas > 1 else 0
            n = columns if even else k.extent("n") - first  # beyond it, a slot holds zeros
            with k.ring.consume() as slot:
                base = (tp.math.row_max if held else tp.math.row_logsumexp)(slot.x.read(), inside=n)
                powers = tp.math.exp(slot.x.read() - base)  # read twice, the row needs few registers
                k.y.store(tile, powers * (1 / tp.math.row_sum(powers, inside=n)) if held else powers)

    return Softmax()


def main() -> None:
    gpu = torch.cuda.is_available()
    rows, columns = (1024, 131072) if gpu else (6, 4000)
    softmax = softmax_of(16384, warps=8, ctas=8) if gpu else softmax_of(1024, ctas=4)
    print(softmax.explain())
    print(softmax.check())
    x = torch.randn((rows, columns), device="cuda" if gpu else "cpu").to(torch.bfloat16)
    y = softmax(x)
    error = (y.float() - torch.softmax(x.float(), 1)).abs().max().item()
    print(f"\n{rows} x {columns} on {'the GPU' if gpu else 'the CPU model'}: off by at most {error:.1e}")
    if error > 1e-2:
        sys.exit("the result is wrong")


if __name__ == "__main__":
    main()
