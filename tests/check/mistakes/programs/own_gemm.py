import tmapipe as tp
from tmapipe.schedules import Gemm


class Halved(Gemm):
    """d = a b^T / 2, of k-tiles from the last one to the first."""

    def __init__(self):
        super().__init__((64, 64, 64), (1, 1), stages=3)

    @Gemm.load.jit
    def fill(self, k, tile):
        steps = self.tile_slots(k, tile)
        for step in range(steps):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=steps - 1 - step)
                slot.b.load(tile, k=steps - 1 - step)

    @Gemm.math.jit
    def multiply(self, k, tile):
        super().multiply(k, tile)

    def store(self, k, tile, sums):
        k.d.store(tile, sums.accumulators, lambda acc: tp.math.maximum(acc, 0.0) / 2)


Program = Halved
