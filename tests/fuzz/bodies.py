"""Third kind: schedules and bodies as users write them, from a few right ones in which a word or two is replaced."""

from __future__ import annotations

import linecache
import random
import re
from typing import Any

import numpy as np

import tmapipe as tp
from tests.fuzz.junk import junk
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
    \n    cluster = {"n": 17} | \n    tiles = JUNK | \n    tiles = tp.DynamicTiles() | \n    arch = JUNK |
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
"""
WORDS: dict[str, list[str]] = {}
for _line in re.sub(r"\n\s+", " ", _WORDS).strip().splitlines():
    _name, _, _texts = _line.partition(": ")
    WORDS[_name] = ["" if text == "-" else text.replace(r"\n", "\n") for text in _texts.split(" | ")]


def call(seed: int) -> Call:
    """The call of this seed."""
    rng = random.Random(seed)
    kind = rng.choice((THROUGH_SLOTS, THROUGH_REGISTERS, MATMUL))
    places = re.findall(r"<(\w+)>", kind)
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
    source = re.sub(r"<(\w+)>", lambda found: next(parts), kind)
    changed = [f"{place}: {text}" for place, text in zip(places, chosen, strict=True) if text != WORDS[place][0]]
    said = ", ".join(f"{name} = {value!r}"[:60] for name, value in names.items())
    shape = {THROUGH_SLOTS: "through slots", THROUGH_REGISTERS: "through registers", MATMUL: "matmul"}[kind]
    text = f"bodies {seed}: {shape}; {'; '.join(changed)}; {said}"
    return Call(text, lambda: _run(source, names, f"<fuzz {seed}>", right, kind == MATMUL))


def _run(source: str, names: dict[str, Any], file: str, right: bool, matmul: bool) -> None:
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
    x = np.arange(130 * 128, dtype=np.float32).reshape(130, 128) % 7 - 3
    x = x.astype(np.float16)
    given = (x[:100], x[:64]) if matmul else (x,)
    try:
        found = schedule(*given)
    except (DeadlockError, HazardError) as error:
        raise Wrong(f"proved safe, but {type(error).__name__}: {error}") from None
    if right:
        expected = given[0].astype(np.float32) @ given[1].astype(np.float32).T if matmul else 2 * x
        if not np.allclose(found.astype(np.float32), expected, rtol=2e-3, atol=1e-2):
            raise Wrong("not what NumPy says")
