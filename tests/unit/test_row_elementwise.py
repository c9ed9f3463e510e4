"""Elementwise: tensors of all shapes that broadcast, of any alignment. `tests/gpu` runs the same cases."""

import functools
import importlib
import os
import random
import sys

import attrs
import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tests.unit.test_row_schedules import BF16, FP16, FP32, close
from tmapipe.base.arithmetic import as_dtype
from tmapipe.program import trace
from tmapipe.schedules import elementwise, norms
from tmapipe.schedules.elementwise import ROWS, ElementwiseTiles, even_pieces, tile_forms, tile_of
from tmapipe.schedules.norms import ElementwiseKernel

CASES = {
    "one shape": ([(300, 100), (300, 100)], (BF16, BF16)),
    "types mixed": ([(7, 100), (7, 100)], (BF16, FP32)),
    "a number a column, odd": ([(7, 101), (101,)], (BF16, FP32)),
    "a number a row, odd": ([(40, 101), (40, 1)], (BF16, BF16)),
    "types mixed, odd": ([(5, 101), (5, 1, 101)], (FP16, FP32)),
    "a number a row": ([(40, 104), (40, 1)], (FP16, FP32)),
    "a number a column": ([(3, 11, 104), (104,)], (FP32, BF16)),
    "a number": ([(40, 104), ()], (FP32, BF16)),
    "an outer sum": ([(40, 1), (104,)], (FP32, FP32)),
    "an outer sum, odd": ([(40, 1), (101,)], (FP32, BF16)),
    "a number an image": ([(4, 6, 5, 24), (4, 6, 1, 1)], (BF16, BF16)),
    "a number an image of rows": ([(4, 5, 24), (1, 5, 24), (4, 1, 1)], (BF16, FP16, BF16)),
    "rows repeated": ([(4, 5, 104), (4, 1, 104)], (BF16, BF16)),
    "rows repeated, odd": ([(4, 5, 33), (4, 1, 33)], (BF16, FP32)),
    "both repeated": ([(4, 1, 3, 33), (5, 1, 33)], (BF16, FP32)),
    "even tiles": ([(70, 1888), (70, 1888), (1888,)], (FP32, FP32, FP32)),
    "a vector": ([(9001,), (9001,)], (BF16, FP32)),
    "one element": ([(1, 1), (1,)], (FP32, BF16)),
}


def total(*values):
    return sum(values[1:], 2 * tp.math.relu(values[0]))


def tensors(name, device="cpu"):
    shapes, kinds = CASES[name]
    source = torch.Generator().manual_seed(len(name))
    return [torch.randn(shape, generator=source).to(device, kind) for shape, kind in zip(shapes, kinds, strict=True)]


def wanted(given):
    first, *others = (x.double() for x in given)
    return 2 * first.relu() + sum(others)


def check(given, out=None):
    found, (kind, *more) = tp.schedules.Elementwise(total)(*given, out=out), [x.dtype for x in given]
    close(found, wanted(given), out.dtype if out is not None else kind if {*more} <= {kind} else FP32)
    return found


@pytest.mark.parametrize("name", CASES)
def test_shapes_that_broadcast(name):
    check(tensors(name))


def check_views(device="cpu"):
    base = torch.randn(37, 501, generator=torch.Generator().manual_seed(0)).to(device, BF16)
    check([base[:, 5:301], base[:, 7:8]])
    check([base[3:, 8:304], base[3:, 16:312].float()])
    check([base.view(-1)[1:9000], base.view(-1)[3:9002]])  # vectors that begin anywhere
    check([base[:, :40].expand(3, 37, 40), base[:3, :1, None]])
    image = base.view(-1)[: 4 * 5 * 6 * 7].view(4, 5, 6, 7)[:, 1:4, 1:5, 1:6]
    check([image, image[:, :1]])
    lying = base[:32, :24].T.contiguous().T
    assert check([lying, lying]).stride() == lying.stride()  # as it lies
    check([lying, base[:32, :24]])
    wide = torch.empty(37, 304, device=device)[:, 3:]
    assert check([base[:, :301], base[0, :301]], wide) is wide


def test_views():
    check_views()


def test_integers_numbers_and_arrays():
    Elementwise = tp.schedules.Elementwise
    x, mask = np.arange(12.0, dtype=np.float32).reshape(3, 4), np.eye(3, 4, dtype=np.int32)
    found = Elementwise(lambda x, mask: tp.math.where(mask > 0, x, -1.0))(x, mask)
    assert (found == np.where(mask > 0, x, -1)).all()
    assert (Elementwise(lambda x: 3)(x) == 3).all()
    assert Elementwise(lambda x: x, dtype="bf16")(torch.ones(3)).dtype == BF16
    assert Elementwise(lambda x: x)(torch.ones(3, 0)).shape == (3, 0)


