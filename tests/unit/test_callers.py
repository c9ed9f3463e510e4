"""Callers: functions written for a signature, on the CPU. A function of TVM FFI stands for the kernel's host code: it gets the
arguments as a launch packs them, and copies the input's memory to the output's."""

import contextlib
import ctypes
import threading

import pytest
import torch
import tvm_ffi

import tmapipe as tp
from tests.unit.test_export import Move
from tmapipe import calling
from tmapipe.gpu import kernels as callers
from tmapipe.gpu import launch
from tmapipe.gpu.exporting import Packed
from tmapipe.schedules.rows import RowKernel, Rows


class Code:
    """Stands for a compiled kernel."""

    def __init__(self, plan, copied):
        self.plan, self.launches, self.addresses, self.copied = plan, [], [], copied

        def function(tensors, numbers, stream):
            x, y = tensors[:2]
            if self.launches == ["refuse"]:
                raise ValueError("refused")
            shapes = [tuple(each.shape) for each in tensors]
            strides = [tuple(each.strides) for each in tensors]
            self.addresses.append([each.data_ptr() for each in tensors])
            self.launches.append((shapes, strides, list(numbers), stream.value))
            ctypes.memmove(y.data_ptr(), x.data_ptr(), self.copied)

        self.function = tvm_ffi.convert(function)


@pytest.fixture
def launched(monkeypatch):
    """Makes (schedule, launcher, code) for a call with these tensors, as if the CPU were a GPU."""
    monkeypatch.setattr(launch, "resident_clusters", lambda device, size: 7)
    for module in (launch, callers):
        monkeypatch.setattr(module, "capturing", lambda: False)
    monkeypatch.setattr(launch, "stream_of", lambda device: 5)
    monkeypatch.setattr(callers, "_stream_of", lambda device: 5)

    def make(*tensors, out=None, schedule=None, **named):
        schedule = schedule or Move()
        bound = schedule.bind(*tensors, out=out, **named)
        first = next(iter(bound.tensors.values()))
        code = Code(schedule.plan(bound.dtypes), first.numel() * first.element_size())
        monkeypatch.setattr(launch, "compiled_for", lambda *given, **named: code)
        made = launch.Launcher(schedule, bound, lambda identity: None)
        made.one_device = True
        return schedule, made, code

    return make


def half(*shape):
    return torch.randn(*shape).bfloat16()


def test_packs_what_a_launch_needs():
    got = []
    function = tvm_ffi.convert(lambda *given: got.append(given))
    packed = Packed(function, [(4, 16, (3, 5), (8, 1)), (0, 32, (7,), (1,))], [9, -2], 1)
    assert packed.launch([0x1000, 0x2000], 0x77) and packed.launch([0x3000, 0x4000], 0) and len(packed.free) == 1
    (tensors, numbers, stream), _ = got
    assert [(tuple(x.shape), tuple(x.strides), str(x.dtype), str(x.device)) for x in tensors] == [
        ((3, 5), (8, 1), "bfloat16", "cuda:1"),
        ((7,), (1,), "int32", "cuda:1"),
    ]
    assert list(numbers) == [9, -2] and stream.value == 0x77


def test_says_when_the_host_code_refuses():
    def refuse(*given):
        raise ValueError("no")

    assert not Packed(tvm_ffi.convert(refuse), [], [1], 0).launch([], 0)


def test_a_caller_takes_what_it_was_made_for_and_nothing_else(launched):
    x = half(32, 128)
    _, launcher, code = launched(x)
    call = launcher.caller((x,), (), None)
    y = call((x,), None, {})
    assert torch.equal(y, x)
    assert code.launches == [([(32, 128)] * 2, [(128, 1)] * 2, [2], 5)]
    wide, cut = half(32, 256), torch.empty(32 * 128, dtype=torch.bfloat16).view(32, 128)
    cut.untyped_storage().resize_(64)
    freed = half(32, 128)
    freed.untyped_storage().resize_(0)
    negated = torch._neg_view(x)
    others = [
        half(64, 128),
        x.float(),
        wide[:, ::2],
        wide[:, :128],
        x.view(2, 16, 128),
        x.clone().requires_grad_(),
        cut,
    ]
    others += [
        torch.nn.Parameter(x, requires_grad=False),
        torch.empty(32 * 128 + 1).bfloat16()[1:].view(32, 128),
        freed,
    ]
    others += [negated, x.to("meta")]
    assert [i for i, other in enumerate(others) if call((other,), None, {}) is not None] == []
    for tensors, out, named in (((), None, {}), ((x, x), None, {}), ((x,), y, {}), ((x,), None, {"x": x})):
        assert call(tensors, out, named) is None
    assert len(code.launches) == 1


