"""A pipelined copy, written with tmapipe's objects: one warp loads tiles into a ring, another stores them.

python examples/stream_copy.py     on the GPU if there is one, else on the CPU model of the hardware
"""

import sys

import torch

import tmapipe as tp


class Copy(tp.Schedule):
    """Copies x to y through a ring of shared-memory tiles."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(stages=4, producer=load, consumer=store)
    x = tp.TmaLoadStage(tile=(64, 128), ring=ring)
    y = tp.TmaStoreStage(source=x)  # stores straight from the loaded slot

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:  # wait until the slot is free, arm its bytes
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:  # wait for the bytes ... release the slot once the engine has read it
            slot.y.store(tile)


def vector_copy(words: int = 1024, ctas: int = 10, l2_hint: str | None = None) -> tp.Schedule:
    """Copies vectors of whole pieces of *words* words of 32 bits. A CTA takes one, and *ctas* CTAs share a multiprocessor.

    Pieces need no descriptors, which the first CTAs would wait for: that is 1 % of 64 MiB.
    """

    class VectorCopy(tp.Schedule):
        """y[n] = x[n]."""

        tiles = tp.tiles.GridTiles(ctas=ctas)
        load, store = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(1, producer=load, consumer=store)
        x = tp.BulkLoadStage("n", tile=(words,), ring=ring, dtype="int32", l2_hint=l2_hint)
        y = tp.BulkStoreStage(source=x, stages=0)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store(tile)

    return VectorCopy()


def main() -> None:
    copy = Copy()
    print(copy.explain())
    gpu = torch.cuda.is_available()
    shape = (16384, 8192) if gpu else (300, 1000)
    x = torch.randn(shape, device="cuda" if gpu else "cpu").to(torch.bfloat16)
    y = copy(x)
    print(f"\n{tuple(shape)} on {'the GPU' if gpu else 'the CPU model'}: y == x is {torch.equal(x, y)}")
    if not torch.equal(x, y):
        sys.exit("the copy differs")


if __name__ == "__main__":
    main()
