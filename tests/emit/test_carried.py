"""What run-time loops carry: fragments keep their form, or compiling says so."""

import pytest

import tmapipe as tp


def maxima(begin):
    """d[m, n] = max over s of x[s, m, n]. begin: what the maximum begins with, made of k."""

    class Maxima(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warps=4)
        ring = tp.BarrierRing(4, producer=load, consumer=work)
        x = tp.TmaLoadStage("s m n", tile=(8, 256), ring=ring)
        d = tp.TmaStoreStage("m n", tile=(8, 256), role=work)

        @load.jit
        def fill(self, k, tile):
            for s in range(k.steps("x", "s")):
                with k.ring.produce() as slot:
                    slot.x.load(tile, s=s)

        @work.jit
        def greatest(self, k, tile):
            top = begin(k)
            for _ in range(k.steps("x", "s")):
                with k.ring.consume() as slot:
                    top = tp.math.maximum(top, slot.x.read())
            k.d.store(tile, top)

    return Maxima()


def test_a_fragment_is_carried():
    assert maxima(lambda k: k.full("x", float("-inf"))).compile(arch="sm_90a").resources.spill_bytes == 0


@pytest.mark.parametrize("begin", [lambda k: -1e30, lambda k: k.full("x", 0), lambda k: k.full("x", 0.0, "rows")])
def test_what_becomes_a_fragment_of_another_form_is_refused(begin):
    """CuTe DSL fixes the types of what a loop carries at its beginning. The model cannot see that."""
    with pytest.raises(tp.ScopeError, match=r"`top`.*k\.full"):
        maxima(begin).compile(arch="sm_90a")
