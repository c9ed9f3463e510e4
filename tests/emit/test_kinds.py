"""Fragments of every element type, in every form in which they are read and written, compiled for sm_90a."""

import itertools

import pytest
import torch

import tmapipe as tp
from tests.oracle.ptx_run import judged
from tests.sweeps import ALL

TYPES = ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2", "int8", "int32", "int64")


def forms(source, target, tile):
    """Reads a tile, one number a row and a column, and one number; writes a tile, and one number a row."""

    class Forms(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warps=4)
        ring = tp.BarrierRing(2, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=tile, ring=ring, dtype=source)
        r = tp.TmaLoadStage("m", tile=tile[:1], ring=ring, dtype=source)
        c = tp.TmaLoadStage("n", tile=tile[1:], ring=ring, dtype=source)
        y = tp.TmaStoreStage("m n", tile=tile, role=work, dtype=target)
        top = tp.TmaStoreStage("m", tile=tile[:1], role=work, dtype=target)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)
                slot.r.load(tile)
                slot.c.load(tile)

        @work.jit
        def compute(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
                values = values * slot.r.read(rows_of=values) + slot.c.read(columns_of=values) * slot.r.read(at=3)
            k.y.store(tile, tp.math.maximum(values, 1))
            k.top.store(tile, tp.math.row_max(abs(values)))

    return Forms()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *((kind, kind) for kind in TYPES if ALL or kind not in ("fp16", "fp8_e4m3")),
        *ALL * [("int8", "bf16"), ("fp8_e4m3", "bf16")],
    ],
)
def test_compiles(source, target):
    assert forms(source, target, (16, 64)).compile(arch="sm_90a").resources.spill_bytes == 0


@pytest.mark.parametrize(("source", "target"), [*itertools.product(("bf16", "fp8_e5m2"), ("int8", "int32"))])
def test_fp32_is_not_written_to_integers(source, target):
    with pytest.raises(tp.InputError, match=r"tp\.math\.cast"):
        forms(source, target, (16, 64)).compile(arch="sm_90a")


def test_integers_and_conditions_as_floats_of_8_bits():
    """By way of fp32: LLVM has no such conversion."""

    class Narrowed(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(1, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(1, 64), ring=ring, dtype="int32")
        y = tp.TmaStoreStage("m n", tile=(1, 64), role=work, dtype="fp8_e4m3")
        positive = tp.TmaStoreStage("m n", tile=(1, 64), role=work, dtype="fp8_e5m2")

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def narrow(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
            k.y.store(tile, values)
            k.positive.store(tile, values > 0)

    x = (torch.arange(64, dtype=torch.int32)[None] - 32) * 17
    with judged() as launches:
        y, positive = Narrowed()(x)
    assert launches.launches == 1 and torch.equal(positive.float(), (x > 0).float())
    assert torch.equal(y.float(), x.float().clamp(-448, 448).to(torch.float8_e4m3fn).float())
