"""An fp8 GEMM with a scale for each 128 x 128 block of b and each 1 x 128 piece of a row of a, as DeepSeek-V3 trains with.

python examples/gemm_block_scaled.py     on the GPU if there is one, else on the CPU model of the hardware
"""

import sys

import torch

import tmapipe as tp

BLOCK = 128


class BlockScaledGemm(tp.Schedule):
    """d[m, n] = sum over blocks of k: sa[block, m] sb[n / 128, block] (a b^T within the block)."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=2)
    relations = (tp.Dim("kb", of="k", per=BLOCK), tp.Dim("nb", of="n", per=BLOCK))
    ring = tp.BarrierRing(producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(128, BLOCK), ring=ring, dtype="fp8_e4m3")
    b = tp.TmaLoadStage("n k", tile=(BLOCK, BLOCK), ring=ring, dtype="fp8_e4m3")
    sa = tp.TmaLoadStage("kb m", tile=(128,), ring=ring, dtype="fp32")
    sb = tp.TmaLoadStage("nb kb", tile=(4,), ring=ring, dtype="fp32")  # 16 bytes: of four blocks
    mma = tp.Wgmma(a, b, in_flight=0)
    d = tp.TmaStoreStage("m n", source=mma, dtype="bf16")

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.b.load(tile, k=step)
                slot.sa.load(tile, kb=step)
                slot.sb.load(nb=tile.n, kb=step // 4)

    @math.jit
    def multiply(self, k, tile):
        total = k.full("mma", 0.0)
        for step in range(k.steps("a", "k")):
            with k.ring.consume() as slot:
                with k.mma.accumulate() as acc:
                    acc.add(slot.a, slot.b)
                scale = slot.sa.read(rows_of=total) * slot.sb.read(at=step % 4)
            total = total + acc.values() * scale
        k.d.store(tile, total)


def quantized(x: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x in fp8, and one scale for each block of *rows* x 128 elements, [rows of blocks, blocks of a row]."""
    m, k = x.shape
    padded = torch.nn.functional.pad(x, (0, -k % BLOCK, 0, -m % rows))
    blocks = padded.unflatten(0, (-1, rows)).unflatten(2, (-1, BLOCK))
    scales = blocks.abs().amax((1, 3)) / 448
    return (blocks / scales[:, None, :, None]).flatten(2, 3).flatten(0, 1)[:m, :k].to(torch.float8_e4m3fn), scales


def main() -> None:
    gemm = BlockScaledGemm()
    print(gemm.explain())
    print(gemm.check())
    gpu = torch.cuda.is_available()
    m, n, k = (4096, 4096, 4096) if gpu else (200, 256, 1024)
    a, b = (torch.randn(rows, k, device="cuda" if gpu else "cpu") for rows in (m, n))
    (qa, sa), (qb, sb) = quantized(a, 1), quantized(b, BLOCK)
    d = gemm(qa, qb, sa.T.contiguous(), sb)
    want = a @ b.T
    error = ((d.float() - want).norm() / want.norm()).item()
    print(f"\n{m} x {n} x {k} on {'the GPU' if gpu else 'the CPU model'}: relative error {error:.1e}")
    if error > 5e-2:
        sys.exit("the result is wrong")


if __name__ == "__main__":
    main()