def test_outputs_that_are_passed(launched):
    x, y = half(32, 128), half(32, 128)
    _, launcher, code = launched(x, out=y)
    call = launcher.caller((x,), (), y)
    used = (torch.ones(32, 128, requires_grad=True) * y).sum()
    assert call((x,), y, {}) is y
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        used.backward()
    both = half(48, 128)
    assert call((both[:32],), both[16:], {}) is None and call((x,), x, {}) is None and call((x,), None, {}) is None
    assert call((both[:16].repeat(2, 1),), both[16:], {}) is not None and len(code.launches) == 2


@pytest.mark.parametrize("first, taken", [(64, True), (56, False), (0, False)])
def test_halves_of_rows_are_apart(launched, first, taken):
    """Rows of the output lie beside those of the input: their spans overlap, and no byte is shared."""
    whole = half(32, 128)
    x, y = whole[:, :64], whole[:, 64:]
    _, made, code = launched(x, out=y)
    call = made.caller((x,), (), y)
    found = call((x,), whole[:, first : first + 64], {})
    assert (found is not None) == taken == bool(code.launches)


def test_nobody_loses_gradients(launched, monkeypatch):
    x = half(32, 128).requires_grad_()
    with torch.no_grad():
        _, launcher, _ = launched(x)
        calls = [launcher.caller((x,), (), None)]
        monkeypatch.setattr(callers, "GUARDS", None)
        calls.append(launcher.caller((x,), (), None))
        assert all(call((x,), None, {}) is not None for call in calls)
    assert [call((x,), None, {}) for call in calls] == [None, None]


def test_names_and_other_shapes(launched):
    x = half(32, 128)
    _, launcher, _ = launched(x)
    by_name = launcher.caller((x,), ("x",), None)
    assert by_name((), None, {"x": x}) is not None and by_name((), None, {"y": x}) is None
    rows = x.view(2, 16, 128)
    assert launcher.caller((rows,), (), None, [rows])((rows,), None, {}).shape == (2, 16, 128)


def test_without_torchs_comparison(launched, monkeypatch):
    monkeypatch.setattr(callers, "GUARDS", None)
    test_a_caller_takes_what_it_was_made_for_and_nothing_else(launched)
    test_outputs_that_are_passed(launched)


def test_a_schedule_calls_it(launched):
    x = half(32, 128)
    schedule, launcher, code = launched(x)
    from tmapipe.bind.tensors import signature

    schedule.__dict__["_launchers"] = {signature((x,), None): launcher}
    for count in range(1, 4):
        schedule(x)
        assert len(code.launches) == count and len(schedule.__dict__["_callers"]) == 1
    schedule.cluster = {}
    assert "_callers" not in schedule.__dict__ and "_launchers" not in schedule.__dict__


def test_what_the_host_code_says_is_raised(launched):
    x = half(32, 128)
    _, launcher, code = launched(x)
    code.launches.append("refuse")
    with pytest.raises(ValueError, match="refused"):
        launcher((x,), None)
    with pytest.raises(ValueError, match="refused"):
        launcher.caller((x,), (), None)((x,), None, {})


