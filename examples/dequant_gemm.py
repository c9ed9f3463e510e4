"""A GEMM with weights of 8 or 4 bits: one warp loads them, a warpgroup makes bf16 of them, two multiply.

Of 4 bits, a byte holds two: of each 64 elements along k, byte j has element j in its low half and j + 32 in its high half.

python examples/dequant_gemm.py     on the GPU if there is one, else on the CPU model of the hardware
"""

import sys

import torch

import tmapipe as tp


def dequant_gemm(bits: int = 8) -> tp.Schedule:
    """d[m, n] = scale[n] * sum over k of x[m, k] w[n, k], with integers of *bits* bits in w."""

    class DequantGemm(tp.Schedule):
        """load -> dequantize -> multiply."""

        relations = (tp.Dim("bytes", of="k", per=8 // bits),)
        load, dequantize, work = tp.Role(warps=1), tp.Role(warpgroups=1), tp.Role(warpgroups=2)
        ring = tp.BarrierRing(chain=(load, dequantize, work))
        once = tp.BarrierRing(1, producer=load, consumer=work)
        x = tp.TmaLoadStage("m k", tile=(128, 64), ring=ring)
        packed = tp.TmaLoadStage("n bytes", tile=(128, 8 * bits), ring=ring, dtype="int8")
        w = tp.SharedStage("n k", tile=(128, 64), ring=ring, writer=dequantize, dtype="bf16")
        scale = tp.TmaLoadStage("n", tile=(128,), ring=once, dtype="fp32")
        mma = tp.Wgmma(x, w)
        d = tp.TmaStoreStage("m n", source=mma)

        @load.jit
        def fill(self, k, tile):
            for step in range(k.steps("x", "k")):
                with k.ring.produce() as slot:
                    slot.x.load(tile, k=step)
                    slot.packed.load(tile, bytes=step)
            with k.once.produce() as slot:
                slot.scale.load(tile)

        @dequantize.jit
        def widen(self, k, tile):
            for _ in range(k.steps("x", "k")):
                with k.ring.consume() as slot:
                    self.spread(slot, slot.packed.read())

        def spread(self, slot, values):
            for part in range(8 // bits):  # the sign of each goes to the top, and comes down again
                slot.w.write((values << 32 - bits * (part + 1)) >> 32 - bits, at=(0, 32 * part))

        @work.jit
        def multiply(self, k, tile):
            with k.mma.accumulate() as acc:
                for _ in range(k.steps("x", "k")):
                    with k.ring.consume() as slot:
                        acc.add(slot.x, slot.w)
            with k.once.consume() as slot:
                values = acc.values()
                values = values * slot.scale.read(columns_of=values)
            k.d.store(tile, values)

    return DequantGemm()


def packed(w: torch.Tensor, bits: int) -> torch.Tensor:
    """Integers w[n, k] of *bits* bits as the schedule takes them; k is a multiple of 64."""
    if bits == 8:
        return w.to(torch.int8)
    low, high = w.to(torch.int32).unflatten(1, (-1, 2, 32)).unbind(2)
    return (low & 15 | high << 4).to(torch.int8).flatten(1)


def main() -> None:
    gpu = torch.cuda.is_available()
    m, n, k = (4096, 4096, 4096) if gpu else (200, 264, 192)
    for bits in (8, 4):
        gemm = dequant_gemm(bits)
        print(gemm.check())
        x = torch.randn((m, k), device="cuda" if gpu else "cpu").to(torch.bfloat16)
        w = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (n, k), device=x.device)
        scale = torch.rand(n, device=x.device)
        d = gemm(x=x, packed=packed(w, bits), scale=scale)
        want = (x.float() @ w.float().T) * scale
        error = ((d.float() - want).norm() / want.norm()).item()
        print(f"\nint{bits}, {m} x {n} x {k} on {'the GPU' if gpu else 'the CPU model'}: relative error {error:.1e}")
        if error > 4e-3:
            sys.exit("the result is wrong")


if __name__ == "__main__":
    main()
