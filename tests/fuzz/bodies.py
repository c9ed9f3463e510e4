"""Third kind: schedules and bodies as users write them, from a few right ones in which a word or two is replaced."""

from __future__ import annotations

import linecache
import random
import re
from typing import Any

import numpy as np

import tmapipe as tp
from tests.fuzz.junk import junk
from tests.fuzz.junk import said as as_text
from tests.fuzz.outcomes import Call, Unsafe, Wrong
from tmapipe.errors import DeadlockError, HazardError

__all__ = ["call"]

THROUGH_SLOTS = """
class Made(tp.Schedule):
    load, work, store = tp.Role(<warps>), tp.Role(<warps>), tp.Role(<warps>)
    ring = tp.BarrierRing(<stages>, <chain>)
    x = tp.TmaLoadStage(<dims>, tile=<tile>, ring=<ring>, <type><more>)
    y = tp.TmaStoreStage(source=<x>, stages=<pending>)<cluster>

    @load.jit
    def fill(self, k, tile):
        <produce>
            <load>

    @<work>.jit
    def change(self, k, tile):
        <consume>
            slot.x.write(<values>)

    @store.jit
    def drain(self, k, tile):
        <consume>
            <store>
"""
THROUGH_REGISTERS = """
class Made(tp.Schedule):
    load, work = tp.Role(<warps>), tp.Role(<warps>)
    ring = tp.BarrierRing(<stages>, <ends>)
    x = tp.TmaLoadStage(<dims>, tile=<tile>, ring=<ring>, <type><more>)
    y = tp.TmaStoreStage(<dims>, tile=<tile>, role=<work>, stages=<stages>, <type>)<cluster>

    @load.jit
    def fill(self, k, tile):
        <produce>
            <load>

    @<work>.jit
    def change(self, k, tile):
        <consume>
            values = <values>
        k.y.store(tile, values)
"""
MATMUL = """
class Made(tp.Schedule):
    load, work = tp.Role(<warps>), tp.Role(<warpgroups>)
    ring = tp.BarrierRing(<stages>, <ends>)
    x = tp.TmaLoadStage("m k", tile=<tile>, ring=<ring>, <type>)
    w = tp.TmaLoadStage("n k", tile=<tile>, ring=<ring>, <type>)
    mma = tp.Wgmma(<x>, w)
    y = tp.TmaStoreStage(<dims>, source=<mma>, stages=<stages>, <type>)<cluster>

    @load.jit
    def fill(self, k, tile):
        for step in <steps>:
            <produce>
                <loads>

    @<work>.jit
    def change(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in <steps>:
                <consume>
                    <add>
        k.y.store(tile, acc, <epilogue>)
"""
VALUES = """
class Made(tp.Schedule):<grid>
    load, work = tp.Role(<warps>), tp.Role(<threads>)
    weights = tp.BarrierRing(<once>)
    w = tp.TmaLoadStage("i n", tile=(8, 64), ring=weights, <type>)
    ring = tp.BarrierRing(<stages>, <ends>)
    x = tp.TmaLoadStage(<dims>, tile=(8, 64), ring=<ring>, <type>)
    y = tp.TmaStoreStage(<dims>, tile=(8, 64), role=<work>, <type>)
    mine = tp.Scratch(<work>, <scratch>)
    across = tp.ReductionScratch(<work>, <across>)<cluster>

    @load.before.jit
    def begin(self, k):
        <hold>
            <weight>

    @load.jit
    def fill(self, k, tile):
        <produce>
            <load>

    @<work>.jit
    def change(self, k, tile):
        <consume>
            v = <read>
        w = <held>
        v = <product>
        <pass>
        <reduce>
        <keep>
"""
WINDOW = """
class Made(tp.Schedule):<grid>
    load, work = tp.Role(<warps>), tp.Role(<threads>)
    ring = tp.BarrierRing(<stages>, <ends>)
    x = tp.TmaLoadStage(<dims>, tile=<halo>, ring=<ring>, <type><more>)
    y = tp.TmaStoreStage(<dims>, tile=(8, 64), role=<work>, <type>)

    @load.jit
    def fill(self, k, tile):
        <produce>
            <corner>

    @<work>.jit
    def change(self, k, tile):
        <consume>
            here = <part>
            above = <like>
        <carry>
        k.y.store(tile, <sum>)
"""
GATHER = """
class Made(tp.Schedule):<grid>
    load, store = tp.Role(<warps>), tp.Role(<warps>)
    ring = tp.BarrierRing(<stages>, <last>)
    x = tp.TmaLoadStage(<dims>, tile=(8, 64), ring=<ring>, <type>)<cut>
    at = tp.Table(<along>)
    y = tp.TmaStoreStage(<rows>, source=<x>)<cluster>

    @load.jit
    def fill(self, k, tile):
        <produce>
            for i in <eight>:
                <row>

    @store.jit
    def drain(self, k, tile):
        <consume>
            <store>
"""
CHAINED = """
class Made(tp.Schedule):<grid>
    load, work = tp.Role(<warps>), tp.Role(<warpgroups>)
    ring = tp.BarrierRing(<stages>, <ends>)
    x = tp.TmaLoadStage("m k", tile=(64, 64), ring=<ring>, <type>)
    w = tp.TmaLoadStage("h k", tile=(64, 64), ring=ring, <type>)
    u = tp.TmaLoadStage("n h", tile=(64, 64), ring=ring, <type>)
    first = tp.Wgmma(x, w, <flight>)
    second = tp.Wgmma(<first>, u, <flight>)
    y = tp.TmaStoreStage(<dims>, source=<second>, <type>)

    @load.jit
    def fill(self, k, tile):
        <produce>
            <three>

    @<work>.jit
    def change(self, k, tile):
        <consume>
            one = <start>
            <wait>
            v = <scores>
            two = <chained>
            d = <sums>
        k.y.store(tile, d)
"""
#: What may stand in a place, the right text first. "-" stands for nothing.
_WORDS = r"""
warps: warps=1 | warps=2 | warps=4 | warps=0 | warps=JUNK | - | warpgroups=1 | warps=3 | registers=JUNK, warps=1 |
    warps=4, teams=2 | warps=33 | warps=1, teams=JUNK
warpgroups: warpgroups=1 | warpgroups=2 | warps=4 | warpgroups=JUNK | warpgroups=2, teams=2 | warpgroups=5
stages: 2 | 3 | 1 | None | 0 | JUNK | 100 | 10**6
chain: chain=(load, work, store) | chain=(load, store, work) | producer=load, consumer=(work, store) | chain=JUNK |
    producer=JUNK, consumer=store | chain=(load, work) | chain=(load, work, store, load) |
    chain=(load, tp.Role(warps=1), store)
ends: producer=load, consumer=work | producer=work, consumer=load | producer=load, consumer=JUNK | producer=load |
    chain=(load, work) | producer=load, consumer=tp.Role(warps=1) | producer=JUNK, consumer=work
dims: "m n" | "n m" | "m" | "l m n" | "m m" | JUNK | ["m", "n"]
tile: (64, 64) | (64, 64) | (64, 32) | (32, 64) | (64,) | (64, 63) | (1, 64) | (300, 64) | (64, 1024) | JUNK | (0, 64)
ring: ring | ring | tp.BarrierRing(2, producer=load, consumer=load) | JUNK |
    tp.BarrierRing(2, producer=tp.Role(warps=1), consumer=tp.Role(warps=1))
type: dtype="fp16" | dtype="fp16" | - | dtype="bf16" | dtype=JUNK | dtype="int8"
more: - | - | - | , swizzle=128 | , swizzle=JUNK | , l2_hint=JUNK | , outside=JUNK | , multicast=JUNK |
    , multicast=tp.MulticastGroup("n") | , loader=JUNK | , multicast=tp.MulticastGroup("q")
x: x | x | x | JUNK | ring | tp.TmaLoadStage(tile=(64, 64), ring=ring)
mma: mma | mma | x | JUNK | tp.Wgmma(x, w)
pending: 1 | 0 | 2 | 5 | JUNK
cluster: - | - | - | \n    cluster = {"n": 2} | \n    cluster = JUNK | \n    cluster = {"q": 2} |
    \n    cluster = {"n": 17} | \n    tiles = JUNK | \n    tiles = tp.tiles.DynamicTiles() | \n    arch = JUNK |
    \n    checked = JUNK
work: work | work | work | load | tp.Role(warps=1)
produce: with k.ring.produce() as slot: | with k.ring.consume() as slot: | slot = k.ring.produce()\n        if True: |
    with k.rings.produce() as slot: | for slot in k.ring.produce(): |
    while True:\n          with k.ring.produce() as slot: |
    for _ in range(2):\n          with k.ring.produce() as slot: | with k.ring.produce(JUNK) as slot:
consume: with k.ring.consume() as slot: | with k.ring.produce() as slot: | slot = k.ring.consume()\n        if True: |
    with getattr(k, 'rings', k.ring).consume() as slot: | while True:\n          with k.ring.consume() as slot: |
    for _ in range(2):\n          with k.ring.consume() as slot: | with k.ring as slot:
load: slot.x.load(tile) | slot.x.load(tile, n=JUNK) | slot.x.load() | slot.x.load_from(0, 0) |
    slot.x.load_from(JUNK, 0) | slot.x.load_from(0) | slot.x.load(m=tile.m / 2, n=0) | pass |
    slot.x.load(tile); slot.x.load(tile) | slot.y.load(tile) | slot.x.load(JUNK) | slot.x.load(tile, q=1) |
    slot.x.load(tile, n=-1) | return | yield | slot.x.load(m=10**12, n=0)
store: slot.y.store(tile) | slot.y.store() | slot.y.store(JUNK) | pass | slot.x.store(tile) |
    slot.y.store(tile, n=JUNK) | slot.y.store(tile); slot.y.store(tile) | k.y.store(tile, slot.x.read())
values: slot.x.read() * 2 | slot.x.read() + slot.x.read() | list(slot.x.read()) | 1.0 | JUNK | slot.x.read()[0] |
    max(slot.x.read()) | slot.x.read().sum() | tp.math.exp(JUNK) | tp.math.relu(slot.x.read()) | slot.y.read() |
    slot.x.read() @ slot.x.read() | slot.x.read() if slot.x.read() > 0 else 1 | sum(v for v in slot.x.read()) |
    slot.x.read() + JUNK | float(slot.x.read())
steps: range(k.steps("x", "k")) | range(1) | range(k.steps("w", "k")) | range(k.steps("x", "q")) |
    range(k.steps(JUNK, 'k')) | range(0) | JUNK | range(k.steps("x", "k") + 1)
loads: slot.x.load(tile, k=step); slot.w.load(tile, k=step) | slot.x.load(tile, k=step) |
    slot.x.load(tile); slot.w.load(tile) | slot.x.load(tile, k=step); slot.w.load(tile, k=JUNK)
add: acc.add(slot.x, slot.w) | acc.add(slot.w, slot.x) | acc.add(slot.x, JUNK) | acc.add(slot.x) | pass |
    acc.add(slot.x, slot.w); slot.x.read() | acc.values()
epilogue: None | lambda v: v * 1.0 | JUNK | lambda v: None | lambda v: v.sum() | lambda v: v[0] | lambda v: list(v) |
    lambda v, w: v | lambda v: tp.math.gelu(v) | lambda v: tp.math.where(v > 0, v, 0) | lambda v: {'y': v} |
    lambda v: {'z': v} | lambda v: 1 if v > 0 else v
grid: - | - | - | \n    over = "n m" | \n    over = JUNK | \n    relations = JUNK | \n    relations = (tp.Dim("i", size=8),) |
    \n    relations = (tp.Dim("m", of="n"),) | \n    relations = (tp.Dim("m", of="q", per=8),) | \n    over = "q" |
    \n    tiles = tp.tiles.SplitKTiles(2) | \n    tiles = tp.tiles.StreamKTiles(shares=3) |
    \n    tiles = tp.tiles.GroupedTiles(rows=8) |
    \n    relations = (tp.Dim("m", of="n", plus=2), tp.Dim("n", of="m", plus=-2)) | \n    relations = tp.Dim("i", size=8)
threads: warps=4 | warps=4 | warpgroups=1 | warps=2 | warps=3 | warps=8 | warps=4, teams=2 | warps=JUNK
once: producer=load, consumer=work, per="cta" | 1, producer=load, consumer=work, per="cta" | producer=load, consumer=work |
    2, producer=load, consumer=work, per="cta" | producer=work, consumer=load, per="cta" |
    producer=load, consumer=work, per=JUNK | chain=(load, work, load), per="cta"
scratch: tile=(8, 64), dtype="fp32" | tile=(8, 64), dtype="fp16" | tile=(64, 8), dtype="fp32" | tile=(8, 65), dtype="fp32" |
    tile=JUNK, dtype="fp32" | tile=(8, 64), dtype=JUNK | tile=(8, 64), dtype="int32" | tile=(8, 64), dtype="fp32", copies=2 |
    tile=(8, 64), dtype="fp32", copies=JUNK | tile=(4096, 64), dtype="fp32" | tile=(512,), dtype="fp32"
across: rows=8, columns=64 | rows=1 | columns=64 | rows=JUNK | rows=10**6 | columns=8 | rows=8
hold: with k.weights.produce() as slot: | with k.ring.produce() as slot: | with k.weights.consume() as slot: | if True: |
    for _ in range(2):\n          with k.weights.produce() as slot:
weight: slot.w.load(i=0, n=0) | slot.w.load() | slot.w.load(i=JUNK, n=0) | pass | slot.x.load(m=0, n=0) |
    slot.w.load(i=0, n=1) | slot.w.load(i=0, n=0); slot.w.load(i=0, n=0) | slot.w.load_from(0, 8) | slot.w.load_from(0, 3)
read: slot.x.read() | slot.x.read(tile=(4, 64)) | slot.x.read(at=0) | slot.x.read(at=JUNK) | slot.x.read(like=JUNK) |
    slot.x.read(transposed=True) | slot.x.read(rows_of=slot.x.read()) | slot.x.read(tile=JUNK) | k.weights.w.read() |
    slot.x.read(tile=(8, 64), at=(0, 0)) | slot.x.read(like=slot.x.read(), transposed=True) | slot.x.read(JUNK) | slot.x
held: k.weights.w.read() | k.w.read() | k.weights.x.read() | k.weights.w.read(like=v) | k.weights.w.read(columns_of=v) |
    k.weights.w.read(rows_of=v) | k.weights.read() | k.full("x", 1.0) | k.full("q", 1.0) | k.full("x", JUNK) | JUNK |
    k.full(JUNK, 1.0) | k.full("x", 1.0, along="rows") | k.weights.w.read(at=JUNK)
product: v * w | v * w + 0 | v @ w | v * w[0] | v * (w > 0) | v // w | v % 2 | v << 1 | v & w | tp.math.where(v, w, v) |
    tp.math.where(v > 0, v, JUNK) | tp.math.maximum(v, JUNK) | v if w is v else v * w | v * v.rows | v * v.columns |
    tp.math.cast(v, "fp16") * w | tp.math.cast(v, JUNK) | v * tp.math.cast(w, "int32") | v ** 2 | v ** JUNK | v * None |
    v.sum() | max(v, w) | (v, w) | v * 10**400 | v * float("nan") | -v * ~w | v * True | v * 2**40 | tp.math.exp(v, w)
pass: k.mine.write(v); k.sync(); v = k.mine.read(); k.sync() | k.mine.write(v); k.sync(); v = k.mine.read() |
    k.mine.write(v); v = k.mine.read(); k.sync() | k.mine.write(v); k.sync(); v = k.mine.read(like=v); k.sync() |
    k.mine.write(JUNK) | v = k.mine.read(); k.mine.write(v); k.sync() | k.mine.write(v, at=(0, 0)); k.sync() | pass |
    k.sync(JUNK) | k.sync(self.load) | k.mine.write(v > 0); k.sync(); v = k.mine.read(); k.sync() | k.mine = v |
    k.mine.copy(0).write(v); k.sync(); v = k.mine.copy(0).read(); k.sync() | k.mine.copy(JUNK).write(v) |
    k.mine.copy(1).write(v); k.sync(); v = k.mine.copy(0).read(); k.sync() | k.mine.load(tile) | k.mine.write(v, at=JUNK)
reduce: v = v + tp.math.row_sum(v) - tp.math.column_sum(v) | v = v + tp.math.row_sum(v) | v = tp.math.row_max(v) |
    v = v + tp.math.row_sum(v, inside=JUNK) | v = v + tp.math.row_sum(v, inside=k.extent("n")) | v = tp.math.row_sum(JUNK) |
    v = v + tp.math.row_sum(tp.math.row_sum(v)) | v = tp.math.column_max(v) | v = v + tp.math.row_sum(v, v) |
    v = v + tp.math.row_sum(v, inside=-1) | v = v + tp.math.row_sum(v > 0) | v = sum(v) | v = v + v.rows.rows |
    v = v + tp.math.row_sums(v, v * 2.0)[1] | v = v + tp.math.row_sums(v, JUNK)[0] | v = tp.math.row_sums() |
    v = v + tp.math.column_sum(v, inside=k.extent("m") - tile.m * 8) | v = v + k.extent(JUNK) | v = v + k.extent("q") |
    s = 0\n        for i in range(3):\n            s = s + v\n        v = s |
    s = k.full("x", 0.0)\n        for i in range(3):\n            s = s + v\n        v = s |
    s = v\n        for i in range(3):\n            s = tp.math.row_sum(v)\n        v = s |
    for i in range(3):\n            if i > 1:\n                v = v * 2 | v += 1
keep: k.y.store(tile, v) | k.y.store(tile, v, lambda a: a) | k.y.store(v, tile) | k.y.store(tile, (v, v)) | pass |
    k.y.store(tile, JUNK) | k.y.store(tile, v); k.y.store(tile, v) | k.y.store(JUNK, v) | k.y.store_from(0, 0, values=v) |
    k.y.store_from(tile.m * 8, tile.n * 64, values=v) | k.y.store_from(values=v) | k.y.store_from(tile.m * 8, 3, values=v) |
    k.y.store_from(-8, 0, values=v) | k.y.store_from(JUNK, 0, values=v) | k.y.store(tile, tp.math.row_sum(v)) |
    k.y.store(tile, tp.math.cast(v, "int32")) | k.y.store(tile, v > 0) | k.x.store(tile, v) | k.y.store(tile, v, JUNK)
halo: (9, 64) | (9, 64) | (8, 64) | (10, 80) | (9, 63) | (300, 64) | JUNK | (9,)
corner: slot.x.load_from(tile.m * 8 - 1, tile.n * 64) | slot.x.load_from(tile.m * 8 - 1, tile.n * 64 - 3) |
    slot.x.load_from(tile.m * 8 - 1) | slot.x.load_from(tile.m * 8 - 1, JUNK) | slot.x.load_from(tile.m * 8.0 - 1, 0) |
    slot.x.load(tile) | slot.x.load_from(-10**10, 0) | slot.x.load_from(2**31, 0) | slot.x.load_from(tile.m / 8, 0) |
    slot.x.load_from(tile.n * 64, tile.m * 8 - 1) | slot.x.load_part(0, tile) | slot.x.load_from(tile, 0) |
    slot.x.load_from(m=tile.m * 8, n=0) | slot.x.load_from(tile.m * 8 - 1, tile.n * 64); slot.x.load_from(0, 0) | pass
part: slot.x.read(tile=(8, 64), at=(1, 0)) | slot.x.read(tile=(8, 64), at=(2, 0)) | slot.x.read(tile=(8, 64), at=(1,)) |
    slot.x.read(tile=(8, 64), at=JUNK) | slot.x.read(tile=JUNK, at=(1, 0)) | slot.x.read(tile=(8, 32), at=(1, 0)) |
    slot.x.read(tile=(8, 64), at=(-1, 0)) | slot.x.read(tile=(8, 64), at=(tile.m, 0)) | slot.x.read() |
    slot.x.read(tile=(8, 64), at=(1, 1)) | slot.x.read(tile=(8, 64), at=1) | slot.x.read(tile=(8.0, 64), at=(1, 0))
like: slot.x.read(like=here, at=(0, 0)) | slot.x.read(like=here, at=(2, 0)) | slot.x.read(like=here) |
    slot.x.read(like=here > 0, at=(0, 0)) | slot.x.read(like=slot.x, at=(0, 0)) | slot.x.read(at=(0, 0)) |
    slot.x.read(like=here, at=JUNK) | slot.x.read(like=tp.math.row_sum(here), at=(0, 0)) | slot.x.read(like=JUNK, at=(0, 0))
carry: pass | here, above = above, here | for i in range(2):\n            here, above = above, here |
    if tile.m > 0:\n            here = here * 2 | above = 0 | if here > 0:\n            above = 0 | assert here |
    while here > 0:\n            here = here - 1 | here = [here] | for i in range(tile.m):\n            here = here + i |
    here = slot.x.read(tile=(8, 64), at=(1, 0)) | with k.ring.consume() as slot:\n            here = slot.x.read() |
    try:\n            here = here[0]\n        except Exception:\n            pass | import os | here = self.x | print(here) |
    if tile.m == 1:\n            with k.ring.consume() as slot:\n                here = slot.x.read() | global here
sum: here + above | here - above | here + above.rows | here | above + 1 | tp.math.where(tile.m > 0, here, above) |
    here * k.extent("m") | here + tile.m | here + tile | here + k | (here > above) + 1 | here * above.columns | here / 0
last: producer=load, consumer=store | producer=store, consumer=load | producer=load, consumer=JUNK | producer=load
cut: .in_parts(8) | .in_parts(4) | .in_parts(3) | - | .in_parts(JUNK) | .in_parts(8).in_parts(2) |
    .anything_outside().in_parts(8) | .in_parts(8).anything_outside() | .in_parts(16)
along: "r" | "m" | "n" | "q" | JUNK
rows: "r n" | "r n" | "m n" | "n r" | "r" | "q n"
eight: range(8) | range(7) | range(9) | range(JUNK) | (0, 1, 2, 3, 4, 5, 6, 7) | range(tile.r) | range(8.0)
row: slot.x.load_part_from(i, k.at.entry(tile.r * 8 + i), tile.n * 64) | slot.x.load_part(i, tile) |
    slot.x.load_part_from(i, k.at.entry(tile.r * 8 + i), tile.n * 64 + 3) | slot.x.load_part(i, tile, m=JUNK) |
    slot.x.load_part_from(i, k.at.entry(tile.r * 8 + i)) | slot.x.load_part_from(0, k.at.entry(i), tile.n * 64) |
    slot.x.load_part(i, m=k.at.entry(tile.r * 8 + i), n=tile.n) | slot.x.load_part_from(JUNK, 0, 0) |
    slot.x.load_part_from(i, k.at.entry(-1), 0) | slot.x.load_part_from(i, k.at.entry(10**9), 0) |
    slot.x.load_part_from(i, k.at.entry(JUNK), 0) | slot.x.load_part_from(i, k.at[0], 0) | slot.x.load(tile) |
    slot.x.load_part_from(i, k.r.entry(0), 0) | slot.x.load_part_from(i, k.at.entry(tile.q), 0) |
    slot.x.load_part_from(i + 1, k.at.entry(tile.r * 8 + i), tile.n * 64) | slot.x.load_part_from(i, k.at.entry(), 0) |
    if k.at.entry(tile.r * 8 + i) > 2:\n                    slot.x.load_part(i, tile, m=0)
flight: in_flight=0 | in_flight=0 | in_flight=1 | in_flight=JUNK | promote=True | - | in_flight=0, promote=True | in_flight=-1
first: first | first | x | u | JUNK | second if False else w
second: second | second | first | x | JUNK | (first, second)
three: slot.x.load(m=tile.m, k=0); slot.w.load(h=0, k=0); slot.u.load(n=tile.n, h=0) |
    slot.x.load(m=tile.m, k=0); slot.w.load(h=0, k=0) | slot.x.load(tile); slot.w.load(tile); slot.u.load(tile) |
    slot.x.load(tile, k=0); slot.w.load(tile, h=0, k=0); slot.u.load(tile, h=0)
start: k.first.start(slot.x, slot.w) | k.first.start(slot.w, slot.x) | k.first.start(slot.x) | k.second.start(slot.x, slot.u) |
    k.first.start(slot.x, JUNK) | k.first.start() | k.first.accumulate() | k.first.start(slot.x.read(), slot.w)
wait: acc = one.wait() | acc = one | one.wait(); acc = one.wait() | acc = one.wait(JUNK) | one.wait(); acc = None |
    acc = k.first.wait() | pass
scores: tp.math.relu(acc.values()) | acc.values() | acc | tp.math.row_sum(acc.values()) | acc.values()[0] | JUNK |
    tp.math.relu(one.values()) | tp.math.cast(acc.values(), "fp16") | tp.math.cast(acc.values(), "int32") | slot.x.read() |
    acc.values() > 0 | acc.values() + slot.w.read() | acc.scale(2.0) | acc.scale(tp.math.row_sum(acc.values())) |
    acc.values() * tp.math.row_max(acc.values()) | acc.values(JUNK)
chained: k.second.start(v, slot.u) | k.second.start(slot.u, v) | k.second.start(v, slot.w) | k.first.start(v, slot.u) |
    k.second.start(JUNK, slot.u) | k.second.start(v) | k.second.start(v, v) | k.second.start(v, slot.u) and None
sums: two.wait() | two.wait().values() | two | acc | two.values() | JUNK | two.wait().values() * 2 | (two.wait(), v) | v
"""
WORDS: dict[str, list[str]] = {}
for _line in re.sub(r"\n\s+", " ", _WORDS).strip().splitlines():
    _name, _, _texts = _line.partition(": ")
    WORDS[_name] = ["" if text == "-" else text.replace(r"\n", "\n") for text in _texts.split(" | ")]


