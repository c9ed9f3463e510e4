"""Every epilogue with every GEMM that takes it: operands, outputs and sums, on the model against NumPy, proved, and refused by
name where they make no sense."""

import ml_dtypes
import numpy as np
import pytest

import tmapipe as tp
from tests.sweeps import sample
from tests.unit.errors import refused
from tmapipe.schedules import FinishParts
from tmapipe.testing import assert_safe

S, E, M = tp.schedules, tp.epilogue, tp.mainloop
M_, N_, K_ = 150, 104, 136
ENDS = np.array([10, 90, 90, 150], np.int32)
OPERANDS = {"c": E.Matrix(), "bias": E.PerColumn(), "scale": E.PerRow("fp32"), "alpha": E.Scalar()}
OUTPUTS = {"aux": E.Output("fp32"), "rows": E.RowSum(), "columns": E.ColumnSum()}


def of_one(acc, c, bias, scale, alpha):
    value = tp.math.relu(acc + bias) * scale + alpha * c
    return {"d": value, "aux": acc, "rows": acc * acc, "columns": value}


def of_two(gate, up, c, bias, scale, alpha):
    value = tp.math.relu(gate + bias) * up * scale + alpha * c
    return {"d": value, "aux": gate, "rows": up * up, "columns": value}


def some(function, names):
    """*function*, of whose outputs only those of these *names*, besides d."""
    return lambda *sums, **operands: {n: v for n, v in function(*sums, **operands).items() if n in ("d", *names)}


def epilogue(function, names=tuple(OUTPUTS), **options):
    outputs = {name: OUTPUTS[name] for name in names}
    return E.Epilogue(some(function, names), operands=OPERANDS, outputs=outputs, dtype="fp32", **options)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    shapes = {
        "a": (M_, K_),
        "b": (N_, K_),
        "up": (N_, K_),
        "c": (M_, N_),
        "bias": N_,
        "many": (4, N_, K_),
        "ups": (4, N_, K_),
    }
    found = {name: rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for name, shape in shapes.items()}
    return found | {"scale": rng.standard_normal(M_).astype(np.float32), "alpha": 0.5}


def operands(data):
    return {name: data[name] for name in OPERANDS}


def product(a, b):
    return a.astype(np.float32) @ b.astype(np.float32).T


def grouped(a, matrices):
    found, start = np.zeros((M_, N_), np.float32), 0
    for matrix, end in zip(matrices, ENDS, strict=True):
        found[start:end], start = product(a[start:end], matrix), end
    return found


def compare(found, function, sums, data, names=tuple(OUTPUTS)):
    given = {name: np.asarray(value, np.float32) for name, value in operands(data).items()}
    given["scale"] = given["scale"][:, None]
    wanted = function(*sums, **given)
    wanted |= {"rows": wanted["rows"].sum(1), "columns": wanted["columns"].sum(0)}
    found = found if isinstance(found, tuple) else (found,)
    for name, value in zip(("d", *names), found, strict=True):
        np.testing.assert_allclose(value, wanted[name], rtol=2e-3, atol=2e-2, err_msg=name)


PARTS = {
    "split k": lambda **options: S.SplitK(3, (64, 64, 16), (1, 2), 2, **options),
    "split k by GPC": lambda **options: S.SplitK(2, (64, 64, 32), (1, 1), 2, tiles=tp.tiles.GpcTiles(), **options),
    "stream k": lambda **options: S.StreamK(4, (64, 64, 16), (1, 1), 2, **options),
    "gemm of an order in parts": lambda **options: S.Gemm((128, 64, 16), tiles=tp.tiles.SplitKTiles(5), **options),
}


@pytest.mark.parametrize("name", sample(PARTS, 2, first=1))
def test_parts_of_k_take_every_epilogue(name, data):
    """It is applied when the parts have been added."""
    made = PARTS[name](epilogue=epilogue(of_one))
    compare(made(data["a"], data["b"], **operands(data)), of_one, (product(data["a"], data["b"]),), data)
    d, rows = np.zeros((M_, N_), np.float32), np.zeros(M_, np.float32)
    found = made(data["a"], data["b"], out=d, rows=rows, **operands(data))
    assert found[0] is d and found[2] is rows and (rows != 0).all()
    plain = PARTS[name](epilogue=tp.math.relu)(data["a"], data["b"])
    assert plain.dtype == ml_dtypes.bfloat16 and (plain >= 0).all()


