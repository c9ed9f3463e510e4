"""Schedules of the shapes that `random_pipelines.py` draws: chains in place, shared tiles, two rings, two writers."""

from __future__ import annotations

from typing import Any

import tmapipe as tp

__all__ = ["Chain0", "Chain1", "Chain2", "Chain3", "Gathered", "Held", "Shared", "TwoRings", "TwoWriters"]


class Chain0(tp.Schedule):
    """y = x, through a ring."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    steps: tuple[str, ...] = ()

    def __init__(self, tile: Any, stages: int, warps: list[int], pending: int, group: int, cluster: dict[str, int]):
        self.cluster = cluster
        self.tiles = tp.tiles.PersistentTiles(tp.tiles.Grouped(group))
        for name, count in zip(self.steps, warps, strict=False):
            setattr(self, name, tp.Role(warps=count))
        self.ring = tp.BarrierRing(stages, chain=[self.load, *(getattr(self, name) for name in self.steps), self.store])
        self.x = tp.TmaLoadStage("m n", tile=tile, ring=self.ring)
        self.y = tp.TmaStoreStage(source=self.x, stages=pending)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class Chain1(Chain0):
    """Threads change the slot in place before it is stored."""

    first = tp.Role(warps=1)
    steps = ("first",)

    @first.jit
    def change_first(self, k, tile):
        with k.ring.consume() as slot:
            slot.x.write(slot.x.read() * 2 + 1)


class Chain2(Chain1):
    second = tp.Role(warps=1)
    steps = ("first", "second")

    @second.jit
    def change_second(self, k, tile):
        with k.ring.consume() as slot:
            slot.x.write(slot.x.read() + 3)


class Chain3(Chain2):
    third = tp.Role(warps=1)
    steps = ("first", "second", "third")

    @third.jit
    def change_third(self, k, tile):
        with k.ring.consume() as slot:
            slot.x.write(slot.x.read() * 2)


class Shared(tp.Schedule):
    """y[r] = x[r] + s for every r, with s multicast to CTAs of different r; threads read the slots, and store from buffers."""

    load, add = tp.Role(warps=1), tp.Role(warps=2)

    def __init__(self, tile: Any, stages: int, warps: int, buffers: int, cluster: int):
        self.cluster = {"r": cluster}
        self.add = tp.Role(warps=warps)
        self.ring = tp.BarrierRing(stages, producer=self.load, consumer=self.add)
        self.x = tp.TmaLoadStage("r m n", tile=tile, ring=self.ring)
        self.s = tp.TmaLoadStage("m n", tile=tile, ring=self.ring, multicast=tp.MulticastGroup("r"))
        self.y = tp.TmaStoreStage("r m n", tile=tile, role=self.add, stages=buffers)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
            slot.s.load(tile)

    @add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() + slot.s.read()
        k.y.store(tile, values)


class TwoRings(tp.Schedule):
    """One role turns what TMA loaded into slots of a second ring, written by threads, which another role stores."""

    load, work, out = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=2)

    def __init__(self, tile: Any, stages: tuple[int, int], warps: tuple[int, int], buffers: int, dtype: str):
        self.work, self.out = tp.Role(warps=warps[0]), tp.Role(warps=warps[1])
        self.ring = tp.BarrierRing(stages[0], producer=self.load, consumer=self.work)
        self.hand = tp.BarrierRing(stages[1], producer=self.work, consumer=self.out)
        self.x = tp.TmaLoadStage("m n", tile=tile, ring=self.ring)
        self.z = tp.SharedStage(tile=tile, ring=self.hand, writer=self.work, dtype=dtype)
        self.y = tp.TmaStoreStage("m n", tile=tile, role=self.out, stages=buffers)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def change(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() * 2 + 1
        with k.hand.produce() as slot:
            slot.z.write(values)

    @out.jit
    def drain(self, k, tile):
        with k.hand.consume() as slot:
            values = slot.z.read()
        k.y.store(tile, values)


class TwoWriters(tp.Schedule):
    """A slot filled by two roles: one tile by TMA, one by threads."""

    load, make, add = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=2)

    def __init__(self, tile: Any, stages: int, warps: tuple[int, int], buffers: int):
        self.make, self.add = tp.Role(warps=warps[0]), tp.Role(warps=warps[1])
        self.ring = tp.BarrierRing(stages, producer=(self.load, self.make), consumer=self.add)
        self.x = tp.TmaLoadStage("m n", tile=tile, ring=self.ring, loader=self.load)
        self.s = tp.SharedStage(tile=tile, ring=self.ring, writer=self.make, dtype="int32")
        self.y = tp.TmaStoreStage("m n", tile=tile, role=self.add, stages=buffers)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @make.jit
    def scratch(self, k, tile):
        with k.ring.produce() as slot:
            slot.s.write(slot.s.read() * 0 + 3)

    @add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() + slot.s.read()
        k.y.store(tile, values)


class Held(tp.Schedule):
    """y[r] = 2 x[r] + s, with s loaded once a CTA, perhaps multicast, and doubled values on their way through scratch.

    Another role stores what threads have written to the slot, in the type of s, perhaps over x.
    """

    load, work, store = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)

    def __init__(
        self,
        tile: Any,
        stages: int,
        warps: int,
        parts: int,
        pending: int,
        copies: int,
        cluster: int,
        dtype: str,
        over: bool = False,
    ):
        self.cluster = {"r": cluster}
        self.work = tp.Role(warps=warps)
        self.once = tp.BarrierRing(producer=self.load, consumer=self.work, per="cta")
        self.s = tp.TmaLoadStage("i n", tile=tile, ring=self.once, multicast=tp.MulticastGroup("r"))
        self.ring = tp.BarrierRing(stages, chain=(self.load, self.work, self.store))
        self.x = tp.TmaLoadStage("r m n", tile=tile, ring=self.ring).in_parts(parts)
        below = self.x if over else None
        self.z = tp.SharedStage(tile=tile, ring=self.ring, writer=self.work, dtype=dtype, over=below)
        self.y = tp.TmaStoreStage("r m n", source=self.z, stages=pending)
        self.between = tp.Scratch(self.work, tile=tile, dtype="fp32", copies=copies)
        self.parts, self.copies = parts, copies

    @load.before.jit
    def fill_once(self, k):
        with k.once.produce() as slot:
            slot.s.load(i=0, n=0)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            for i in range(self.parts):
                slot.x.load_part(i, tile)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            doubled = slot.x.read() * 2
            for i in range(self.copies):
                k.between.copy(i).write(doubled)
            k.sync()
            slot.z.write(k.between.copy(self.copies - 1).read() + k.once.s.read())
            k.sync()

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class Gathered(tp.Schedule):
    """y[m, n] = x[m + rows, n + columns], zero outside, from boxes of three extents, read from the middle of a larger tile."""

    load, work = tp.Role(warps=1), tp.Role(warps=2)

    def __init__(self, tile: Any, by: tuple[int, int], stages: int, warps: int, buffers: int, halo: tuple[int, int]):
        self.work = tp.Role(warps=warps)
        self.tile, self.by, self.halo = tile, by, halo
        wide = (1, tile[0] + 2 * halo[0], tile[1] + 2 * halo[1])
        self.ring = tp.BarrierRing(stages, producer=self.load, consumer=self.work)
        self.x = tp.TmaLoadStage("l m n", tile=wide, ring=self.ring)
        self.y = tp.TmaStoreStage("l m n", tile=tile, role=self.work, stages=buffers)

    @load.jit
    def fill(self, k, tile):
        (rows, columns), (up, left) = self.by, self.halo
        with k.ring.produce() as slot:
            slot.x.load_from(tile.l, tile.m * self.tile[0] + rows - up, tile.n * self.tile[1] + columns - left)

    @work.jit
    def move(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read(tile=self.tile, at=self.halo)
        k.y.store(tile, values)
