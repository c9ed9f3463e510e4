"""DequantGemm on the GPU: weights of each kind, few rows, groups, parts of k; twice the same bits."""

import pytest
import torch

import tmapipe as tp
from tests.machine.test_dequant import GEMV, problem
from tmapipe.schedules import DequantGemm, DequantGemv

FORMS = [
    ("int8", None, False, (256, 128, 64), {}),
    ("int4", 64, True, (256, 128, 64), {"cluster": (2, 1)}),
    ("uint4", 192, True, (16, 64, 64), {"cluster": (1, 1)}),
    ("int4", None, False, (16, 64, 64), {"cluster": (1, 1), "tiles": tp.tiles.SplitKTiles(2)}),
    ("fp8_e4m3", None, True, (128, 192, 64), {}),
    ("int8", 32, False, (64, 128, 32), {"tiles": tp.tiles.DynamicTiles()}),
    ("int4", 32, True, (16, 256, 64), {"cluster": (1, 1), "tiles": tp.tiles.SplitKTiles(2)}),
]


@pytest.mark.parametrize("kind, group, zeros, tile, options", FORMS)
def test_weights_of_each_kind(kind, group, zeros, tile, options):
    a, b, scale, zero, product = problem(kind, group, zeros)
    a, b, scale, product = (x.cuda() for x in (a.repeat(15, 1), b, scale, product.repeat(15, 1)))
    more = () if zero is None else (zero.cuda(),)
    gemm = DequantGemm(kind, tile, group=group, zeros=zeros, **options)
    d = gemm(a, b, scale, *more)
    assert float((d.float() - product).norm() / product.norm()) < 5e-3
    assert torch.equal(d, gemm(a, b, scale, *more))


@pytest.mark.parametrize("kind, group, zeros, tile, parts, epilogue", GEMV)
def test_warps_of_a_cta_share_k(kind, group, zeros, tile, parts, epilogue):
    a, b, scale, zero, product = problem(kind, group, zeros)
    given = [x.cuda() for x in (a, b, scale, *([zero] if zeros else []))]
    gemv = DequantGemv(kind, tile, parts, 2, 3, group=group, zeros=zeros, epilogue=epilogue)
    want = (product if epilogue is None else product.relu()).cuda()
    d = gemv(*given)
    assert float((d.float() - want).norm() / want.norm()) < 5e-3
    assert torch.equal(d, gemv(*given))