def test_an_epilogue_of_no_parts(data):
    """k = 0: the epilogue of zero."""
    made = S.SplitK(2, epilogue=lambda acc: acc + 3)
    assert (made(data["a"][:, :0], data["b"][:, :0]) == 3).all()


@pytest.mark.parametrize("mainloop", [M.Cooperative(), M.PingPong(), M.Cooperative(promote=True)], ids=str)
def test_gated_gemms_take_every_epilogue(mainloop, data):
    made = S.GatedGemm((64, 64, 32), (2, 1), 2, mainloop=mainloop, epilogue=epilogue(of_two))
    sums = product(data["a"], data["b"]), product(data["a"], data["up"])
    compare(made(data["a"], data["b"], data["up"], **operands(data)), of_two, sums, data)
    rows = np.zeros(M_, np.float32)
    assert made(data["a"], data["b"], data["up"], rows=rows, **operands(data))[2] is rows


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
def test_grouped_gemms_take_operands_and_outputs(cluster, data):
    """Rows of an operand that reach into the next group are not those of that group's tile."""
    made = S.GroupedGemm((64, 64, 32), cluster, 2, epilogue=epilogue(of_one, ("aux",)))
    sums = (grouped(data["a"], data["many"]),)
    for found in (
        made(data["a"], data["many"], ENDS, **operands(data)),
        made(data["a"], data["many"], offsets=ENDS, **operands(data)),
    ):
        compare(found, of_one, sums, data, ("aux",))
    d = np.zeros((M_, N_), np.float32)
    assert made(data["a"], data["many"], ENDS, d, **operands(data))[0] is d


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int8])
@pytest.mark.parametrize("beside", [(), ("c",)])
def test_rows_of_groups_that_begin_anywhere(dtype, beside, data):
    """TMA starts at multiples of 16 bytes: it loads a vector's elements from before the group's first row."""
    ends = np.array([3, 3, 74, M_], np.int32)
    scale = (np.arange(M_) % 50 - 20).astype(dtype)
    chosen = {"scale": E.PerRow(), **({"c": E.Matrix()} if beside else {})}
    combined = E.Epilogue(lambda acc, scale, c=0.0: acc * scale + c, operands=chosen, dtype="fp32")
    given = {"scale": scale, **{name: data[name] for name in beside}}
    found = S.GroupedGemm((64, 64, 32), (1, 1), 2, epilogue=combined)(data["a"], data["many"], ends, **given)
    which = np.searchsorted(ends, np.arange(M_), side="right")
    sums = np.einsum("mk,mnk->mn", data["a"].astype(np.float64), data["many"].astype(np.float64)[which])
    wanted = sums * scale.astype(np.float64)[:, None] + (data["c"].astype(np.float64) if beside else 0.0)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-2)


def test_groups_of_gated_gemms(data):
    """A mixture of experts, each of them gated."""
    made = S.GatedGemm((64, 64, 32), (1, 2), 2, tiles=tp.tiles.GroupedTiles(), epilogue=epilogue(of_two, ("aux",)))
    sums = grouped(data["a"], data["many"]), grouped(data["a"], data["ups"])
    compare(made(data["a"], data["many"], data["ups"], ENDS, **operands(data)), of_two, sums, data, ("aux",))


def test_a_dictionary_of_d_alone(data):
    """Is what the epilogue gives for it, wherever the sums end."""
    fused = E.Epilogue(lambda acc: {"d": acc + 3})
    for tiles in (tp.tiles.PersistentTiles(), tp.tiles.SplitKTiles(2)):
        made = S.Gemm((64, 64, 32), (1, 1), tiles=tiles, epilogue=fused)(data["a"], data["b"])
        np.testing.assert_allclose(made.astype(np.float32), product(data["a"], data["b"]) + 3, rtol=1e-2, atol=0.2)
    with pytest.raises(tp.errors.ScopeError, match="returned e, not one value for each output"):
        S.SplitK(2, (64, 64, 32), (1, 1), epilogue=lambda acc: {"e": acc})(data["a"], data["b"])


