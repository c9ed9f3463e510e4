"""GEMMs whose k is shared among the CTAs of a cluster, on the model."""

import numpy as np
import pytest

import tmapipe as tp
from tests.unit.errors import refused

S, E = tp.schedules, tp.epilogue


def inputs(m, n, k, batch=(), seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((*batch, rows, k)).astype(np.float16) for rows in (m, n))


def product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2)


@pytest.mark.parametrize(
    "parts,tile,along_m,shape,batch",
    [
        (2, (64, 32, 16), 1, (100, 72, 104), ()),
        (8, (64, 64, 64), 1, (130, 64, 520), ()),
        (8, (64, 64, 64), 1, (64, 64, 64), ()),  # seven of eight parts are beyond the end
        (4, (128, 96, 64), 1, (100, 104, 264), (2,)),
        (2, (64, 80, 64), 2, (260, 88, 200), ()),
        (3, (192, 24, 64), 1, (200, 48, 320), ()),
        (1, (64, 64, 64), 2, (200, 72, 136), ()),
    ],
)
def test_sums(parts, tile, along_m, shape, batch):
    a, b = inputs(*shape, batch)
    d = S.ClusterSplitK(parts, tile, along_m, epilogue=E.Epilogue(dtype="fp32"))(a, b)
    np.testing.assert_allclose(d, product(a, b), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("reduce", [None, "add"])
@pytest.mark.parametrize("shape", [(100, 72, 1040), (64, 40, 64)])
def test_several_clusters_a_tile(shape, reduce):
    a, b = inputs(*shape)
    gemm = S.ClusterSplitK(
        4, (64, 64, 64), tiles=tp.tiles.SplitKTiles(3, reduce=reduce), epilogue=E.Epilogue(dtype="fp32")
    )
    np.testing.assert_allclose(gemm(a, b), product(a, b), rtol=1e-4, atol=1e-3)


def test_several_clusters_a_tile_of_a_batch_with_an_epilogue():
    a, b = inputs(72, 40, 300 * 8, (2,))
    gemm = S.ClusterSplitK(2, (64, 32, 64), tiles=tp.tiles.SplitKTiles(5), epilogue=lambda acc: acc * 2.0)
    np.testing.assert_allclose(gemm(a, b).astype(np.float32), 2 * product(a, b), rtol=1e-2, atol=0.1)


def test_a_along_m_and_b_along_n():
    a, b = inputs(72, 136, 200)
    gemm = S.ClusterSplitK(4, (64, 64, 64), a=tp.Operand("m"), b=tp.Operand("n"), epilogue=E.Epilogue(dtype="fp32"))
    transposed = (np.ascontiguousarray(x.T).T for x in (a, b))
    np.testing.assert_allclose(gemm(*transposed), product(a, b), rtol=1e-4, atol=1e-3)


def test_an_epilogue_with_operands_and_sums():
    a, b = inputs(100, 72, 200)
    rng = np.random.default_rng(1)
    c, bias = rng.standard_normal((100, 72)).astype(np.float32), rng.standard_normal(72).astype(np.float32)
    epilogue = E.Epilogue(
        lambda acc, c, bias: {"d": acc + c + bias, "rows": acc, "columns": acc},
        operands={"c": E.Matrix(), "bias": E.PerColumn()},
        outputs={"rows": E.RowSum(), "columns": E.ColumnSum()},
        dtype="fp32",
    )
    d, rows, columns = S.ClusterSplitK(4, (64, 64, 64), epilogue=epilogue)(a, b, c=c, bias=bias)
    sums = product(a, b)
    np.testing.assert_allclose(d, sums + c + bias, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(rows, sums.sum(1), rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(columns, sums.sum(0), rtol=1e-3, atol=1e-2)


def test_the_same_bits_in_every_order():
    a, b = inputs(64, 64, 520)
    gemm, found = S.ClusterSplitK(4, epilogue=E.Epilogue(dtype="fp32")), []
    for seed in range(4):
        d = np.empty((64, 64), np.float32)
        gemm.simulate(a, b, d, seed=seed)
        found.append(d.tobytes())
    assert len(set(found)) == 1


def test_no_k():
    a, b = inputs(10, 16, 0)
    assert (S.ClusterSplitK(2, (64, 32, 64), epilogue=lambda acc: acc + 1.0)(a, b) == 1).all()


def test_refused():
    refused(S.ClusterSplitK, 0, argument="parts", rule="how many CTAs")
    refused(S.ClusterSplitK, 8, (64, 96, 64), argument="ctas", rule="multiples of 8")
    refused(S.ClusterSplitK, 2, (256, 64, 64), argument="shape", rule="64 a warpgroup")
    refused(S.ClusterSplitK, 2, mainloop=tp.mainloop.PingPong(), argument="mainloop", rule="share the rows")
    along = tp.mainloop.Cooperative(along="n")
    refused(S.ClusterSplitK, 2, mainloop=along, argument="mainloop", rule="share the rows")
    refused(S.ClusterSplitK, 2, tiles=tp.tiles.StreamKTiles(shares=2), argument="tiles", rule="whole tiles")
    refused(S.ClusterSplitK(2).plan, {"a": "int8", "b": "int8"}, argument="a", rule="sums are in fp32")
    refused(S.ClusterSplitK, 9, (64, 72, 64), 2, argument="cluster", rule="at most")
    role, other = tp.Role(warpgroups=1), S.Gemm((64, 64, 64), (1, 1))
    refused(tp.ClusterSum, role, other.a, "n", 2, argument="source", rule="is a Wgmma")
    refused(tp.ClusterSum, role, other.mma, 3, 2, argument="axis", rule="axis of the cluster")
    other.total = tp.ClusterSum(other.math, other.mma, "n", 2)
    refused(other.plan, argument="total.ctas", rule="how many CTAs the cluster has")


@pytest.mark.parametrize("calls", ["add", "start start"])
def test_start_comes_once_before_each_sum(calls):
    class Wrong(S.ClusterSplitK):
        load, math = S.ClusterSplitK.load, S.ClusterSplitK.math

        @math.jit
        def multiply(self, k, tile):
            for call in calls.split()[:-1]:
                getattr(k.total, call)()
            with k.mma.accumulate() as acc:
                for _ in range(self.tile_slots(k, tile)):
                    with k.ring.consume() as slot:
                        acc.add(slot.a, slot.b)
            if calls.split()[-1] == "start":
                k.total.start()
            self.store_all(k, tile, (k.total.add(acc),))

    with pytest.raises(tp.errors.ScopeError, match="start"):
        Wrong(2, (64, 32, 64))(*inputs(8, 16, 64))
