"""Attention of one query a head to keys and values in pages, as when text is generated. ``python examples/paged_attention.py``

A table says which pages a sequence has, another one how many keys. Heads that share keys and values are rows of one tile.
"""

import math
import sys

import torch

import tmapipe as tp

PAGE, BLOCK = 16, 64  # keys


def paged_attention_of(d: int = 128) -> tp.Schedule:
    """Of heads of *d* elements. q and o: (batch, groups, heads of a group, d), k and v: (pages, groups, PAGE, d)."""
    scale = math.log2(math.e) / math.sqrt(d)

    class PagedAttention(tp.Schedule):
        """o = softmax(q k^T / sqrt(d)) v for each sequence. In the table, -1 stands for pages that it lacks."""

        relations = (tp.Dim("d", size=d), tp.Dim("t", size=PAGE))
        load, work = tp.Role(warps=1), tp.Role(warpgroups=1)
        queries = tp.BarrierRing(1, producer=load, consumer=work)
        ring = tp.BarrierRing(4, producer=load, consumer=work)
        q = tp.TmaLoadStage("b g h d", tile=(64, d), ring=queries)
        k = tp.TmaLoadStage("p g t d", tile=(BLOCK, d), ring=ring).in_parts(BLOCK // PAGE)
        v = tp.TmaLoadStage("p g t d", tile=(BLOCK, d), ring=ring).in_parts(BLOCK // PAGE)
        pages, lengths = tp.Table("b i"), tp.Table("b")
        qk = tp.Wgmma(q, k, in_flight=0)
        pv = tp.Wgmma(qk, v)  # its first operand comes from registers
        o = tp.TmaStoreStage("b g h d", source=pv)

        @load.jit
        def fill(self, k, tile):
            with k.queries.produce() as slot:
                slot.q.load(tile)
            for block in range((k.lengths.entry(tile.b) + BLOCK - 1) // BLOCK):
                with k.ring.produce() as slot:
                    for i in range(BLOCK // PAGE):
                        page = k.pages.entry(tile.b, block * (BLOCK // PAGE) + i)
                        slot.k.load_part(i, tile, p=page, t=0)
                        slot.v.load_part(i, tile, p=page, t=0)

        @work.jit
        def attend(self, k, tile):
            length = k.lengths.entry(tile.b)
            top, total = k.full("qk", -1e30, "rows"), k.full("qk", 0.0, "rows")
            with k.pv.accumulate() as out, k.queries.consume() as own:
                for block in range((length + BLOCK - 1) // BLOCK):
                    with k.ring.consume() as slot:
                        scores = k.qk.start(own.q, slot.k).wait().values()
                        scores = tp.math.where(scores.columns < length - BLOCK * block, scores, -1e30)
                        higher = tp.math.maximum(top, tp.math.row_max(scores))
                        out.scale(tp.math.exp2((top - higher) * scale))
                        weights = tp.math.exp2((scores - higher) * scale)
                        out.start(weights, slot.v).wait()
                    total = total * tp.math.exp2((top - higher) * scale) + tp.math.row_sum(weights)
                    top = higher
                out.scale(1 / tp.math.maximum(total, 1e-30))
            k.o.store(tile, out)

    return PagedAttention()


def main() -> None:
    gpu = torch.cuda.is_available()
    batch, groups, heads, most = (64, 8, 8, 4096) if gpu else (3, 2, 5, 200)
    device, d = "cuda" if gpu else "cpu", 128
    lengths = torch.randint(1, most + 1, (batch,), dtype=torch.int32)
    needed = (lengths + PAGE - 1) // PAGE
    pages = torch.full((batch, most // PAGE + 1), -1, dtype=torch.int32)
    free = torch.randperm(int(needed.sum()), dtype=torch.int32).split(needed.tolist())
    for row, own in zip(pages, free, strict=True):
        row[: len(own)] = own
    q = torch.randn(batch, groups, heads, d, device=device).bfloat16()
    k, v = (torch.randn(int(needed.sum()), groups, PAGE, d, device=device).bfloat16() for _ in range(2))
    attention = paged_attention_of(d)
    print(attention.check())
    o = attention(q, k, v, pages.to(device), lengths.to(device))
    error = 0.0
    for b, (own, length) in enumerate(zip(free, lengths.tolist(), strict=True)):
        keys, values = (x[own.to(device).long()].transpose(0, 1).flatten(1, 2)[:, :length].float() for x in (k, v))
        want = (q[b].float() @ keys.mT / math.sqrt(d)).softmax(-1) @ values
        error = max(error, (o[b].float() - want).abs().max().item())
    print(
        f"\n{batch} sequences of up to {most} keys on {'the GPU' if gpu else 'the CPU model'}: off by at most {error:.1e}"
    )
    if error > 2e-2:
        sys.exit("the result is wrong")


if __name__ == "__main__":
    main()