NAMES = {
    "through slots": THROUGH_SLOTS, "through registers": THROUGH_REGISTERS, "matmul": MATMUL, "values": VALUES,
    "window": WINDOW, "gather": GATHER, "chained": CHAINED,
}  # fmt: skip
X = (np.arange(130 * 128, dtype=np.float32).reshape(130, 128) % 7 - 3).astype(np.float16)
AT = np.array([(7 * i) % 133 - 1 for i in range(64)], np.int32)  # rows of X, and some beside it


def _right(kind: str) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """What a schedule of this kind is called with, and what comes of that."""
    wide = X.astype(np.float32)
    if kind == "matmul":
        return (X[:100], X[:64]), wide[:100] @ wide[:64].T
    if kind == "chained":
        x, w, u = X[:100, :64], X[64:128, :64], X[:72, 64:] / np.float16(64)
        return (x, w, u), np.maximum(wide[:100, :64] @ wide[64:128, :64].T, 0) @ u.astype(np.float32).T
    if kind == "values":
        held = np.tile(wide[:8, :64], (17, 2))[:130]
        product = np.zeros((136, 128), np.float32)
        product[:130] = wide * held
        tiles = product.reshape(17, 8, 2, 64)
        return (X[:8], X), (tiles + tiles.sum(3, keepdims=True) - tiles.sum(1, keepdims=True)).reshape(136, 128)[:130]
    if kind == "window":
        return (X,), wide + np.concatenate([np.zeros((1, 128), np.float32), wide[:-1]])
    if kind == "gather":
        outside = (AT < 0) | (AT >= 130)
        return (X, AT), np.where(outside[:, None], 0, wide[AT % 130])
    return (X,), 2 * wide


