"""Row and column sums on the device: ragged shapes, batches, operands; against float64, and the same bits again."""

import random

import pytest
import torch

import tmapipe as tp
from tests.gpu.test_epilogue import SCHEDULES

S, E = tp.schedules, tp.epilogue
KINDS = {"rows": E.RowSum(), "columns": E.ColumnSum()}


def squares(acc, bias=0.0):
    value = acc + bias + 1.0
    return {"d": value, "rows": value * value, "columns": value}


def check(found, value):
    """Against float64; sums with a tolerance far below the size of one element, which may be missing."""
    d, rows, columns = found
    assert not any(torch.isnan(x).any() for x in found)
    assert ((d.double() - value).norm() / value.norm()).item() < (2e-5 if d.dtype == torch.float32 else 4e-3)
    for sums, of, dim in ((rows, value * value, -1), (columns, value, -2)):
        assert sums.dtype == torch.float32
        slack = 2e-5 * of.abs().sum(dim).mean().item()
        torch.testing.assert_close(sums.double(), of.sum(dim), rtol=1e-5, atol=slack)


def same(found, again):
    return all(torch.equal(x, y) for x, y in zip(found, again, strict=True))


@pytest.mark.parametrize("seed", range(24))
def test_random(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kind, tile = SCHEDULES[seed % len(SCHEDULES)]
    cluster = rng.choice([(1, 1), (2, 1), (1, 2)]) if tile != (64, 72, 64) else (1, 1)
    operands = {"operands": {"bias": E.PerColumn()}} if rng.random() < 0.5 else {}
    options = {"dtype": rng.choice([None, "fp32"]), "stages": rng.choice([1, 2])}
    gemm = kind(tile, cluster, epilogue=E.Epilogue(squares, outputs=KINDS, **operands, **options))
    for _ in range(3):
        m, n, k = rng.randint(1, 900), 8 * rng.randint(1, 110), 8 * rng.randint(1, 60)
        batch = (rng.randint(1, 3),) if rng.random() < 0.3 else ()
        a = torch.randn(*batch, m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(*batch, n, k, device="cuda", dtype=torch.bfloat16)
        given = {name: torch.randn(n, device="cuda") for name in operands and ("bias",)}
        value = a.double() @ b.double().transpose(-1, -2) + given.get("bias", 0.0) + 1.0
        found = gemm(a, b, **given)
        check(found, value)
        for _ in range(3):
            assert same(found, gemm(a, b, **given))


@pytest.mark.parametrize("kind,tile", SCHEDULES)
def test_many_tiles_a_cta(kind, tile):
    torch.manual_seed(0)
    a = torch.randn(4103, 264, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(5000, 264, device="cuda", dtype=torch.bfloat16)
    gemm = kind(tile, (1, 1), epilogue=E.Epilogue(squares, outputs=KINDS))
    found = gemm(a, b)
    check(found, a.double() @ b.double().T + 1.0)
    assert all(same(found, gemm(a, b)) for _ in range(5))
    assert same(
        found, kind(tile, (1, 1), tiles=tp.tiles.DynamicTiles(), epilogue=E.Epilogue(squares, outputs=KINDS))(a, b)
    )


def test_of_more_rows_than_narrow_tiles_are_added_for():
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 304, device="cuda", dtype=torch.bfloat16) for rows in (9536, 9000))
    found = S.Gemm(epilogue=E.Epilogue(squares, outputs=KINDS))(a, b)
    check(found, a.double() @ b.double().T + 1.0)


def test_one_alone():
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 512, device="cuda", dtype=torch.bfloat16) for rows in (1300, 2056))
    expected = (a.double() @ b.double().T) ** 2
    for name, dim in (("rows", 1), ("columns", 0)):
        gemm = S.Gemm(
            epilogue=E.Epilogue(lambda acc, name=name: {"d": acc, name: acc * acc}, outputs={name: KINDS[name]})
        )
        _, sums = gemm(a, b)
        torch.testing.assert_close(sums.double(), expected.sum(dim), rtol=3e-5, atol=0)


@pytest.mark.parametrize("kind,tile", [(tp.mainloop.Cooperative, (136, 128, 64)), (tp.mainloop.PingPong, (72, 64, 64))])
def test_of_transposed_accumulators(kind, tile):
    torch.manual_seed(0)
    gemm = S.Gemm(tile, (1, 1), mainloop=kind(along="n"), epilogue=E.Epilogue(squares, outputs=KINDS))
    for shape in ((1, 8), (136, 128), (3, 300, 264), (1301, 2056)):
        a, b = (torch.randn(*shape[:-2], rows, 200, device="cuda").bfloat16() for rows in shape[-2:])
        found = gemm(a, b)
        check(found, a.double() @ b.double().transpose(-1, -2) + 1.0)
        assert all(same(found, gemm(a, b)) for _ in range(3))


