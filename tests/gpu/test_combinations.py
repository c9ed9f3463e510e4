"""What a GEMM is composed of, in combinations that no other file here has: against float64, or the same with torch."""

import pytest
import torch

import tmapipe as tp
from tests.emit.forms import BulkVectorCopy

S, E, F = tp.schedules, tp.epilogue, tp.math


def close(found, wanted):
    torch.testing.assert_close(found.double(), wanted, atol=0.15, rtol=2e-2)


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize(("m", "n", "k"), [(200, 328, 520), (1024, 768, 2048), (64, 1664, 4096)])
@pytest.mark.parametrize(
    "tiles", [tp.tiles.SplitKTiles(4), tp.tiles.StreamKTiles(shares=66), tp.tiles.SplitKTiles(3, tp.tiles.GpcTiles())]
)
def test_an_epilogue_of_added_parts(tiles, m, n, k):
    torch.manual_seed(m)
    a, b, bias, c = normal(m, k) / k**0.25, normal(n, k) / k**0.25, normal(n), normal(m, n)
    epilogue = E.Epilogue(
        lambda acc, bias, c: F.relu(acc + bias) + c, operands={"bias": E.PerColumn(), "c": E.Matrix()}
    )
    d = S.Gemm((128, 128, 64), (1, 2), epilogue=epilogue, tiles=tiles)(a, b, bias=bias, c=c)
    close(d, torch.relu(a.double() @ b.double().T + bias.double()) + c.double())


def test_a_second_call_binds_nothing(monkeypatch):
    """Binding anew took 300 microseconds a call."""
    epilogue = E.Epilogue(lambda acc, bias: F.relu(acc + bias), operands={"bias": E.PerColumn()})
    gemm, a, b = (
        S.Gemm((64, 128, 64), (1, 1), epilogue=epilogue, tiles=tp.tiles.SplitKTiles(2)),
        normal(64, 256),
        normal(128, 256),
    )
    gemm(a, b, bias=normal(128))
    monkeypatch.setattr("tmapipe.bind.tensors.bind", None)
    gemm(a, b, bias=normal(128), out=normal(64, 128))
    gemm(a, b, bias=normal(128))


@pytest.mark.parametrize("kind", [S.Gemm, S.PingPong])
def test_one_number_a_matrix_of_a_batch(kind):
    torch.manual_seed(1)
    a, b = normal(3, 300, 200), normal(3, 136, 200)
    scale = torch.tensor([2.0, -1.0, 0.5], device="cuda")
    epilogue = E.Epilogue(lambda acc, scale: acc * scale, operands={"scale": E.PerBatch()}, dtype="fp32")
    d = kind((128, 128, 64), epilogue=epilogue)(a, b, scale=scale)
    close(d, a.double() @ b.double().mT * scale.double()[:, None, None])


def groups(rows, ends):
    which = torch.zeros(rows, dtype=torch.long, device="cuda")
    for end in ends[:-1]:
        which[end:] += 1
    return which


@pytest.mark.parametrize("gated", [False, True])
def test_groups_with_operands(gated):
    torch.manual_seed(2)
    ends = [130, 130, 400, 690]
    tokens, weights, c = normal(690, 256) / 4, normal(4, 264, 256) / 4, normal(690, 264)
    scale = torch.rand(690, device="cuda") + 0.5
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    operands = {"c": E.Matrix(), "scale": E.PerRow()}
    which = groups(690, ends)
    product = torch.einsum("mk,mnk->mn", tokens.double(), weights.double()[which])
    if not gated:
        epilogue = E.Epilogue(lambda acc, c, scale: acc * scale + c, operands=operands)
        d = S.GroupedGemm((128, 128, 64), epilogue=epilogue)(tokens, weights, offsets, c=c, scale=scale)
        close(d, product * scale.double()[:, None] + c.double())
        return
    up = normal(4, 264, 256) / 4
    other = torch.einsum("mk,mnk->mn", tokens.double(), up.double()[which])
    epilogue = E.Epilogue(lambda gate, up, c, scale: gate * up * scale + c, operands=operands)
    gemm = S.GatedGemm((128, 128, 64), epilogue=epilogue, tiles=tp.tiles.GroupedTiles())
    d = gemm(tokens, weights, up, offsets, c=c, scale=scale)
    close(d, product * other * scale.double()[:, None] + c.double())


def test_two_outputs_and_sums_of_gated_products():
    torch.manual_seed(3)
    a, gate, up = normal(520, 320) / 4, normal(392, 320) / 4, normal(392, 320) / 4
    epilogue = E.Epilogue(
        lambda gate, up: {"d": gate * up, "gates": gate, "rows": gate * up},
        outputs={"gates": E.Output("fp32"), "rows": E.RowSum()},
    )
    d, gates, rows = S.GatedGemm((128, 128, 64), epilogue=epilogue)(a, gate, up)
    wanted = a.double() @ gate.double().T
    close(gates, wanted)
    product = wanted * (a.double() @ up.double().T)
    close(d, product)
    torch.testing.assert_close(rows.double(), product.sum(1), atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("columns", [1, 3, 8])
def test_bands_of_columns(columns):
    torch.manual_seed(columns)
    a, b = normal(1000, 264), normal(1160, 264)
    wanted = S.Gemm((128, 128, 64))(a, b)
    assert torch.equal(S.Gemm((128, 128, 64), tiles=tp.tiles.PersistentTiles(tp.tiles.Columns(columns)))(a, b), wanted)
    assert torch.equal(S.Gemm((128, 128, 64), tiles=tp.tiles.DynamicTiles(tp.tiles.Columns(columns)))(a, b), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_copy_without_a_descriptor(dtype):
    for pieces in (1, 7, 4096):
        x = torch.randint(-100, 100, (1024 * pieces,), device="cuda").to(dtype)
        room = torch.full((1024 * pieces + 64,), 7, device="cuda", dtype=dtype)
        BulkVectorCopy()(x, out=room[: x.numel()])
        assert torch.equal(room[: x.numel()], x) and bool((room[x.numel() :] == 7).all())


def test_a_vector_that_is_no_whole_number_of_pieces_is_refused():
    with pytest.raises(tp.InputError, match="whole pieces of 1024 elements"):
        BulkVectorCopy()(torch.zeros(1500, device="cuda"))