def call(seed: int) -> Call:
    """The call of this seed."""
    rng = random.Random(seed)
    kind = rng.choice(list(NAMES))
    source = NAMES[kind]
    places = re.findall(r"<(\w+)>", source)
    damaged = set(rng.sample(range(len(places)), rng.choice((0, 1, 1, 1, 2, 3))))
    chosen: list[str] = []
    names: dict[str, Any] = {}
    for i, place in enumerate(places):
        text = WORDS[place][0] if i not in damaged else rng.choice(WORDS[place])
        while "JUNK" in text:
            name = f"junk{len(names)}"
            names[name] = junk(rng)
            text = text.replace("JUNK", name, 1)
        chosen.append(text)
    right = [WORDS[place][0] for place in places] == chosen
    parts = iter(chosen)
    source = re.sub(r"<(\w+)>", lambda found: next(parts), source)
    changed = [f"{place}: {text}" for place, text in zip(places, chosen, strict=True) if text != WORDS[place][0]]
    said = ", ".join(f"{name} = {as_text(value)}"[:60] for name, value in names.items())
    text = f"bodies {seed}: {kind}; {'; '.join(changed)}; {said}"
    return Call(text, lambda: _run(source, names, f"<fuzz {seed}>", right, kind))


def _run(source: str, names: dict[str, Any], file: str, right: bool, kind: str) -> None:
    """Declares it, checks it, and runs it on the model, which must not hang or race if the proof says so."""
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    try:
        compiled = compile(source, file, "exec")
    except SyntaxError:  # a slip that Python finds
        raise Unsafe("syntax") from None
    namespace = {"tp": tp, "__name__": "fuzz", **names}
    exec(compiled, namespace)
    schedule = namespace["Made"]()
    report = schedule.check()
    if not report.ok:
        raise Unsafe(str(report).splitlines()[0])
    given, expected = _right(kind)
    try:
        found = schedule(*given)
    except (DeadlockError, HazardError) as error:
        raise Wrong(f"proved safe, but {type(error).__name__}: {error}") from None
    if right and not np.allclose(found.astype(np.float32), expected, rtol=2e-3, atol=1e-2):
        raise Wrong("not what NumPy says")