def test_a_kernel_serves_all_lengths():
    kernel = tp.schedules.Elementwise(total)
    for n in (2048, 6144, 10240):
        kernel(torch.ones(n), torch.ones(n))
    assert len(kernel.fitted) == 1


@pytest.mark.parametrize("n", [1, 9001])
def test_a_vector_of_any_length_is_one_kernel(n):
    """Also where one of the tensors is a number, wherever it lies."""
    kernel, given = tp.schedules.Elementwise(total), [torch.randn(n).to(BF16), torch.randn(3)[1]]
    close(kernel(*given), wanted(given), FP32)
    assert [schedule.over for schedule in kernel.fitted.values()] == ["n"]


def test_odd_tensors_of_many_dimensions_take_few_launches(monkeypatch):
    """As many as the shorter dimensions have elements; what is repeated is copied first where these are many."""
    taken, plain = [], ElementwiseKernel.__call__

    def call(kernel, views, out, *more):
        taken.append(tuple(out.shape))
        plain(kernel, views, out, *more)

    monkeypatch.setattr(ElementwiseKernel, "__call__", call)
    check([torch.randn(40, 5, 35)[:, :3, :33]])
    check([torch.randn(40, 3, 33), torch.randn(40, 1, 33)])
    assert taken == [(40, 33)] * 6
    check([torch.randn(9, 9, 33), torch.randn(9, 1, 33)])
    assert not taken[6:]


def test_a_vector_of_many_elements_is_cut(monkeypatch):
    monkeypatch.setattr(elementwise, "MOST_EXTENT", 4096)
    check([torch.randn(9001), torch.randn(())])