SAFE = {
    "finish parts": lambda: FinishParts(epilogue(of_one)),
    "finish parts, an activation": lambda: FinishParts(E.Epilogue(tp.math.gelu)),
    "gated": lambda: S.GatedGemm(epilogue=epilogue(of_two, stages=1)),
    "gated, operands": lambda: S.GatedGemm((64, 64, 64), (1, 2), 3, epilogue=epilogue(of_two, ())),
    "gated ping-pong": lambda: S.GatedGemm(
        (64, 64, 64), stages=3, mainloop=M.PingPong(), epilogue=epilogue(of_two, ("aux",))
    ),
    "grouped": lambda: S.GroupedGemm((128, 128, 64), epilogue=epilogue(of_one, ("aux",), stages=1)),
    "gated groups": lambda: S.GatedGemm(
        (64, 64, 64), stages=3, tiles=tp.tiles.GroupedTiles(), epilogue=epilogue(of_two, ("aux",), stages=1)
    ),
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_finish_parts_alone(dtype):
    """A register tile leaves in one piece, also where that is wider than a swizzle span."""
    workspace = np.random.default_rng(0).integers(-3, 4, (3, 72, 136)).astype(np.float32)
    d = np.zeros((72, 136), dtype)
    FinishParts(E.Epilogue(lambda acc: acc * 2))(workspace, out=d)
    assert (d == 2 * workspace.sum(0)).all()


class InTwoPieces(tp.Schedule):
    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, producer=load, consumer=math)
    x = tp.TmaLoadStage("m n", tile=(64, 64), ring=ring, dtype="fp32")
    total = tp.RegisterTile(math, (64, 64))
    y = tp.TmaStoreStage("m n", source=total, columns=32, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @math.jit
    def move(self, k, tile):
        with k.ring.consume() as slot:
            total = k.total.read(slot.x)
        k.y.store(tile, total)


def test_a_register_tile_is_stored_in_one_piece():
    refused(lambda: InTwoPieces().plan(), argument="y.columns", value=32, rule="all of a RegisterTile's")


@pytest.mark.parametrize("name", sample(SAFE, 4, first=3))
def test_proved(name):
    assert_safe(SAFE[name]())


def test_refused(data):
    """What makes no sense, by name."""
    sums = E.Epilogue(lambda acc: {"d": acc, "sums": acc}, outputs={"sums": E.RowSum()})
    refused(lambda: S.GroupedGemm(epilogue=sums), argument="outputs['sums']", value=E.RowSum(), rule="GroupedTiles")
    for tiles in (tp.tiles.SplitKTiles(2), tp.tiles.StreamKTiles(shares=2)):
        refused(
            lambda tiles=tiles: S.Gemm((64, 64, 64), mainloop=M.PingPong(), tiles=tiles),
            argument="mainloop", value=M.PingPong(), rule=type(tiles).__name__,
        )  # fmt: skip
        refused(lambda tiles=tiles: S.GatedGemm(tiles=tiles), argument="tiles", value=tiles, rule="one product")
    for make in (S.SplitK, S.StreamK):
        refused(
            lambda make=make: make(2, reduce="add", epilogue=tp.math.relu),
            argument="epilogue", value=tp.math.relu, rule="added as they come",
        )  # fmt: skip
    refused(
        lambda: tp.tiles.SplitKTiles(2, tp.tiles.SplitKTiles(2)),
        argument="SplitKTiles(tiles)",
        rule="order of whole tiles",
    )
    refused(lambda: tp.tiles.SplitKTiles(2, reduce="max"), argument="SplitKTiles(reduce)", value="max", rule='"add"')
    refused(lambda: S.Gemm(tiles=tp.tiles.GroupedTiles(rows=64)), argument="GroupedTiles(rows)", value=64, rule="128")
    batch = np.zeros((2, 64, 64), np.float16)
    for make in (
        S.SplitK(2, reduce="add"),
        S.StreamK(2),
        S.SplitK(2, epilogue=E.Epilogue(lambda x, c: x + c, operands={"c": E.Matrix()})),
    ):
        refused(lambda: make(batch, batch), argument="a", value=(2, 64, 64), rule="is a matrix")  # noqa: B023


def test_nothing_is_zeroed_that_is_refused(data):
    """The output of parts that are added as they come is set to zero only when all else is right."""
    d = np.ones((M_, N_), np.float32)
    made = S.SplitK(2, (64, 64, 64), reduce="add")
    refused(lambda: made(data["a"], data["b"][:, :64], d), argument="b.shape", rule="k = 64")
    assert (d == 1).all()
