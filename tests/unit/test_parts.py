"""GEMMs whose k is shared among CTAs: what is refused before anything is launched or zeroed, and their epilogues."""

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe.schedules.fused import AddRows, adding_rows

S, E = tp.schedules, tp.epilogue
SMALL = ((64, 64, 32), (1, 1), 2)
ALL = [
    pytest.param(lambda **options: S.SplitK(2, *SMALL, **options), id="SplitK"),
    pytest.param(lambda **options: S.SplitK(2, *SMALL, reduce="add", **options), id="SplitK, added"),
    pytest.param(lambda **options: S.StreamK(3, *SMALL, **options), id="StreamK"),
]
RNG = np.random.default_rng(0)
A, B = (RNG.integers(-3, 4, (64, 64)).astype(np.float32).astype(np.float16) for _ in range(2))
RIGHT = A.astype(np.float32) @ B.astype(np.float32).T


@pytest.mark.parametrize("make", ALL)
def test_an_output_that_is_refused_is_left_as_it_was(make):
    gemm, a = make(), A.copy()
    for _ in range(2):  # also where such tensors have been found right before
        refused(gemm, a, B, out=a, argument="d", rule="must not overlap that of a")
        refused(gemm, a, B, a, argument="d", rule="must not overlap that of a")
        assert np.array_equal(a, A)
        assert np.allclose(gemm(a, B, out=np.ones((64, 64), np.float16)).astype(np.float32), RIGHT, atol=0.5)
    for shape in ((64, 72), (72, 64), (64,), (2, 64, 64), ()):
        d = np.ones(shape, np.float16)
        refused(gemm, A, B, out=d, argument="d", rule="m, n|has m =|has n =|dimensions")
        assert (d == 1).all()
    for d in (
        np.ones((64, 64), np.float64),
        np.ones((64, 128), np.float16)[:, ::2],
        np.ones((64, 65), np.float16)[:, :64],
        np.ones((64, 64), np.int32),
    ):
        refused(gemm, A, B, out=d, argument="d", rule="type|contiguous|multiple of 16|integers|32 bits")
        assert (d == 1).all()
    parameter = torch.nn.Parameter(torch.ones(64, 64, dtype=torch.float16))
    refused(
        gemm, torch.from_numpy(A), torch.from_numpy(B), out=parameter, argument="d", rule="automatic differentiation"
    )
    assert (parameter == 1).all()


@pytest.mark.parametrize("make", ALL)
def test_each_tensor_is_given_once(make):
    gemm, d = make(), np.ones((64, 64), np.float16)
    refused(gemm, B, a=A, argument="a", rule="given twice")
    refused(gemm, A, B, d, d, argument="tensors", rule="at most 3: a, b, d")
    refused(gemm, A, B, d, out=d, argument="out", rule="given already")
    refused(gemm, A, B, c=d, argument="c", rule="the stages are a, b, d")
    refused(gemm, A, argument="b", rule="torch tensor or a NumPy array")
    refused(gemm, A[0], B, argument="a", value=(64,), rule="is a matrix")
    refused(gemm, A, B[None], argument="b", value=(1, 64, 64), rule="is a matrix")
    assert np.allclose(gemm(b=B, a=A, d=d).astype(np.float32), RIGHT, atol=0.5) and d is not None


@pytest.mark.parametrize("make", [ALL[0], ALL[2]])
def test_the_epilogue_is_that_of_the_whole_sum(make):
    found = make(epilogue=E.Epilogue(lambda acc: tp.math.relu(acc * 0.5 + 1), dtype="fp32"))(A, B)
    assert found.dtype == np.float32 and np.allclose(found, np.maximum(RIGHT * 0.5 + 1, 0))
    empty = make(epilogue=lambda acc: acc + 3)(A[:, :0], B[:, :0])
    assert (empty == 3).all()


@pytest.mark.parametrize("make", [ALL[0], ALL[2]])
def test_gemms_with_equal_epilogues_share_what_adds_the_parts(make):
    def function(acc, bias):
        return acc + bias

    def second(**options):
        operands = {"bias": E.PerColumn()}
        return make(epilogue=E.Epilogue(function, operands=operands, **options)).parts_of_k.finish((64, 64))

    assert second() is second() is not second(dtype="fp32")


