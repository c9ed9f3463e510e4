"""Attention, forward: softmax(q k^T / sqrt(d)) v for each head, causal or not, with heads that share keys and values.

Two warpgroups have 64 queries each. While the tensor core multiplies a block of values, the softmax of the next block of keys
is found on registers, and its product with the values takes it from there.

python examples/attention.py     on the GPU if there is one, else on the CPU model of the hardware
"""

import math
import sys

import torch

import tmapipe as tp


def attention_of(d: int = 128, causal: bool = False) -> tp.Schedule:
    """Of heads of *d* elements. q and o: (batch, groups, heads of a group, queries, d), k and v: (batch, groups, keys, d)."""
    scale = math.log2(math.e) / math.sqrt(d)

    class Attention(tp.Schedule):
        """o = softmax(q k^T / sqrt(d)) v. Causal: query i sees keys 0 to i, and there are as many keys as queries."""

        relations = (tp.Dim("d", size=d), *((tp.Dim("s", of="m"),) if causal else ()))
        load, work = tp.Role(warps=1, registers=24), tp.Role(warpgroups=2, registers=240)
        queries = tp.BarrierRing(1, producer=load, consumer=work)
        keys = tp.BarrierRing(2, producer=load, consumer=work)
        values = tp.BarrierRing(2, producer=load, consumer=work)
        q = tp.TmaLoadStage("b g h m d", tile=(128, d), ring=queries)
        k = tp.TmaLoadStage("b g s d", tile=(128, d), ring=keys)
        v = tp.TmaLoadStage("b g s d", tile=(128, d), ring=values)
        qk = tp.Wgmma(q, k, in_flight=0)
        pv = tp.Wgmma(qk, v)  # its first operand comes from registers
        o = tp.TmaStoreStage("b g h m d", source=pv)
        order = tp.Turnstile(work)  # one warpgroup's softmax runs under the other's matmuls
        tiles = tp.tiles.DynamicTiles(tp.tiles.Backwards())  # with most keys first

        def last(self, k, tile):  # block of keys that the tile's queries see
            return tile.m if causal else k.steps("k", "s") - 1

        def seen(self, k, tile, scores):  # of that block; they see all of the others
            keys = scores.columns + 128 * self.last(k, tile)
            return keys <= scores.rows + 128 * tile.m if causal else keys < k.extent("s")

        @load.jit
        def fill(self, k, tile):
            last = self.last(k, tile)
            with k.queries.produce() as slot:
                slot.q.load(tile)
            with k.keys.produce() as slot:
                slot.k.load(tile, s=last)
            for i in range(last):
                with k.keys.produce() as slot:
                    slot.k.load(tile, s=last - 1 - i)
                with k.values.produce() as slot:
                    slot.v.load(tile, s=last - i)
            with k.values.produce() as slot:
                slot.v.load(tile, s=0)

        @work.jit
        def attend(self, k, tile):
            with k.pv.accumulate(empty=False) as out:
                with k.queries.consume() as own:
                    with k.order.turn(), k.keys.consume() as slot:
                        scores = k.qk.start(own.q, slot.k).wait().values()
                    scores = tp.math.where(self.seen(k, tile, scores), scores, float("-inf"))
                    top = tp.math.row_max(scores)
                    weights = tp.math.exp2(scores * scale - top * scale)
                    total = tp.math.row_sum(weights)
                    for _ in range(self.last(k, tile)):
                        with k.order.turn():
                            with k.keys.consume() as slot:
                                block = k.qk.start(own.q, slot.k)
                            with k.values.consume() as slot:
                                product = out.start(weights, slot.v)
                        scores = block.wait().values()
                        higher = tp.math.maximum(top, tp.math.row_max(scores))
                        fewer = tp.math.exp2((top - higher) * scale)
                        weights = tp.math.exp2(scores * scale - higher * scale)
                        total, top = total * fewer + tp.math.row_sum(weights), higher
                        product.wait().scale(fewer)
                with k.values.consume() as slot:
                    out.start(weights, slot.v).wait()
                out.scale(1 / total)
            k.o.store(tile, out)

    return Attention()


def main() -> None:
    gpu = torch.cuda.is_available()
    heads, groups, queries, keys = (16, 4, 4096, 4096) if gpu else (4, 2, 300, 200)
    attention = attention_of(d=128)
    print(attention.explain())
    print(attention.check())
    q = torch.randn((1, groups, heads // groups, queries, 128), device="cuda" if gpu else "cpu").to(torch.bfloat16)
    k, v = (torch.randn((1, groups, keys, 128), device=q.device).to(torch.bfloat16) for _ in range(2))
    o = attention(q, k, v)
    scores = q.float() @ k.float().unsqueeze(2).mT / math.sqrt(128)
    error = (o.float() - scores.softmax(-1) @ v.float().unsqueeze(2)).abs().max().item()
    print(f"\n{heads} heads, {queries} x {keys} on {'the GPU' if gpu else 'the CPU model'}: off by at most {error:.1e}")
    if error > 2e-2:
        sys.exit("the result is wrong")


if __name__ == "__main__":
    main()