def test_scratch_memory_of_streams_and_captures(launched, monkeypatch):
    class Queued(Move):
        tiles = tp.tiles.DynamicTiles()

    zeros, here = torch.zeros, threading.get_ident()
    asked = []  # of which no thread's pool may serve the memory
    monkeypatch.setattr(torch, "zeros", lambda *n, **named: asked.append(threading.get_ident()) or zeros(*n, **named))
    x = half(32, 128)
    _, launcher, code = launched(x, schedule=Queued())
    call = launcher.caller((x,), (), None)
    assert call((x,), None, {}) is None  # before the stream has its own
    launcher((x,), None)
    assert call((x,), None, {}) is not None and len(launcher.kept) == 1 and asked and here not in asked
    eager, captured = launcher.scratch_for(5), []
    monkeypatch.setattr(launch, "capturing", lambda: True)
    monkeypatch.setattr(launch, "relaxed", lambda: __import__("contextlib").nullcontext())
    for capture in (1, 1, 2):
        monkeypatch.setattr(launch, "_capture", lambda stream, capture=capture: capture)
        captured.append(launcher.scratch_for(5))
    assert captured[0] is captured[1] and len({eager[0], captured[0][0], captured[2][0]}) == 3
    assert launcher.packed in launch.in_graphs
    launcher((x,), None)
    assert len(code.launches) == 3


def test_two_launches_are_made_again(launched):
    x, w, y = half(32, 128), half(32, 128), half(32, 128)
    _, first, code = launched(x)
    _, second, finished = launched(w)
    addresses = [each.data_ptr() for each in (x, w, y)]
    launches = [(first, addresses[:2]), (second, addresses[1:])]
    call = launch.repeated(launches, (x,), None, (y,))
    assert torch.equal(call((x,), None, {}), x) and len(code.launches) == len(finished.launches) == 1
    assert call((half(64, 128),), None, {}) is None and call((x,), y, {}) is None
    apart = [
        (first, addresses[:2]),
        (second, [addresses[0], addresses[2]]),
    ]  # of which neither takes the other's result
    for others in (apart, launches * 2, launches[:1] + [(second, [*addresses[1:], 0])]):
        assert launch.repeated(others, (x,), None, (y,)) is None


def test_launches_of_parts_are_made_again(launched):
    """As of a norm's gradients: each kernel takes some rows, and a last kernel adds up the results."""
    x, between, y = half(64, 128), half(64, 128), half(64, 128)
    _, begin, begun = launched(x[:32])
    _, end, ended = launched(x)
    part = 32 * 128 * 2
    launches = [(begin, [each.data_ptr() + n for each in (x, between)]) for n in (0, part)]
    launches.append((end, [between.data_ptr(), y.data_ptr()]))
    call = launch.repeated(launches, (x,), None, (between, y), parts=True)
    other = half(64, 128)
    made, found = call((other,), None, {})
    assert torch.equal(made, other) and torch.equal(found, other) and len(begun.launches) == 2
    assert [b - a for a, b in zip(*begun.addresses, strict=True)] == [part, part] and len(ended.launches) == 1
    assert call((half(32, 128),), None, {}) is None and call((other,), y, {}) is None
    elsewhere = half(64, 128)
    for others in (launches[:1], [*launches[:2], (end, [elsewhere.data_ptr(), y.data_ptr()])]):
        assert launch.repeated(others, (x,), None, (between, y), parts=True) is None


def test_what_is_noted_within_is_noted_outside():
    with callers.watched() as outside:
        with callers.watched() as inside:
            inside.append("launch")
        assert callers.watchers and outside == ["launch"]
    assert not callers.watchers and callers.noted.launches is None