@pytest.mark.parametrize("shape, tile", [
    ((4096, 4096), (8, 256)), ((496, 208), (4, 256)), ((728, 72), (8, 64)), ((480, 32), (8, 32)), ((3, 16, 8), (8, 32)),
    ((1, 1000), (1, 256)),
])  # fmt: skip
def test_parts_of_small_outputs_are_added_in_small_tiles(shape, tile):
    parts = S.SplitK(2).parts_of_k
    assert parts.finish(shape).d.tile == tile and parts.finish(shape) is S.SplitK(3).parts_of_k.finish(shape)
    rng = np.random.default_rng(0)
    few = rng.standard_normal((3, *(min(extent, 40) for extent in shape[-2:]))).astype(np.float32)
    assert np.allclose(parts.finish(shape)(few), few.sum(0), atol=1e-5)


@pytest.mark.parametrize("make", ALL[1:2])
def test_epilogues_that_parts_have_not(make):
    operands = E.Epilogue(lambda acc, bias: acc + bias, operands={"bias": E.PerColumn()})
    outputs = E.Epilogue(lambda acc: {"d": acc, "e": acc}, outputs={"e": E.Output()})
    for epilogue in (operands, outputs):
        refused(make, epilogue=epilogue, argument="epilogue", rule="parts of k")
    refused(S.AddParts, epilogue=3, argument="AddParts(epilogue)", value=3, rule="function of the sums")


def test_parts_that_are_added_in_any_type():
    """Of those in which the engine adds."""
    for name in ("fp8_e4m3", "fp8_e5m2"):
        d = np.zeros((64, 64), tp.base.arithmetic.as_dtype(name).numpy)
        refused(S.SplitK(2, *SMALL, reduce="add"), A, B, d, argument="d", value=name, rule="TMA stores can add")
    for name in ("fp16", "bf16"):
        d = np.zeros((64, 64), tp.base.arithmetic.as_dtype(name).numpy)
        found = S.SplitK(2, *SMALL, reduce="add")(A[:, :2], B[:, :2], d)
        assert np.allclose(
            found.astype(np.float32), A[:, :2].astype(np.float32) @ B[:, :2].astype(np.float32).T, rtol=0.2
        )


def test_a_workspace_has_the_most_pieces_that_a_tile_of_a_cluster_can_have():
    """Two clusters' tiles of three steps, in three shares of two steps: a tile has two pieces, or three."""
    for tile, cluster, shape in (((64, 64, 32), (2, 1), (256, 64)), ((64, 64, 32), (1, 2), (64, 256))):
        gemm = S.StreamK(3, tile, cluster)
        a, b = np.ones((shape[0], 96), np.float16), np.ones((shape[1], 96), np.float16)
        assert (gemm(a, b) == 96).all()


# ---- options that are of another kind -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), [(S.SplitK, "parts"), (S.StreamK, "shares")])
def test_as_many_as_can_be_counted(kind, name):
    refused(kind, 2**70, argument=name, value=2**70, rule="below 2.31")


@pytest.mark.parametrize("kind", [S.Gemm, S.PingPong, S.GatedGemm, S.GroupedGemm])
def test_options(kind):
    for tile in (64, (64, 64), (64.0, 64, 32), "tile", (True, 64, 32)):
        refused(kind, tile, argument="tile", value=tile, rule="(m, n, k)")
    for cluster in (2, (1,), (1, 1, 1), (1.0, 1), {"m": 2}, "m"):
        refused(kind, cluster=cluster, argument="cluster", value=cluster, rule="(m, n)")
    for cluster in ((0, 1), (1, -1), (3, 17)):
        refused(kind, cluster=cluster, argument="cluster", rule="positive|1 or more|at most|CTAs|power")
    for wrong in (None, "m", 3, tp.Operand, {"major": "k"}):
        refused(kind, a=wrong, argument="a", value=wrong, rule="of type Operand")
        refused(kind, b=wrong, argument="b", value=wrong, rule="of type Operand")


