"""`tmapipe.math` on numbers and on the model's fragments, against float64."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tmapipe as tp
from tmapipe.isa.fragment import Fragment

EXACT = {
    "exp": math.exp,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": lambda x: 0.5 + 0.5 * math.tanh(x / 2),
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x * (0.5 + 0.5 * math.tanh(x / 2)),
    "gelu": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}
finite = st.floats(-60, 60, width=32)


@pytest.mark.parametrize("name", EXACT)
@given(x=st.lists(finite, min_size=1, max_size=8))
def test_functions(name, x):
    function = getattr(tp.math, name)
    expected = [EXACT[name](value) for value in x]
    fragment = function(np.array(x, np.float32))
    assert fragment.dtype == np.float32 and fragment.shape == (len(x),)
    np.testing.assert_allclose(fragment, expected, rtol=1e-5, atol=1e-5)
    for value, exact in zip(x, expected, strict=True):
        result = function(value)
        assert type(result) is float and result == pytest.approx(exact, rel=1e-12, abs=1e-12)


@given(x=st.lists(st.floats(0, 2.0**100, width=32, allow_subnormal=False), min_size=1, max_size=8))
def test_roots(x):
    wide = np.array(x, np.float64)
    np.testing.assert_allclose(tp.math.sqrt(np.array(x, np.float32)), np.sqrt(wide), rtol=1e-6)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(tp.math.rsqrt(np.array(x, np.float32)), 1 / np.sqrt(wide), rtol=1e-6)


def test_roots_of_subnormal_numbers():
    x = np.array([1e-45, 1e-40], np.float32)
    assert (tp.math.sqrt(x) == 0).all() and np.isinf(tp.math.rsqrt(x)).all()


@given(x=st.lists(finite, min_size=1, max_size=8))
def test_gelu_by_erf(x):
    exact = [value / 2 * (1 + math.erf(value / math.sqrt(2))) for value in x]
    np.testing.assert_allclose(tp.math.gelu(np.array(x, np.float32), "none"), exact, rtol=1e-5, atol=1e-5)


@given(x=st.lists(finite, min_size=3, max_size=3), y=st.one_of(finite, st.lists(finite, min_size=3, max_size=3)))
def test_choices(x, y):
    x, y = np.array(x, np.float32), y if isinstance(y, float) else np.array(y, np.float32)
    assert (tp.math.maximum(x, y) == np.maximum(x, y)).all() and (tp.math.minimum(y, x) == np.minimum(x, y)).all()
    assert (tp.math.where(x > y, x, y) == np.maximum(x, y)).all()
    assert tp.math.where(x[0] > 1.0, 2.0, 3.0) == (2.0 if x[0] > 1.0 else 3.0)


def test_nan_and_infinity():
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    assert np.array_equal(tp.math.relu(x), [np.nan, np.inf, 0], equal_nan=True)
    assert np.array_equal(tp.math.sigmoid(x), [np.nan, 1, 0], equal_nan=True)
    assert np.array_equal(tp.math.sqrt(x), [np.nan, np.inf, np.nan], equal_nan=True)
    assert tp.math.exp(1000.0) == math.inf and tp.math.rsqrt(0.0) == math.inf


def test_narrow_fragments_are_widened():
    x = np.array([1.5, -2.0], tp.dtypes.bf16.numpy)
    for name in EXACT:
        assert getattr(tp.math, name)(x).dtype == np.float32


def test_unknown_form_of_gelu():
    with pytest.raises(tp.InputError, match="gelu"):
        tp.math.gelu(1.0, "fast")


def test_a_gemm_on_the_model():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 64)).astype(np.float16) for rows in (64, 128))
    d = tp.schedules.Gemm(
        (64, 128, 64), (1, 1), epilogue=tp.epilogue.Epilogue(lambda x: tp.math.gelu(0.3 * x), dtype="fp32")
    )(a, b)
    product = 0.3 * (a.astype(np.float64) @ b.astype(np.float64).T)
    np.testing.assert_allclose(d, [[EXACT["gelu"](x) for x in row] for row in product], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", ["relu", "gelu", "exp", "sqrt", "sigmoid"])
def test_what_is_neither_a_fragment_nor_a_number_is_refused(function):
    torch = pytest.importorskip("torch")
    for wrong in (torch.tensor(-1.0), "-1", None, [-1.0]):
        with pytest.raises(tp.InputError, match="takes fragments and numbers"):
            getattr(tp.math, function)(wrong)


def test_arrays_of_narrow_types_are_computed_in_full_precision():
    for dtype in (np.int8, np.float16):
        found = tp.math.sqrt(np.array([3, 2], dtype))
        np.testing.assert_allclose(found, np.sqrt([3.0, 2.0]), rtol=1e-6)
        np.testing.assert_allclose(tp.math.exp(np.array([3, 2], dtype)), np.exp([3.0, 2.0]), rtol=1e-6)


class Recorded:
    """A backend of fragments whose data says how they were made."""

    made = staticmethod(lambda fragment: None)
    kind_of = staticmethod(lambda name, x: "int32" if type(x) is int else "fp32")
    number = staticmethod(lambda x, kind: float(x))
    convert = staticmethod(lambda data, kind, to: data)
    expand = staticmethod(lambda layout, along, data, to: data)
    elementwise = staticmethod(lambda name, data: (name, *data))

    def reduce(self, x, op, along, inside, surely):
        return Fragment(self, None, along, x.kind, (op, x.data))


def test_a_product_with_several_numbers_is_with_one():
    x = Fragment(Recorded(), None, "tile", "fp32", "x")
    assert (4 * (x * 0.5)).data == ("mul", "x", 2.0)
    assert (tp.math.row_max(x * 0.5) * 4).data == ("mul", ("maximum", "x"), 2.0)
    assert tp.math.row_max(x * -0.5).data == ("maximum", ("mul", "x", -0.5))
    for y in (x * 1e12, x * 0, (x + 1)):  # what may overflow, vanish, or is no product
        assert (y * 1e12).data == ("mul", y.data, 1e12)
    whole = Fragment(Recorded(), None, "tile", "int32", "x")
    assert (whole * 3 * 5).data == ("mul", ("mul", "x", 3.0), 5.0)
