"""The small examples (stencil, row sums, histogram, ragged sums): right on the model, proved, compiled without spills."""

import inspect

import numpy as np
import pytest

import tmapipe as tp
from examples import conv, histogram, ragged, row_sums, stencil

#: By name: the schedule, its element types, and the most lines that it may have.
PROGRAMS = {
    "stencil": (stencil.Stencil, {"x": "fp32", "y": "fp32"}, 25),
    "conv": (conv.Conv, {}, 45),
    "row_sums": (row_sums.RowSums, {"x": "fp32", "y": "fp32"}, 25),
    "histogram": (histogram.Histogram, {"x": "int32", "h": "int32"}, 35),
    "ragged": (ragged.RaggedSums, {"x": "fp32", "y": "fp32"}, 35),
}
NAMES = list(PROGRAMS)


def tensors(name, made):
    """Inputs of random shapes, and what comes out."""
    if name == "conv":
        n, h, w, c, o = (int(made.integers(1, most)) for most in (3, 20, 35, 12, 20))
        x, f = (made.integers(-2, 3, shape).astype(tp.bf16.numpy) for shape in ((n, h, w, 8 * c), (3, 3, 8 * o, 8 * c)))
        return (x, f), conv.expected(x, f).astype(tp.bf16.numpy)
    m, n = 4 * int(made.integers(1, 40)), 4 * int(made.integers(1, 120))
    if name == "histogram":
        x = made.integers(-2, histogram.BINS + 2, (m, n)).astype(np.int32)
        return (x,), histogram.expected(x)
    x = made.integers(-9, 10, (m, n)).astype(np.float32)
    if name == "stencil":
        return (x,), stencil.expected(x)
    if name == "row_sums":
        return (x,), x.sum(1)
    begins = np.sort(made.integers(0, m + 1, int(made.integers(2, 12)))).astype(np.int32)
    return (x, begins), ragged.expected(x, begins)


@pytest.mark.parametrize("name", NAMES)
def test_right_for_random_shapes(name):
    made, schedule = np.random.default_rng(0), PROGRAMS[name][0]()
    for _ in range(6 if name in ("conv", "histogram") else 25):
        given, wanted = tensors(name, made)
        found, wanted = (each.astype(np.float32) for each in (schedule(*given), wanted))
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_proved(name):
    schedule, kinds, _ = PROGRAMS[name]
    report = schedule().check(kinds)
    assert report.ok, str(report)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_without_spills(name):
    schedule, kinds, _ = PROGRAMS[name]
    assert schedule().compile(kinds).resources.spill_bytes == 0


@pytest.mark.parametrize("name", NAMES)
def test_short_and_without_raw_code(name):
    schedule, _, most = PROGRAMS[name]
    lines = [line for line in inspect.getsource(schedule).splitlines() if line.strip()]
    assert len(lines) <= most
    assert not any(word in line for line in lines for word in ("k.raw", "k.isa", "import"))


def test_a_group_that_ends_elsewhere_for_one_role_is_found():
    class OneMore(ragged.RaggedSums):
        @ragged.RaggedSums.work.jit
        def add(self, k, tile):
            total = k.full("y", 0.0)
            for _ in range(k.begins.entry(tile.g + 1) - k.begins.entry(tile.g) + 1):
                with k.ring.consume() as slot:
                    total = total + slot.x.read()
            k.y.store(tile, total)

    class AlwaysSome(ragged.RaggedSums):
        @ragged.RaggedSums.load.jit
        def fill(self, k, tile):
            first, end = k.begins.entry(tile.g), k.begins.entry(tile.g + 1)
            with k.ring.produce() as slot:
                slot.x.load(tile, m=first)
            for i in range(end - first - 1):
                with k.ring.produce() as slot:
                    slot.x.load(tile, m=first + 1 + i)

    for form in (OneMore, AlwaysSome):
        assert not form().check({"x": "fp32", "y": "fp32"}).ok
