"""Sums of a GEMM's operands, which warps add up from the slots that the matmul reads."""

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe.epilogue import Epilogue, OperandSum, RowSum
from tmapipe.schedules import ClusterSplitK, GatedGemm, Gemm, SymmetricGemm

SMALL = (64, 64, 32), (1, 1), 2


def random(*shape):
    return torch.from_numpy(np.random.default_rng(sum(shape)).integers(-3, 4, shape)).to(torch.bfloat16)


def square(x):
    return x * x


def of(**sums):
    return tp.Operand(sums=sums)


A, B = random(2, 72, 40), random(2, 72, 40)
D = A.float() @ B.float().mT


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"a": of(s=OperandSum("k", square), t=OperandSum("k"))}, (A.float().square().sum(-1), A.float().sum(-1))),
        ({"a": of(s=OperandSum("m"))}, (A.float().sum(-2),)),
        ({"b": of(s=OperandSum("n", abs))}, (B.float().abs().sum(-2),)),
        (
            {
                "b": of(s=OperandSum("k")),
                "epilogue": Epilogue(lambda acc: {"d": acc, "r": acc}, outputs={"r": RowSum()}),
            },
            (D.sum(-1), B.float().sum(-1)),
        ),
    ],
)
def test_sums(options, want):
    """Beside d, of a batch and of one matrix, with edges that tiles do not divide."""
    schedule = Gemm(*SMALL, **options)
    for pick in (slice(None), 1):
        d, *sums = schedule(A[pick], B[pick])
        assert torch.equal(d, D[pick].to(torch.bfloat16))
        assert all(map(torch.equal, sums, (each[pick] for each in want))) and len(sums) == len(want)


@pytest.mark.parametrize("over", "km")
def test_in_a_cluster(over):
    """Whose last row of tiles is outside of the output."""
    a = random(2, 136, 40)
    schedule = Gemm(SMALL[0], (2, 1), 2, a=of(s=OperandSum(over)))
    d, s = schedule(a, B)
    assert torch.equal(d, (a.float() @ B.float().mT).to(torch.bfloat16))
    assert torch.equal(s, a.float().sum(-1 if over == "k" else -2))


def test_of_half_of_the_tiles():
    """Those at the diagonal and below, of which the first along n are there."""
    cooperative = {"mainloop": tp.mainloop.Cooperative()}
    for over, want in (("k", A[0].float().sum(-1)), ("m", A[0].float().sum(-2))):
        assert torch.equal(SymmetricGemm(*SMALL, **cooperative, a=of(s=OperandSum(over)))(A[0])[1], want)
    rule = "no tiles above the diagonal"
    refused(SymmetricGemm, *SMALL, **cooperative, b=of(s=OperandSum()), argument="Operand(sums) of b", rule=rule)


def test_beside_two_products():
    schedule = GatedGemm(SMALL[0], (2, 1), 2, epilogue=lambda x, y: x + y, a=of(s=OperandSum("m")))
    d, s = schedule(A, B, B)
    assert torch.equal(d, (2 * D).to(torch.bfloat16)) and torch.equal(s, A.float().sum(-2))


def test_a_role_that_tells_its_own_cta_alone_reads_no_tile_of_peers(monkeypatch):
    """Tiles of b are loaded by both CTAs of a cluster along m: a CTA could overwrite a tile that its peer still adds up."""
    monkeypatch.setattr(Gemm, "_check_sums", lambda *_: None)
    report = Gemm((64, 64, 16), (2, 1), 2, b=of(s=OperandSum())).check()
    assert "writes b[0] of CTA 0 while add" in str(report) and "RACE" in str(report)


def test_of_a_k_that_is_no_multiple_of_4():
    """Rows of the workspace are padded, since TMA reads them."""
    d, s = Gemm(*SMALL, a=of(s=OperandSum("m")))(A[..., :37], B[..., :37])
    assert torch.equal(s, A[..., :37].float().sum(-2)) and d.shape == (2, 72, 72)


def test_into_given_tensors_and_without_k():
    schedule = Gemm(*SMALL, a=of(s=OperandSum("m")))
    s = torch.empty(40)
    assert schedule(A[0], B[0], s=s)[1] is s and torch.equal(s, A[0].float().sum(0))
    d, s = Gemm(*SMALL, a=of(s=OperandSum("k")))(A[0, :, :0], B[0, :, :0])
    assert not d.any() and torch.equal(s, torch.zeros(72))


def test_proved():
    """Over m; over k it is registered."""
    report = Gemm((64, 64, 16), *SMALL[1:], a=of(s=OperandSum("m"))).check()
    assert report.trips == "every trip count" and not report.findings, str(report)


def test_refused():
    sums = of(s=OperandSum())
    refused(Gemm, cluster=(1, 2), a=sums, argument="Operand(sums) of a", rule="cluster along m alone")
    refused(Gemm, cluster=(2, 1), b=sums, argument="Operand(sums) of b", rule="cluster along n alone")
    refused(ClusterSplitK, 1, a=sums, argument="Operand(sums) of a", rule="cluster along m alone")
    refused(Gemm, *SMALL, a=sums, mainloop=tp.mainloop.PingPong(), argument="Operand(sums) of a", rule="one team")
    refused(Gemm, *SMALL, a=sums, tiles=tp.tiles.SplitKTiles(2), argument="Operand(sums) of a", rule="whole tiles")
    refused(Gemm, *SMALL, a=sums, b=of(t=OperandSum()), argument="b.sums", rule="one operand")
    refused(Gemm, *SMALL, a=of(s=OperandSum("n")), argument="Operand(sums) of a", rule='all over "m"')
    refused(Gemm, *SMALL, a=of(d=OperandSum()), argument="sums", rule="has already")
    refused(tp.Operand, "m", sums={"s": OperandSum()}, argument="Operand(sums)", rule="along k")
    refused(tp.Operand, sums={"s": "k"}, argument="sums", rule="is an OperandSum")
    refused(tp.Operand, sums=[], argument="Operand(sums)", rule="dictionary")
    refused(tp.Operand, outside="anything", sums={"s": OperandSum("m")}, argument="Operand(sums)", rule="is over k")
    refused(OperandSum, "k", lambda x: x + 1, argument="OperandSum(function)", rule="gives 0 for 0")
    refused(OperandSum, "l", argument="OperandSum(over)", rule="k, m or n")
