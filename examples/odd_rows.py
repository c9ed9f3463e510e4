"""A GEMM whose rows of `a` begin where TMA cannot start: threads copy that operand. ``python examples/odd_rows.py``"""

import torch

import tmapipe as tp


class OddGemm(tp.Schedule):
    """d = a b^T of bf16. Rows of a are a multiple of 4 bytes apart (TMA needs 16), and so is its first element."""

    copy, load, math = tp.Role(warps=4), tp.Role(warps=1), tp.Role(warpgroups=2)
    ring = tp.BarrierRing(4, producer=(copy, load), consumer=math)
    a = tp.CpAsyncLoadStage("m k", tile=(128, 64), ring=ring, vector=4, loader=copy)
    b = tp.TmaLoadStage("n k", tile=(128, 64), ring=ring, loader=load)  # in the same slots, on the same mbarriers
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)

    @copy.jit
    def fill_a(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)

    @load.jit
    def fill_b(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.b.load(tile, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("a", "k")):
                with (
                    k.ring.consume() as slot
                ):  # waits for copies and loads, then fences: wgmma reads by the async proxy
                    acc.add(slot.a, slot.b)
        k.d.store(tile, acc)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    whole = torch.randn(200, 106, device=device).bfloat16()
    a = whole[:, 2:102]  # 212 bytes from row to row, from byte 4 on
    b = torch.randn(136, 104, device=device).bfloat16()[:, :100]
    d = OddGemm()(a, b)
    expected = a.float() @ b.float().T
    print(f"relative error {((d.float() - expected).norm() / expected.norm()).item():.1e}")
    print(OddGemm().check())
