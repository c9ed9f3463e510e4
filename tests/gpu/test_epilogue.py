"""Epilogues on the device: functions, operands of every kind, ragged shapes, against float64."""

import random

import pytest
import torch

import tmapipe as tp

S, E, F = tp.schedules, tp.epilogue, tp.math
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 2e-5}  # rounding of the output type
SCHEDULES = [
    (S.Gemm, (128, 256, 64)),
    (S.Gemm, (128, 128, 64)),
    (S.Gemm, (64, 72, 64)),
    (S.Gemm, (192, 128, 64)),
    (S.Gemm, (256, 128, 64)),
    (S.Gemm, (128, 32, 64)),
    (S.PingPong, (64, 256, 64)),
    (S.PingPong, (128, 128, 64)),
]
FUNCTIONS = {
    "exp": torch.exp,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def error(d, reference):
    assert not torch.isnan(d).any(), "elements that were never written"
    return ((d.double() - reference).norm() / reference.norm()).item()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    """Each function, on values from the whole range that matters; element by element."""
    torch.manual_seed(0)
    a = torch.randn(300, 64, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(520, 64, device="cuda", dtype=torch.bfloat16)
    function = getattr(F, name)
    d = S.Gemm((128, 128, 64), (2, 1), epilogue=E.Epilogue(lambda acc: function(acc * 0.25), dtype="fp32"))(a, b)
    reference = FUNCTIONS[name]((a.double() @ b.double().T) * 0.25)
    torch.testing.assert_close(d.double(), reference, rtol=1e-3, atol=2e-3)  # tanh.approx: 2^-11


def test_roots_and_choices():
    torch.manual_seed(0)
    a = torch.randn(130, 64, device="cuda", dtype=torch.float16)
    b = torch.randn(136, 64, device="cuda", dtype=torch.float16)
    x = a.double() @ b.double().T
    cases = {
        "sqrt": (lambda acc: F.sqrt(acc * acc), x.abs()),
        "rsqrt": (lambda acc: F.rsqrt(acc * acc + 1.0), (x * x + 1).rsqrt()),
        "clamp": (lambda acc: F.minimum(F.maximum(acc, -1.0), 2.0), x.clamp(-1, 2)),
        "where": (lambda acc: F.where(acc > 0.0, acc, 0.1 * acc), torch.where(x > 0, x, 0.1 * x)),
    }
    for name, (epilogue, reference) in cases.items():
        d = S.Gemm((128, 128, 64), (1, 1), epilogue=E.Epilogue(epilogue, dtype="fp32"))(a, b)
        assert error(d, reference) < 1e-5, name


def test_nan_passes_maximum():
    a = torch.randn(128, 64, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(128, 64, device="cuda", dtype=torch.bfloat16)
    a[3, 5] = float("nan")
    d = S.Gemm((128, 128, 64), (1, 1), epilogue=F.relu)(a, b)
    assert torch.isnan(d[3]).all() and torch.isnan(d).sum() == d.shape[1]


@pytest.mark.parametrize("seed", range(24))
def test_operands(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kind, tile = SCHEDULES[seed % len(SCHEDULES)]
    names = rng.sample(["c", "bias", "scale", "alpha"], rng.randint(1, 4))
    kinds = {"c": E.Matrix(), "bias": E.PerColumn(), "scale": E.PerRow(), "alpha": E.Scalar()}
    cluster = rng.choice([(1, 1), (2, 1), (1, 2)]) if tile != (64, 72, 64) else (1, 1)

    def epilogue(acc, alpha=1.0, scale=1.0, c=0.0, bias=0.0):
        return acc * alpha * scale + c + bias

    out_type = rng.choice([torch.bfloat16, torch.float32])
    gemm = kind(
        tile,
        cluster,
        epilogue=E.Epilogue(
            epilogue,
            operands={name: kinds[name] for name in names},
            stages=rng.choice([1, 2]),
            ahead=rng.choice([1, 2]),
        ),
    )
    narrow, wide = rng.choice([torch.bfloat16, torch.float16]), rng.choice([torch.bfloat16, torch.float32])
    for _ in range(3):
        m, n, k = rng.randint(1, 900), 8 * rng.randint(1, 110), 8 * rng.randint(1, 60)
        batch = (rng.randint(1, 3),) if rng.random() < 0.3 else ()
        a = torch.randn(*batch, m, k, device="cuda", dtype=narrow)
        b = torch.randn(*batch, n, k, device="cuda", dtype=narrow)
        every = {
            "c": torch.randn(*batch, m, n, device="cuda", dtype=wide),
            "bias": torch.randn(n, device="cuda", dtype=wide),
            "scale": torch.randn(m, device="cuda", dtype=narrow),
            "alpha": rng.choice([0.75, torch.full((1,), 0.75, device="cuda")]),
        }
        given = {name: every[name] for name in names}
        scale = given["scale"].double()[:, None] if "scale" in given else 1.0
        reference = a.double() @ b.double().transpose(-1, -2) * scale * (0.75 if "alpha" in given else 1.0)
        reference = reference + given.get("c", 0.0) + given.get("bias", 0.0)
        out = torch.full((*batch, m, n), float("nan"), device="cuda", dtype=out_type)
        gemm(a, b, out=out, **given)
        assert error(out, reference) < TOLERANCE[out_type]
        first = out.clone()
        for _ in range(3):
            out.fill_(float("nan"))
            gemm(a, b, out=out, **given)
            assert torch.equal(out, first)


def test_many_tiles_a_cta():
    torch.manual_seed(0)
    a = torch.randn(4104, 520, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(5000, 520, device="cuda", dtype=torch.bfloat16)
    c = torch.randn(4104, 5000, device="cuda", dtype=torch.bfloat16)
    reference = a.double() @ b.double().T + 0.5 * c.double()
    for kind, tile in SCHEDULES:
        gemm = kind(tile, (1, 1), epilogue=E.Epilogue(lambda acc, c: acc + 0.5 * c, operands={"c": E.Matrix()}))
        out = torch.full((4104, 5000), float("nan"), device="cuda", dtype=torch.bfloat16)
        assert error(gemm(a, b, c, out=out), reference) < TOLERANCE[torch.bfloat16], (kind, tile)


@pytest.mark.parametrize("kind,tile", SCHEDULES)
def test_several_outputs(kind, tile):
    torch.manual_seed(0)
    a = torch.randn(1300, 264, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(2056, 264, device="cuda", dtype=torch.bfloat16)
    reference = a.double() @ b.double().T
    for stages in (1, 2):
        gemm = kind(
            tile,
            (1, 1),
            epilogue=E.Epilogue(
                lambda acc: {"d": F.relu(acc), "sums": acc}, outputs={"sums": E.Output("fp32")}, stages=stages
            ),
        )
        d = torch.full((1300, 2056), float("nan"), device="cuda", dtype=torch.bfloat16)
        sums = torch.full((1300, 2056), float("nan"), device="cuda", dtype=torch.float32)
        gemm(a, b, d, sums)
        assert error(sums, reference) < TOLERANCE[torch.float32]
        assert error(d, reference.clamp(min=0)) < TOLERANCE[torch.bfloat16]


def test_without_k():
    a, b = (torch.empty(rows, 0, device="cuda", dtype=torch.bfloat16) for rows in (40, 24))
    bias = torch.randn(24, device="cuda", dtype=torch.bfloat16)
    gemm = S.Gemm(epilogue=E.Epilogue(lambda acc, bias: acc + bias, operands={"bias": E.PerColumn()}))
    assert torch.equal(gemm(a, b, bias), bias.expand(40, 24))


def test_in_place_is_refused():
    """The pieces of a tile may overlap, and would read back what was just stored."""
    a = torch.randn(1000, 256, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(1024, 256, device="cuda", dtype=torch.bfloat16)
    d = torch.randn(1000, 1024, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(tp.InputError, match="overlap"):
        S.Gemm((128, 128, 64), (2, 1), epilogue=E.Epilogue(lambda acc, c: acc + c, operands={"c": E.Matrix()}))(
            a, b, c=d, out=d
        )


@pytest.mark.parametrize("tile", [(128, 128, 64), (128, 64, 64), (64, 128, 64), (192, 96, 64), (256, 64, 64)])
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
def test_swiglu(tile, cluster):
    torch.manual_seed(0)
    for m, n, k in ((1300, 2056, 264), (70, 136, 8), (900, 1000, 1024)):
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        weights = torch.randn(2 * n, k, device="cuda", dtype=torch.bfloat16) / k**0.5
        d = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        gemm = S.GatedGemm(tile, cluster)
        gemm(a, weights[:n], weights[n:], out=d)
        x, y = (a.double() @ w.double().T for w in (weights[:n], weights[n:]))
        assert error(d, torch.nn.functional.silu(x) * y) < TOLERANCE[torch.bfloat16]
        first = d.clone()
        gemm(a, weights[:n], weights[n:], out=d)
        assert torch.equal(d, first)
