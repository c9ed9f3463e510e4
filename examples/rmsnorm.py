"""A residual is added to each row, which is then scaled to a mean square of 1 and multiplied by weights: RMSNorm.

python examples/rmsnorm.py     on the GPU if there is one, else on the CPU model of the hardware
"""

import sys

import torch

import tmapipe as tp

READ = "evict_last"  # of long rows: so that L2 is left by what is written, in the order in which it is


def rmsnorm_of(columns: int, rows: int = 1, warps: int = 4, ctas: int = 1, eps: float = 1e-6) -> tp.Schedule:
    """RMSNorm of rows of up to *ctas* x *columns* elements, *rows* at a time."""

    buffers = 2 if rows * columns <= 8192 else 1  # of each output, as shared memory has room

    class RmsNorm(tp.Schedule):
        """h = x + residual; y[m, n] = h[m, n] / sqrt(mean over n of h[m, n]^2 + eps) * weight[n]."""

        relations = (tp.Dim("n", at_most=ctas * columns),)
        load, work = tp.Role(warps=1), tp.Role(warps=warps)
        cluster = {"n": ctas}  # noqa: RUF012
        weights = tp.BarrierRing(producer=load, consumer=work, per="cta")  # loaded once a CTA
        weight = tp.TmaLoadStage("n", tile=(columns,), ring=weights)
        ring = tp.BarrierRing(producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(rows, columns), ring=ring)
        residual = tp.TmaLoadStage("m n", tile=(rows, columns), ring=ring)
        y = tp.TmaStoreStage("m n", tile=(rows, columns), role=work, stages=buffers)
        h = tp.TmaStoreStage("m n", tile=(rows, columns), role=work, stages=buffers)
        # a row lies in several warps and CTAs
        across = tp.ReductionScratch(work, rows=rows, group=tp.MulticastGroup("n"))

        @load.before.jit
        def fill_weights(self, k):
            with k.weights.produce() as slot:
                slot.weight.load(n=k.rank("n"))  # this CTA's part

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)
                slot.residual.load(tile)

        @work.jit
        def normalize(self, k, tile):
            with k.ring.consume() as slot:
                h = slot.x.read() + slot.residual.read()
            k.h.store(tile, h)
            mean = tp.math.row_sum(h * h) / k.extent("n")  # beyond the last column, there are zeros
            k.y.store(tile, h * tp.math.rsqrt(mean + eps) * k.weights.weight.read(columns_of=h))

    return RmsNorm()


def plain_rmsnorm_of(
    columns: int,
    rows: int = 1,
    warps: int = 4,
    ctas: int = 1,
    length: int | None = None,
    share: int | None = None,
    held: bool = False,
) -> tp.Schedule:
    """The same without a residual. Of rows of one *length*, each CTA takes one tile, as many as *share* says are on a
    multiprocessor, and threads store. A row is read again when its mean square is known, or *held* in registers."""

    hint = READ if length else None

    class PlainRmsNorm(tp.Schedule):
        """y[m, n] = x[m, n] / sqrt(mean over n of x[m, n]^2 + 1e-6) * weight[n]."""

        relations = (tp.Dim("n", size=length) if length else tp.Dim("n", at_most=ctas * columns),)
        tiles = tp.tiles.GridTiles(ctas=share) if length else tp.tiles.PersistentTiles()
        load, work = tp.Role(warps=1), tp.Role(warps=warps)
        cluster = {"n": ctas}  # noqa: RUF012
        ring = tp.BarrierRing(1 if length else None, producer=load, consumer=work)
        if rows == 1 and length == ctas * columns:  # one instruction each, where boxes take many
            x = tp.BulkLoadStage("m n", tile=(columns,), ring=ring, l2_hint=hint)
            weight = tp.BulkLoadStage("n", tile=(columns,), ring=ring)
        else:
            x = tp.TmaLoadStage("m n", tile=(rows, columns), ring=ring, l2_hint=hint)
            weight = tp.TmaLoadStage("n", tile=(columns,), ring=ring)
        y = (tp.ThreadStoreStage if length else tp.TmaStoreStage)("m n", tile=(rows, columns), role=work)
        across = tp.ReductionScratch(work, rows=rows, group=tp.MulticastGroup("n"))

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)
                slot.weight.load(tile)

        @work.jit
        def normalize(self, k, tile):
            with k.ring.consume() as slot:
                h = slot.x.read()
                scale = tp.math.rsqrt(tp.math.row_sum(h * h) / k.extent("n") + 1e-6)
                h = h if held else slot.x.read()  # again: meanwhile, the row needs no registers
                k.y.store(tile, h * scale * slot.weight.read(columns_of=h))

    return PlainRmsNorm()


def long_rmsnorm_of(columns: int, warps: int = 8, ctas: int = 16, share: int = 2, each: int = 4) -> tp.Schedule:
    """The same of rows of *ctas* x *columns* elements: a cluster takes *each* of them, with the weight loaded once."""

    class LongRmsNorm(tp.Schedule):
        """y[m, n] = x[m, n] / sqrt(mean over n of x[m, n]^2 + 1e-6) * weight[n]."""

        relations = (tp.Dim("n", size=ctas * columns),)
        tiles = tp.tiles.GridTiles(ctas=share, each=each)
        load, work = tp.Role(warps=1), tp.Role(warps=warps)
        cluster = {"n": ctas}  # noqa: RUF012
        weights = tp.BarrierRing(producer=load, consumer=work, per="cta")
        weight = tp.BulkLoadStage("n", tile=(columns,), ring=weights)
        ring = tp.BarrierRing(2, producer=load, consumer=work)
        x = tp.BulkLoadStage("m n", tile=(columns,), ring=ring, l2_hint=READ)
        y = tp.ThreadStoreStage("m n", tile=(1, columns), role=work)
        across = tp.ReductionScratch(work, group=tp.MulticastGroup("n"))

        @load.before.jit
        def fill_weights(self, k):
            with k.weights.produce() as slot:
                slot.weight.load(n=k.rank("n"))

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def normalize(self, k, tile):
            with k.ring.consume() as slot:
                h = slot.x.read()
                scale = tp.math.rsqrt(tp.math.row_sum(h * h) / k.extent("n") + 1e-6)
                h = slot.x.read()  # again: meanwhile, the row needs no registers
                k.y.store(tile, h * scale * k.weights.weight.read(columns_of=h))

    return LongRmsNorm()


def main() -> None:
    gpu = torch.cuda.is_available()
    rows, columns = (2048, 32768) if gpu else (6, 4000)
    norm = rmsnorm_of(8192, ctas=4) if gpu else rmsnorm_of(1024, ctas=4)
    print(norm.explain())
    print(norm.check())
    device = "cuda" if gpu else "cpu"
    x, residual, weight = (
        torch.randn(shape, device=device).to(torch.bfloat16) for shape in ((rows, columns), (rows, columns), (columns,))
    )
    y, _ = norm(weight=weight, x=x, residual=residual)
    h = x.float() + residual.float()
    want = h * torch.rsqrt(h.square().mean(1, keepdim=True) + 1e-6) * weight.float()
    error = ((y.float() - want).abs() / (want.abs() + 1)).max().item()
    print(f"\n{rows} x {columns} on {'the GPU' if gpu else 'the CPU model'}: off by at most {error:.1e}")
    if error > 1e-2:
        sys.exit("the result is wrong")


if __name__ == "__main__":
    main()