def test_mainloops_and_orders():
    for wrong in (None, "pingpong", tp.mainloop.PingPong, 2):
        refused(S.Gemm, mainloop=wrong, argument="mainloop", value=wrong, rule="of type Cooperative or PingPong")
    for wrong in (None, tp.tiles.Snake(8), 8, tp.tiles.PersistentTiles):
        refused(S.Gemm, tiles=wrong, argument="tiles", value=wrong, rule="of type TileOrder")
        copy = S.Copy()
        copy.tiles = wrong
        refused(copy.plan, argument="Schedule.tiles", value=wrong, rule="order of output tiles")
    for wrong in ("max", np.zeros(2), True):
        refused(tp.tiles.SplitKTiles, 2, reduce=wrong, argument="SplitKTiles(reduce)", rule='None or "add"')
    for wrong in (1, None, "yes", np.zeros(2)):
        for kind in (tp.mainloop.Cooperative, tp.mainloop.PingPong):
            refused(kind, promote=wrong, argument=f"{kind.__name__}(promote)", rule="True or False")
        refused(tp.mainloop.PingPong, in_turn=wrong, argument="PingPong(in_turn)", rule="True or False")


@pytest.mark.parametrize("together", [1, 3, 4, 8])
@pytest.mark.parametrize("parts", [1, 2, 4, 5, 9])
def test_parts_in_a_slot_are_added_one_after_another(parts, together):
    """Those beyond the last one are zeros, so the bits are those of parts added in their order."""
    x = np.random.default_rng(0).standard_normal((parts, 10, 72)).astype(np.float32)
    expected = x[0]
    for part in x[1:]:
        expected = expected + part
    assert (S.AddParts((8, 64), together=together)(x) == expected).all()


@pytest.mark.parametrize("together", [0, 2.5, True])
def test_of_no_parts_in_a_slot(together):
    refused(S.AddParts, together=together, argument="AddParts(together)", value=together, rule="number of parts")


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_rows_are_added_up(rows, batch):
    """Beyond the edge, slots hold zeros."""
    x = np.random.default_rng(0).standard_normal((*batch, rows, 72)).astype(np.float32)
    found = AddRows((4, 32), 2)(x)
    assert found.shape == (*batch, 72)
    np.testing.assert_allclose(found, x.astype(np.float64).sum(-2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("names", [("v",), ("v", "w")])
def test_rows_are_added_up_to_tensors_of_their_own(names):
    x = np.random.default_rng(0).standard_normal((len(names), 9, 72)).astype(np.float32)
    adding = AddRows((4, 32), 2, names)
    found = adding(x[..., :67])
    for each, rows in zip(found if len(names) > 1 else (found,), x[..., :67], strict=True):
        assert each.base is None
        np.testing.assert_allclose(each, rows.astype(np.float64).sum(0), rtol=1e-5, atol=1e-5)
    report = adding.check()
    assert report.ok and not report.findings


@pytest.mark.parametrize("tile", [64, (64,), (0, 32), (64, 48), (64, 32, 1)])
def test_rows_in_no_tile(tile):
    refused(AddRows, tile, argument="AddRows(tile)", value=tile, rule="multiple of 32 columns")


@pytest.mark.parametrize(
    "shape,tile,stages",
    [
        ((40, 8448), (64, 32), 1), ((16, 100), (16, 32), 1), ((4, 32, 8192), (64, 128), 1), ((256, 9000), (256, 32), 1),
        ((257, 100), (64, 32), 8), ((257, 9000), (16, 128), 8),
    ],
)  # fmt: skip
def test_rows_are_added_in_tiles_that_fit_them(shape, tile, stages):
    """One schedule for all of a kind, whose slots find room; up to 256 rows are one slot."""
    adding = adding_rows(shape)
    assert adding.x.tile == tile and adding.ring.stages == stages and adding.plan().smem_bytes < 100_000
    assert adding is adding_rows(shape)
    each = adding.tiles.smem_bytes(adding.plan()) + 1024  # of what a multiprocessor keeps of each CTA
    assert 3 * each <= 228 << 10 < 4 * each  # so that not all wait on few multiprocessors


def test_rows_of_one_slot_are_no_more_than_it_has():
    x = np.random.default_rng(0).standard_normal((2, 16, 72)).astype(np.float32)
    adding = AddRows((16, 32), 0)
    assert adding.check().ok
    np.testing.assert_allclose(adding(x), x.astype(np.float64).sum(-2), rtol=1e-5, atol=1e-5)
    refused(adding, np.zeros((17, 72), np.float32), argument="x", rule="at most 16")