@pytest.mark.parametrize("pairs", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("before", [0, 4])
def test_a_call_of_rotary_is_one_launch_with_its_tensors(launched, pairs, before):
    """Of rows that follow one another. x may begin anywhere: it is loaded from the last multiple of 16 bytes before."""
    x, out, rotary = (
        half(37 * 4 * 62 + 8)[before:][: 37 * 4 * 62].view(37, 4, 62),
        half(37, 4, 62),
        tp.schedules.Rotary(pairs),
    )
    cos, sin = torch.rand(37, 1, 31), torch.rand(37, 1, 31)
    run = rotary.by_rows(x, [each.expand(37, 4, 31) for each in (cos, sin)], out)
    seen = run.keywords
    _, launcher, code = launched(seen["x"], seen["cos"], seen["sin"], out=seen["y"], schedule=run.func)
    code.copied = 0
    launches = [(launcher, [each.data_ptr() for each in seen.values()])]
    rotary.__dict__["_again"] = (launch.repeated(launches, (x, cos, sin), out, (out,)),)
    for other in (out, half(37, 4, 62)):
        assert rotary(x, cos, sin, out=other) is other
    assert len(code.launches) == 2 and len(rotary.fitted) == 1
    assert code.launches[0][0][0] == (37 * 4 * 62 + before,)
    rotary(x, cos, sin, out=x)  # in place, on the model: by another kernel
    rotary(x, cos.bfloat16(), sin.bfloat16())
    assert len(code.launches) == 2 and len(rotary.fitted) == 3


@pytest.mark.parametrize("how", ["slices", "in place"])
@pytest.mark.parametrize("pairs", [False, True], ids=["halves", "pairs"])
def test_a_call_of_rotary_is_one_launch_with_parts_of_its_tensors(launched, monkeypatch, pairs, how):
    """Halves of rows that lie apart, or that are overwritten, are tensors of the kernel's."""
    wide, (cos, sin), rotary = half(2, 37, 12, 64), torch.rand(2, 2, 37, 1, 32), tp.schedules.Rotary(pairs)
    x = wide[:, :, 4:8]
    out, seen = x if how == "in place" else half(2, 37, 4, 64), {}
    with monkeypatch.context() as context:
        context.setattr(tp.schedules.RotaryTiles, "__call__", lambda self, **named: seen.update(named, schedule=self))
        rotary(x, cos, sin, out=out)
    schedule, addresses = seen.pop("schedule"), [each.data_ptr() for each in seen.values()]
    assert len(addresses) == (4 if pairs else 6) and (pairs or addresses[1] == addresses[0] + 64)
    _, launcher, code = launched(schedule=schedule, **seen)
    code.copied = 0
    call = launch.repeated([(launcher, addresses)], (x, cos, sin), out, (out,), parts=True)
    rotary.__dict__["_again"] = (call,)
    assert rotary(x, cos, sin, out=out) is out and code.addresses == [addresses]
    other = half(2, 37, 4, 64)
    assert (call((x, cos, sin), other, {}) is other) == (how == "slices") == (len(code.launches) == 2)
    assert call((x, cos, sin), x, {}) is (x if how == "in place" else None)
    assert call((wide[:, :, 5:9], cos, sin), x, {}) is None is call((x.float(), cos, sin), other, {})


def test_a_copy_of_two_launches_is_made_again(launched, monkeypatch):
    """A launch for rows of which each fourth begins alike, and one for the last row. The first begins 12 bytes before x."""
    from tmapipe.schedules import copy

    whole, kernel = torch.randn(33, 7, 81), tp.schedules.Copy()
    x, out, seen, parts = whole[:, 2:3, 1:70], torch.empty(33, 1, 69), [], []
    with monkeypatch.context() as context:
        context.setattr(tp.schedules.CopyPlaces, "__call__", lambda self, x, y: seen.append((self, x, y)))
        context.setattr(copy, "remember", lambda self, run, *given, **how: parts.append(how) or run())
        context.setattr(copy, "_elements", lambda x, y: [])
        kernel(x, out=out)
    assert len(seen) == 2 and parts == [{"parts": True}]
    made = [(*launched(schedule=schedule, x=one, y=other)[1:], one, other) for schedule, one, other in seen]
    launches = [(launcher, [one.data_ptr(), other.data_ptr()]) for launcher, _, one, other in made]
    assert launches[0][1][0] == x.data_ptr() - 12
    for _, code, *_ in made:
        code.copied = 0
    call = launch.repeated(launches, (x,), out, (out,), parts=True)
    kernel.__dict__["_again"] = (call,)
    assert kernel(x, out=out) is out
    assert [code.addresses for _, code, *_ in made] == [[addresses] for _, addresses in launches]
    y, (last, stored) = torch.empty(33, 1, 69), launches[1][1]
    assert kernel(x, out=y) is y and made[1][1].addresses[1] == [last, stored - out.data_ptr() + y.data_ptr()]
    assert call((whole[:, 2:3, 2:71],), out, {}) is None is call((x[:32],), out[:32], {})


def test_a_transpose_of_several_launches_is_made_again(launched, monkeypatch):
    """Of large matrices of which each begins elsewhere: two launches for each, since the last row is alone."""
    from tmapipe.schedules import transpose

    x, out, seen, parts, kernel = torch.randn(3, 33, 81), torch.empty(3, 81, 33), [], [], tp.schedules.Transpose()
    with monkeypatch.context() as context:
        context.setattr(transpose, "APART", 1 << 10)
        context.setattr(transpose.TransposeRows, "__call__", lambda self, x, y: seen.append((self, x, y)))
        context.setattr(transpose, "remember", lambda self, run, *given, **how: parts.append(how) or run())
        kernel(x, out=out)
    assert len(seen) == 6 and parts == [{"parts": True}]
    made = [(*launched(schedule=schedule, x=one, y=other)[1:], one, other) for schedule, one, other in seen]
    launches = [(launcher, [one.data_ptr(), other.data_ptr()]) for launcher, _, one, other in made]
    for _, code, *_ in made:
        code.copied = 0
    kernel.__dict__["_again"] = (launch.repeated(launches, (x,), out, (out,), parts=True),)
    y = torch.empty_like(out)
    assert kernel(x, out=y) is y
    for (_, code, *_), (_, (one, other)) in zip(made, launches, strict=True):
        assert code.addresses == [[one, other - out.data_ptr() + y.data_ptr()]]


def test_what_a_kernel_does_not_fill_is_set_to_zero_again(launched):
    """As of the workspace of a GEMM of which some tiles have fewer parts than others."""
    x, between, y = half(32, 128), half(32, 128), half(32, 128)
    _, first, begun = launched(x)
    begun.copied = 16 * 128 * 2  # the kernel fills the first half
    _, second, _ = launched(between)
    with callers.watched() as launches:
        callers.note_zeroed(between, 16)
    launches += [(first, [x.data_ptr(), between.data_ptr()]), (second, [between.data_ptr(), y.data_ptr()])]
    call = launch.repeated(launches, (x,), None, (y,))
    del between
    for _ in range(3):
        torch.full((32, 128), 7.0).bfloat16()  # memory that a workspace may get
        found = call((x,), None, {})
        assert torch.equal(found[:16], x[:16]) and not found[16:].any()
    assert call((x,), y, {}) is None


def test_no_caller_takes_a_call_whose_launches_are_noted(launched):
    """A product whose parts are added by a schedule that has a caller was never remembered."""
    x = half(32, 128)
    _, launcher, _ = launched(x)
    call = launcher.caller((x,), (), None)
    with callers.watched() as launches:
        assert call((x,), None, {}) is None and launcher.caller((x,), (), None) is None
        launcher((x,), None)
    assert [each for each, _ in launches] == [launcher] and call((x,), None, {}) is not None


class Scaled(Rows):
    """y = x times the first item of *FACTORS*."""

    @Rows.work.jit
    def scale(self, k, tile):
        with k.ring.consume() as slot:
            values = self.read_rows(slot.x)
        self.store_rows(k.y, tile, values * FACTORS[0])


class Scale(RowKernel):
    schedule, options = Scaled, ("one",)

    def __call__(self, x):
        return self.run({"x": x}, {"y": None}, {})


FACTORS = [2.0]


@pytest.mark.parametrize("what", ["value", "attribute"])
def test_calls_of_a_kernel_of_rows_are_made_again_as_long_as_what_it_depends_on_stays(launched, monkeypatch, what):
    x, kernel = half(32, 128), Scale()
    y = kernel(x)
    assert torch.equal(y, 2 * x)
    (schedule,) = kernel.fitted.values()
    _, launcher, code = launched(x, out=y, schedule=schedule)
    launches = [(launcher, [x.data_ptr(), y.data_ptr()])]
    with monkeypatch.context() as context:
        context.setattr(calling, "watching", lambda tensor: contextlib.nullcontext(launches))
        calling.remember_by_name(kernel, tuple, {"x": x, "y": None}, {"y": y})
    assert torch.equal(kernel(x), x) and len(code.launches) == 1  # what the launch makes, which copies
    try:
        if what == "value":
            FACTORS[0] = 3.0
        else:
            kernel.options = ("another",)
        assert torch.equal(kernel(x), (FACTORS[0] * x.float()).bfloat16()) and len(code.launches) == 1
    finally:
        FACTORS[0] = 2.0
