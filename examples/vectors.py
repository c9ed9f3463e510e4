"""y += 2 x for vectors, without a descriptor: bulk copies in, and reductions out. ``python examples/vectors.py``"""

import torch

import tmapipe as tp


class Axpy(tp.Schedule):
    """y[n] += 2 x[n], which the engine adds. One role asks for pieces in L2 that another one loads later."""

    ask, load, work = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=4)
    pace = tp.BarrierRing(8, producer=ask, consumer=load)
    ring = tp.BarrierRing(4, producer=load, consumer=work)
    x = tp.BulkLoadStage("n", tile=(4096,), ring=ring)
    ahead = tp.L2Stage(x, ring=pace)  # as many pieces ahead as `pace` has slots
    y = tp.BulkStoreStage("n", tile=(4096,), role=work, reduce="add")

    @ask.jit
    def look_ahead(self, k, tile):
        with k.pace.produce() as slot:
            slot.ahead.prefetch(tile)

    @load.jit
    def fill(self, k, tile):
        with k.pace.consume(), k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def scale(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() * 2
        k.y.store(tile, values)


if __name__ == "__main__":
    x = torch.randn(10 * 4096, device="cuda" if torch.cuda.is_available() else "cpu")
    y = torch.ones_like(x)
    Axpy()(x, out=y)
    print(f"right is {torch.equal(y, 1 + 2 * x)}")
    print(Axpy().check())
