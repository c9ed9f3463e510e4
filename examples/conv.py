"""A 3 x 3 convolution as an implicit GEMM: NHWC, padded with zeros by the TMA engine. ``python examples/conv.py``"""

import numpy as np

import tmapipe as tp


def conv_of(box: tuple[int, int, int] = (1, 8, 16), channels: int = 128, warpgroups: int = 2) -> tp.Schedule:
    """Tiles of a box of (images, height, width) pixels and *channels* of the output.

    Boxes that divide the images leave nothing to compute in vain: of 64 images of 56 x 56 pixels and 64 channels, (4, 8, 8).
    """
    images, height, width = box

    class Conv(tp.Schedule):
        """d[n, h, w, o] = sum over r, s, c of x[n, h + r - 1, w + s - 1, c] f[r, s, o, c], of bf16."""

        relations = (tp.Dim("r", size=3), tp.Dim("s", size=3))
        load, math = tp.Role(warps=1), tp.Role(warpgroups=warpgroups)
        ring = tp.BarrierRing(producer=load, consumer=math)
        x = tp.TmaLoadStage("n h w c", tile=(*box, 64), ring=ring)  # the pixels are the rows of a matrix
        f = tp.TmaLoadStage("r s o c", tile=(channels, 64), ring=ring)
        mma = tp.Wgmma(x, f)
        d = tp.TmaStoreStage("n h w o", source=mma, tile=(*box, channels))

        @load.jit
        def fill(self, k, tile):
            for r in range(k.extent("r")):
                for s in range(k.extent("s")):
                    for c in range(k.steps("x", "c")):
                        with k.ring.produce() as slot:
                            n, h, w = tile.n * images, tile.h * height + r - 1, tile.w * width + s - 1
                            slot.x.load_from(n, h, w, c * 64)
                            slot.f.load(tile, r=r, s=s, c=c)

        @math.jit
        def multiply(self, k, tile):
            with k.mma.accumulate() as acc:
                for _ in range(k.extent("r") * k.extent("s") * k.steps("x", "c")):
                    with k.ring.consume() as slot:
                        acc.add(slot.x, slot.f)
            k.d.store(tile, acc)

    return Conv()


def expected(x, f):
    """What d should be, by NumPy, in fp32."""
    x, f = x.astype(np.float32), f.astype(np.float32)
    _, h, w, _ = x.shape
    wide = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return sum(wide[:, r : r + h, s : s + w] @ f[r, s].T for r in range(3) for s in range(3))


if __name__ == "__main__":
    made = np.random.default_rng(0)
    x, f = (made.standard_normal(shape).astype(tp.dtypes.bf16.numpy) for shape in ((2, 9, 20, 72), (3, 3, 136, 72)))
    np.testing.assert_allclose(conv_of()(x, f).astype(np.float32), expected(x, f), rtol=2e-2, atol=0.5)
    print(conv_of().check())
