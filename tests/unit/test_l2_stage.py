"""L2Stage: a role that asks for tiles in L2, some slots ahead of the one that loads them."""

import numpy as np
import pytest

import tmapipe as tp
from tests.oracle.copy_forms import Far, FarPieces
from tests.unit.errors import refused
from tmapipe.isa.ops import TmaLoad, TmaPrefetch


@pytest.mark.parametrize("seed", range(4))
def test_ahead_but_not_too_far(seed):
    """Tiles are asked for in order, each once and before its load, and at most 4 of them before."""
    x = np.random.default_rng(seed).standard_normal((90, 200)).astype(np.float16)
    run = Far().simulate(x, out=(y := np.zeros_like(x)), seed=seed, clusters=1, trace=True)
    assert (y == x).all()
    steps = [entry.op for entry in run.trace if isinstance(entry.op, (TmaPrefetch, TmaLoad))]
    asked, loaded = ([op.at for op in steps if isinstance(op, kind)] for kind in (TmaPrefetch, TmaLoad))
    assert asked == loaded and len(asked) == 24
    ahead = [sum(1 if isinstance(op, TmaPrefetch) else -1 for op in steps[: i + 1]) for i in range(len(steps))]
    assert min(ahead) >= 0 and 2 < max(ahead) <= 5  # a slot is free once its tile is about to be loaded


def test_checked():
    report = Far().check()
    assert report.ok and not report.findings and "every trip count" in str(report)
    assert "far" not in {buffer.name for buffer in Far().plan().buffers}


def test_shares_of_peers():
    """Each CTA asks for its own share of a tile, as it loads that."""

    class Shared(Far):
        ask, load, store = Far.ask, Far.load, Far.store
        cluster = {"m": 2}  # noqa: RUF012
        x = tp.TmaLoadStage("n", tile=(1024,), ring=Far.ring, multicast=tp.MulticastGroup("m"))
        far = tp.L2Stage(x, ring=Far.pace)
        z = tp.TmaLoadStage("m n", tile=(1, 1024), ring=Far.ring)
        y = tp.TmaStoreStage(source=z)

        @load.jit
        def fill(self, k, tile):
            with k.pace.consume(), k.ring.produce() as slot:
                slot.x.load(tile)
                slot.z.load(tile)

    x, z = np.zeros(3000, np.float16), np.ones((5, 3000), np.float16)
    run = Shared().simulate(x, z, out=np.zeros_like(z), clusters=1, trace=True)
    asked = [(entry.op.at, entry.op.share) for entry in run.trace if isinstance(entry.op, TmaPrefetch)]
    assert {share for _, share in asked} == {0, 1}


def test_pieces():
    """Without a descriptor too; and for what lies beyond the tensor, nothing is asked."""
    x = np.random.default_rng(0).standard_normal((7, 256)).astype(np.float16)
    run = FarPieces().simulate(x, out=(y := np.zeros_like(x)), clusters=1)
    assert (y == x).all() and run.counts["BulkPrefetch"] == 2 * run.counts["BulkLoad"] == 56
    report = FarPieces().check()
    assert report.ok and not report.findings and "every trip count" in str(report)


def test_refused():
    ring, other = Far.ring, tp.BarrierRing(4, producer=tp.Role(warps=1), consumer=tp.Role(warps=1))
    x = Far.x
    for source in (None, Far.y, x.in_parts(2), x.nan_outside(), tp.CpAsyncLoadStage("m n", tile=(4, 64), ring=ring)):
        refused(tp.L2Stage, source, ring=Far.pace, argument="L2Stage(source)", rule="loads whole")
    refused(tp.L2Stage, x, ring=ring, argument="L2Stage(ring)", rule="of its own")
    refused(tp.L2Stage, x, ring="pace", argument="L2Stage(ring)", rule="of its own")
    refused(tp.L2Stage, x, ring=other, argument="L2Stage(ring)", rule="consumed by the role that loads")

    class Nowhere(Far):
        ask, load, store = Far.ask, Far.load, Far.store

        @ask.jit
        def look_ahead(self, k, tile):
            with k.pace.produce() as slot:
                slot.far.prefetch(m=tile.m)

    refused(Nowhere().check, argument="slot.far.prefetch", rule="coordinate")
    assert repr(Far.far).startswith("L2Stage(ring=BarrierRing(") and "source=TmaLoadStage(" in repr(Far.far)