def test_tiles_waste_few_columns():
    for columns in (8, 100, 300, 1000, 1100, 5000):
        for beside, least in ((False, 1), (True, 8)):
            rows, width = tile_of((4096, columns), 2, beside, least)
            assert rows * width <= 4096 and rows >= least
            assert -(-columns // width) * width <= max(1.125 * columns, 32 if columns < 32 else columns + 64)


@pytest.mark.parametrize("kinds", [(("m n", 4), ("n", 4)), (("m n", 2), ("m n", 4), ("m", 2)), (("m n", 2),) * 3])
def test_forms_can_be_made(kinds):
    """Whatever the length, also those that a look takes."""
    sizes = [size for _, size in kinds]
    beside, least = any(dims != "m n" for dims, _ in kinds), 8 if ("m", 2) in kinds else 1
    types = {f"x{i}": as_dtype({2: "bf16", 4: "fp32"}[size]) for i, size in enumerate(sizes)} | {"y": as_dtype("bf16")}
    seen = set()
    for columns in (32, 200, 488, 1888, 3800, 4216, 5552, 7936, 9000):
        loaded = sum(size for dims, size in kinds if dims == "m n")
        for form in tile_forms((500, columns), max(sizes), beside, least, loaded, 2):
            if form not in seen and form != ROWS:
                tile, ctas, each = form
                made = ElementwiseTiles(total, kinds, tile=tile, ctas=ctas, each=each)
                trace(made, made.plan(types))
                seen.add(form)
    assert len({tile for tile, *_ in seen}) > 4


def test_narrow_rows_are_taken_in_few_even_pieces():
    for shape, size, tile in (
        ((204600, 328), 2, (32, 168, 7)),
        ((233016, 144), 2, (16, 144, 3)),
        ((52103, 644), 4, (16, 216, 9)),
    ):
        first, second, *_ = tile_forms(shape, size, True, 1, 2 * size, size)
        assert first[0] == tile and second == ROWS
    for columns in range(8, 1200, 8):
        tile, warps = even_pieces((500, columns), 4, 8)
        assert not warps or (
            tile[0] * tile[1] % (32 * warps * 8) == 0 and -(-columns // tile[1]) * tile[1] < 2 * columns
        )


def test_short_rows_may_be_taken_whole(monkeypatch):
    monkeypatch.setattr(tp.calling, "looked", lambda name, few, *_: ROWS if ROWS in few else few[0])
    x = torch.randn(30, 328)
    for given, out in ([x, torch.randn(328)], None), ([x, x[3]], None), ([x, x[3]], x):
        kernel, want = tp.schedules.Elementwise(total), wanted(given)
        close(kernel(*given, out=out), want, FP32)
        assert isinstance(next(iter(kernel.fitted.values())), ElementwiseKernel)


@pytest.mark.parametrize(("columns", "kind"), [(2056, BF16), (2051, BF16), (1028, FP32), (1027, FP32)])
@pytest.mark.parametrize("rows", [3, 21])
def test_long_rows_that_begin_inside_of_32_bytes_are_taken_with_those_that_begin_alike(rows, columns, kind):
    """Also fewer rows than begin differently; and only where the result lies elsewhere."""
    x, bias = torch.randn(rows, columns).to(kind), torch.randn(columns).to(kind)
    kernel, want = tp.schedules.Elementwise(total), wanted([x, bias])
    close(kernel(x, bias), want, kind)
    (taken,) = kernel.fitted.values()
    assert [schedule.form.rows for schedule in taken.fitted.values()] == [norms.ALIKE[x.dtype.itemsize][0][0]]
    close(kernel(x, bias, out=x), want, kind)


def test_bad_input():
    kernel, x = tp.schedules.Elementwise(lambda x, y: x + y), torch.ones(3, 4)
    refused(tp.schedules.Elementwise, 3, argument="Elementwise(function)", rule="is called with fragments")
    refused(kernel, x, argument="tensors", rule="what the function takes")
    refused(kernel, x, torch.ones(3), argument="tensors", rule="of shapes that broadcast")
    refused(kernel, x, 2.0, argument="tensors[1]", rule="torch tensor")
    refused(kernel, x, x.long(), argument="tensors[1].dtype", rule="is one of")
    refused(lambda: kernel(x, x, out=torch.ones(4)), argument="out", rule="as the tensors broadcast")
    refused(lambda: kernel(x, x, out=torch.ones(3, 8)[:, ::2]), argument="out.stride", rule="contiguous")
    refused(tp.schedules.Elementwise, abs, "fp8_e4m3", argument="Elementwise(dtype)", rule="is one of")


def endless(x):
    return endless(x + 1)


@pytest.mark.parametrize("function, text", [
    (endless, "calls itself without an end"),
    (lambda x: x + x.columns, "columns of a piece"), (lambda x: tp.math.column_sum(x), "which go by element"),
    (lambda x: tp.math.row_logsumexp(x), "which go by element"), (lambda x: tp.math.swap_pairs(x), "neighbours"),
    (lambda x: tp.math.row_cumsum(x), "running sums"), (lambda x: tp.math.split_pairs(x)[0], "the pairs of"),
    (lambda x: tp.math.row_sum_parts(x), "parts of the sums"), (lambda x: (x, x), "Is a `return` missing"),
    (lambda x: None, "Is a `return` missing"), (lambda x: x if x > 0 else -x, "a branch on the values"),
])  # fmt: skip
def test_a_function_knows_no_tile(function, text):
    """Tiles are of a form that the kernel chooses, and seldom rows of the tensors: these gave numbers of the form's."""
    for shape in ((16, 256), (3, 5)):  # by tiles, and by rows
        with pytest.raises(tp.errors.ScopeError, match=text) as info:
            tp.schedules.Elementwise(function)(torch.ones(shape))
        assert "test_row_elementwise.py:" in str(info.value)


# ---- what a function has captured ----------------------------------------------------------------------------------------

FACTOR, FACTORS = 2.0, [2.0]


class Scaled:
    """With a number in the class and one in each object."""

    shift = 1.0

    def __init__(self):
        self.factor, self.more = 2.0, {"factor": 3.0}

    def __call__(self, x):
        return x * self.factor * self.more["factor"] + self.shift

    def method(self, x):
        return self(x)


def by_global(x):
    return x * FACTOR


def by_member(x):
    return x * FACTORS[0]


def by_default(x, factor=2.0, *, shift=1.0):
    return x * factor + shift


def by_module(x):
    return x * cases.FACTOR


def by_array(x):
    return x * float(ARRAY[1])


ARRAY = np.array([1.0, 2.0])
cases = sys.modules[__name__]


def captured():
    """By name: a function, and what changes a number that it refers to."""
    factor, scaled, bound, kind = 2.0, Scaled(), Scaled(), Scaled()

    def by_cell(x):
        return x * factor

    def change_cell():
        nonlocal factor
        factor = 3.0

    def give(name, value, of=cases):
        return lambda: setattr(of, name, value)

    return {
        "a cell": (by_cell, change_cell),
        "a cell of a function inside": (lambda x: (lambda y: by_cell(y))(x), change_cell),
        "a global": (by_global, give("FACTOR", 3.0)),
        "a member": (by_member, lambda: FACTORS.__setitem__(0, 3.0)),
        "a default": (by_default, give("__defaults__", (3.0,), by_default)),
        "a keyword's default": (by_default, lambda: by_default.__kwdefaults__.update(shift=3.0)),
        "a module's": (by_module, give("FACTOR", 3.0)),
        "an array's": (by_array, lambda: ARRAY.__setitem__(1, 3.0)),
        "an object's": (scaled, give("factor", 3.0, scaled)),
        "an object's mapping": (scaled, lambda: scaled.more.update(factor=4.0)),
        "a method's object": (bound.method, give("factor", 3.0, bound)),
        "a class's": (kind, give("shift", 3.0, Scaled)),
        "an argument's": (
            functools.partial(by_default, factor=3.0),
            lambda: by_default.__kwdefaults__.update(shift=4.0),
        ),
        "other code": (by_global, give("__code__", (lambda x: x * 5.0).__code__, by_global)),
    }


def check_captured(name, device="cpu", again=lambda kernel: None):
    """Calls whose function is the same are remembered, and a changed number counts."""
    before = FACTOR, Scaled.shift, by_default.__defaults__, dict(by_default.__kwdefaults__), by_global.__code__
    function, change = captured()[name]
    kernel, x = tp.schedules.Elementwise(function), torch.arange(8.0, device=device)
    try:
        assert torch.equal(kernel(x), function(x))
        (fitted,) = kernel.fitted.values()
        assert torch.equal(kernel(x), function(x)) and kernel.same() and next(iter(kernel.fitted.values())) is fitted
        again(kernel)
        first = function(x)
        change()
        assert not kernel.same() and torch.equal(kernel(x), function(x)) and not torch.equal(first, function(x))
        assert (
            kernel.same() and next(iter(kernel.fitted.values())) is not fitted and torch.equal(kernel(x), function(x))
        )
    finally:
        cases.FACTOR, Scaled.shift, by_default.__defaults__, by_default.__kwdefaults__, by_global.__code__ = before
        FACTORS[0] = ARRAY[1] = 2.0


@pytest.mark.parametrize("name", captured())
def test_a_changed_number_makes_another_kernel(name):
    check_captured(name)


def test_an_equal_number_does_not():
    scaled = Scaled()
    kernel, x = tp.schedules.Elementwise(scaled), torch.ones(8)
    kernel(x)
    scaled.factor = float("2")
    assert kernel.same()
    scaled.factor = 2
    assert not kernel.same(), "an integer is another number"


def test_functions_that_may_change_unseen_are_traced_by_each_call():
    tensor, module, numbers = torch.ones(1), torch.nn.Linear(1, 1), {2.0}

    def with_an_attribute(x):
        return x * with_an_attribute.factor

    with_an_attribute.factor = 2.0
    module.factor = 2.0
    for function in (
        lambda x: x * float(tensor),
        lambda x: x * module.factor,
        lambda x: x * float(np.random.default_rng(0).integers(2, 3)),
        lambda x: x * random.randint(2, 2),
        lambda x: x * getattr(Scaled(), "factor"),  # noqa: B009
        lambda x: x * float(os.environ.get("FACTOR", 2)),
        lambda x: x * torch.finfo(torch.float32).max,
        with_an_attribute,
    ):
        kernel = tp.schedules.Elementwise(function)
        kernel(torch.ones(8))
        assert not kernel.same()
    kernel = tp.schedules.Elementwise(lambda x: x * sum(numbers))
    kernel(torch.ones(8))
    assert kernel.same()
    numbers.add(3.0)
    assert not kernel.same()


@attrs.define
class Chosen:
    """With a number that no comparison sees."""

    factor: float = attrs.field(default=2.0, eq=False)

    def __call__(self, x):
        return x * self.factor


def test_numbers_that_objects_do_not_compare_count():
    chosen = Chosen()
    kernel, x = tp.schedules.Elementwise(chosen), torch.ones(8)
    assert torch.equal(kernel(x), 2 * x)
    chosen.factor = 3.0
    assert not kernel.same() and torch.equal(kernel(x), 3 * x)


def test_functions_of_installed_packages_are_remembered(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages" / "gates"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("FACTOR = 2.0\n\n\ndef scaled(x):\n    return x * FACTOR\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    gates = importlib.import_module("gates")
    kernel, x = tp.schedules.Elementwise(gates.scaled), torch.ones(8)
    assert torch.equal(kernel(x), 2 * x) and kernel.same()
    gates.FACTOR = 3.0
    assert not kernel.same() and torch.equal(kernel(x), 3 * x)
