"""Bodies that never end, and bodies that start threads: the call says so, and where."""

import threading

import numpy as np
import pytest

import tmapipe as tp


class Copy(tp.Schedule):
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(8, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values)


class Endless(Copy):
    @Copy.load.jit
    def fill(self, k, tile):
        while k.extent("m") > 0:
            with k.ring.produce() as slot:
                slot.x.load(tile)

    @Copy.work.jit
    def drain(self, k, tile):
        while k.extent("m") > 0:
            with k.ring.consume() as slot:
                slot.x.read()


class Threads(Copy):
    @Copy.load.jit
    def fill(self, k, tile):
        def load():
            with k.ring.produce() as slot:
                slot.x.load(tile)

        thread = threading.Thread(target=load)
        thread.start()
        thread.join()


X = np.ones((8, 64), np.float32)


def line_of(kind, text):
    import inspect

    lines, first = inspect.getsourcelines(kind)
    return f"test_endless.py:{first + next(i for i, line in enumerate(lines) if text in line)}"


def test_loops_that_never_end(monkeypatch):
    monkeypatch.setattr("tmapipe.model.run.STEPS_OF_TILE", 1000)
    monkeypatch.setattr("tmapipe.model.run.STEPS_OF_WARP", 100)
    with pytest.raises(tp.PipelineError, match="every loop of a body ends") as info:
        Endless()(X)
    said = str(info.value)
    assert "stopped after 1500 operations" in said and "load is at" in said and "work is at" in said
    assert f"{line_of(Endless, 'k.ring.produce()').rpartition(':')[0]}:" in said
    assert (Copy()(X) == X).all()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads():
    for call in (lambda: Threads()(X), lambda: Threads().check()):
        with pytest.raises(tp.errors.ScopeError, match="thread that a body has started") as info:
            call()
        assert line_of(Threads, "k.ring.produce()") in str(info.value)