@pytest.mark.parametrize("shape", [(40, 48), (1008, 2064)])
def test_of_columns_beside_8_bits(shape):
    """The same bytes as without sums."""
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 128, device="cuda").bfloat16() for rows in shape)
    d, plain = (torch.empty(shape, device="cuda", dtype=torch.float8_e5m2) for _ in range(2))
    fused = E.Epilogue(lambda acc: {"d": acc, "columns": acc}, outputs={"columns": E.ColumnSum()})
    gemm = S.Gemm(epilogue=fused)
    assert gemm.mainloop.along == "n"
    _, columns = gemm(a, b, out=d)
    S.Gemm()(a, b, out=plain)
    assert torch.equal(d.view(torch.uint8), plain.view(torch.uint8))
    expected = (a.double() @ b.double().T).sum(0)
    torch.testing.assert_close(columns.double(), expected, rtol=1e-5, atol=1e-2)


def test_into_given_vectors():
    """Also where 16-byte units reach over their end: what lies behind them is left alone."""
    torch.manual_seed(0)
    for m in (1000, 1001):
        a = torch.randn(m, 256, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(520, 256, device="cuda", dtype=torch.bfloat16)
        memory = torch.full((m + 600,), 7.0, device="cuda")
        rows, columns = memory[:m], memory[m + 30 : m + 550]
        found = S.PingPong(epilogue=E.Epilogue(squares, outputs=KINDS))(a, b, rows=rows, columns=columns)
        assert found[1] is rows and found[2] is columns
        check(found, a.double() @ b.double().T + 1.0)
        assert (memory[m : m + 30] == 7).all() and (memory[m + 550 :] == 7).all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(poison):
    a, b = (
        torch.ones(300, 64, device="cuda", dtype=torch.bfloat16),
        torch.ones(520, 64, device="cuda", dtype=torch.bfloat16),
    )
    a[7, 3] = poison
    _, rows, columns = S.Gemm((128, 128, 64), (2, 1), epilogue=E.Epilogue(squares, outputs=KINDS))(a, b)
    finite = torch.isfinite(rows)
    assert not finite[7] and finite.sum() == 299 and not torch.isfinite(columns).any()


def test_an_epilogue_that_is_not_finite_outside():
    a, b = (
        torch.ones(129, 16, device="cuda", dtype=torch.bfloat16),
        torch.ones(264, 16, device="cuda", dtype=torch.bfloat16),
    )
    gemm = S.Gemm(
        epilogue=E.Epilogue(lambda acc: {"d": acc, **dict.fromkeys(KINDS, tp.math.rsqrt(acc))}, outputs=KINDS)
    )
    _, rows, columns = gemm(a, b)
    torch.testing.assert_close(rows, torch.full_like(rows, 264 / 4), rtol=1e-5, atol=0)
    torch.testing.assert_close(columns, torch.full_like(columns, 129 / 4), rtol=1e-5, atol=0)


def test_without_k():
    a, b = (torch.empty(rows, 0, device="cuda", dtype=torch.bfloat16) for rows in (40, 24))
    d, rows, columns = S.Gemm(epilogue=E.Epilogue(squares, outputs=KINDS))(a, b)
    assert (d == 1).all() and (rows == 24).all() and (columns == 40).all()
    assert rows.is_cuda and rows.shape == (40,) and columns.shape == (24,)


@pytest.mark.parametrize("shape", [(1000, 264, 200), (4096, 2048, 1024)])
@pytest.mark.parametrize("over", ["k", "m"])
def test_sums_of_an_operand(shape, over):
    """The same bits each time, and d as without them."""
    m, n, k = shape
    a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    sums = {"sums": tp.epilogue.OperandSum(over, lambda x: x * x)}
    gemm = tp.schedules.Gemm(a=tp.Operand(sums=sums))
    d, found = gemm(a, b)
    assert torch.equal(d, tp.schedules.Gemm()(a, b))
    torch.testing.assert_close(found, a.double().square().sum(1 if over == "k" else 0).float(), rtol=1e-5, atol=1e-4)
    assert all(torch.equal(gemm(a, b)[1], found) for _ in range(3))
