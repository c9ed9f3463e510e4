"""Symmetric products: half of the tiles, whose transposes are stored too; and what is found where a body gets that wrong."""

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe.check import Kind
from tmapipe.schedules import Gemm, SymmetricGemm
from tmapipe.tiles import DynamicTiles, PersistentTiles, Triangle

SMALL = (64, 64, 16), (1, 1), 2
ONE = tp.mainloop.Cooperative()


def random(*shape):
    return torch.from_numpy(np.random.default_rng(0).integers(-3, 4, shape)).to(torch.bfloat16)


@pytest.mark.parametrize(
    "schedule",
    [
        SymmetricGemm(*SMALL, mainloop=ONE),
        SymmetricGemm((64, 128, 32), (2, 1), mainloop=ONE, tiles=DynamicTiles(Triangle(2))),
        SymmetricGemm((64, 64, 32)),
    ],
)
def test_a_product_with_itself(schedule):
    """Of a batch, with edges that tiles do not divide; and into part of a wider tensor."""
    x = random(2, 136, 40)
    want = (x.float() @ x.float().mT).to(torch.bfloat16)
    assert torch.equal(schedule(x), want)
    wide = torch.zeros(2, 136, 144, dtype=torch.bfloat16)
    assert torch.equal(schedule(a=x, out=wide[..., :136]), want) and not wide[..., 136:].any()


def test_two_operands_and_a_matrix():
    """The square of a symmetric matrix, plus another one."""
    c = random(72, 72)
    c = c + c.T
    added = tp.epilogue.Epilogue(lambda acc, c: acc + c, operands={"c": tp.epilogue.Matrix()})
    d = SymmetricGemm(*SMALL, mainloop=ONE, epilogue=added)(c, c, c=c)
    assert torch.equal(d, (c.float() @ c.float() + c.float()).to(torch.bfloat16))


class Diagonal(SymmetricGemm):
    """Stores tiles on the diagonal twice."""

    def store(self, k, tile, sums):
        self.store_all(k, tile, sums.accumulators, mirror=True)


class Half(SymmetricGemm):
    """Leaves out the upper half."""

    def store(self, k, tile, sums):
        self.store_all(k, tile, sums.accumulators)


class All(Gemm):
    """Computes what it also stores as the transpose of something else."""

    def store(self, k, tile, sums):
        self.store_all(k, tile, sums.accumulators, mirror=tile.m > tile.n)


@pytest.mark.parametrize(
    ("kind", "found"), [(Diagonal, Kind.OUTPUT_RACE), (Half, Kind.UNWRITTEN), (All, Kind.OUTPUT_RACE)]
)
def test_wrong_halves_are_found(kind, found):
    report = kind(*SMALL, mainloop=ONE).check()
    assert found in {finding.kind for finding in report.findings}, str(report)


def test_refused():
    refused(SymmetricGemm, tiles=PersistentTiles(), argument="tiles", value=PersistentTiles(), rule="by Triangle")
    for outputs in ({"s": tp.epilogue.RowSum()}, {"e": tp.epilogue.Output()}):
        more = tp.epilogue.Epilogue(lambda acc: dict.fromkeys(("d", "s", "e"), acc), outputs=outputs)
        refused(SymmetricGemm, epilogue=more, argument="epilogue.outputs", value=[*outputs], rule="is empty")
    refused(SymmetricGemm((128, 64, 64)).plan, argument="tiles.raster", value=Triangle(8), rule="together are square")
    refused(lambda: SymmetricGemm()(random(64, 40), random(72, 40)), argument="b.shape along n", value=72, rule="is m")
    wide = SymmetricGemm(*SMALL, mainloop=ONE, epilogue=tp.epilogue.Epilogue(dtype="fp32"))
    with pytest.raises(tp.InputError, match="one output of 16 bits"):
        wide.check()
    inner = PersistentTiles(Triangle(8))
    refused(tp.tiles.SplitKTiles, 2, inner, argument="SplitKTiles(tiles)", value=inner, rule="whole tiles")
