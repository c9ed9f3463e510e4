"""Looks: which of a few candidates a call takes, as measured once, and where nothing is measured."""

import contextlib
import types

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe import tuning
from tmapipe.epilogue import Epilogue, PerColumn
from tmapipe.gpu import kernels
from tmapipe.schedules.crossentropy import CrossEntropy, Cumsum, Reduce, Softmax
from tmapipe.schedules.normgradients import LayerNormBackward
from tmapipe.schedules.norms import LayerNorm
from tmapipe.schedules.rowform import different, row_forms
from tmapipe.tuning import compiling
from tmapipe.tuning.problem import operands as problem_operands

GPU = "some GPU"


class Looks:
    """What is asked for in the place of a GPU: candidate number *best* is the fastest."""

    def __init__(self):
        self.best, self.built, self.timed = 1, [], 0

    def timings(self, runs, device):
        self.timed += 1
        order = sorted(runs, key=lambda number: number != self.best)
        return [(number, types.SimpleNamespace(us=2.5)) for number in order]


@pytest.fixture
def looks(tmp_path, monkeypatch):
    """Calls of CPU tensors look as calls of a GPU's do."""
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TMAPIPE_LOOK", raising=False)
    monkeypatch.setattr(tuning, "LEAST", 1)
    monkeypatch.setattr(tp.schedules.copy, "LOOK", 1)
    monkeypatch.setattr(tp.schedules.transpose, "LOOK", 1)
    monkeypatch.setattr(tuning, "taken", {})
    monkeypatch.setattr(tuning, "gpu_of", lambda tensors: GPU)
    monkeypatch.setattr(kernels, "capturing", lambda: False)  # which torch without CUDA has not
    found = Looks()
    monkeypatch.setattr(tuning, "timed", found.timings)

    def build(few, run):
        found.built.append(len(few))
        for each in few:
            with tp.calling.held(), contextlib.suppress(tp.errors.PipelineError):  # as the real one does
                run(each)
        return {number: lambda: None for number in range(len(few))}

    monkeypatch.setattr(tuning, "built", build)
    return found


def called(few=("a", "b", "c"), read=None, written=(), **how):
    return tuning.looked("a call", few, lambda each: None, [torch.zeros(64)] if read is None else read, written, **how)


def test_the_fastest_is_kept_for_this_process_and_others(looks, monkeypatch):
    assert called() == "b" and looks.built == [3]
    assert called() == "b" and looks.built == [3]
    tuning.taken.clear()  # as another process begins
    assert called() == "b" and looks.built == [3], "the store knows it: nothing is built"
    monkeypatch.setattr(tuning, "gpu_of", lambda tensors: "another")
    looks.best = 2
    assert called() == "c" and looks.built == [3, 3], "another GPU has a result of its own"


def test_at_most_four_are_built_and_more_are_looked_at_if_asked_for(looks, monkeypatch):
    few = "abcdefgh"
    assert called(few) == "b" and looks.built == [4]
    assert called(few, look=2) == "b" and looks.built == [4], "the best of more is known"
    looks.best = 6
    assert called(few, look=8) == "g" and looks.built == [4, 8]
    assert called(few) == "g", "the best of eight is not forgotten, though it is no more among the first four"
    monkeypatch.setenv("TMAPIPE_LOOK", "3")
    tuning.looked("another call", few, lambda each: None, [torch.zeros(64)], ())
    assert looks.built == [4, 8, 3]


def test_what_is_no_candidate_any_more_is_looked_for_again(looks):
    assert called(("a", "b")) == "b"
    tuning.taken.clear()
    assert called(("a", "c", "d")) == "c" and looks.built == [2, 3]


def test_calls_that_read_four_times_as_much_look_again(looks, monkeypatch):
    monkeypatch.setattr(tuning, "LEAST", 256)
    monkeypatch.setattr(tuning, "MOST", 4096)
    assert [called(read=[torch.zeros(n)]) for n in (63, 64, 255, 256, 1024, 1 << 20)] == ["a", *"bbbbb"]
    assert looks.timed == 3, "64 to 255 numbers, 256 to 1023, and more"


def test_the_caller_says_from_how_many_bytes_on(looks):
    x = torch.zeros(64)
    assert called(read=[x], least=257) == "a" and not looks.built
    assert called(read=[x], least=256) == "b" and looks.built == [3]
    assert [*tuning.taken] == [("a call, 256 bytes or more", GPU)]


def test_names_are_asked_for_where_they_are_needed(looks):
    def unasked():
        raise AssertionError

    def by(name, **how):
        return tuning.looked(name, "abc", lambda each: None, [torch.zeros(64)], (), **how)

    assert by(unasked, look=1) == by(unasked, least=1 << 20) == "a"
    assert by(lambda: None) == "a" and not looks.built, "what has no name is not measured"
    assert by(lambda: "a name") == by("a name") == "b" and looks.built == [3]


def test_a_look_that_another_process_has_made_is_found(looks):
    few, x = "abcd", torch.zeros(64)
    assert called(few, read=[x], written=[x]) == "a" and not looks.built, "and that nothing is known is known"
    tuning.keep("a call, 256 bytes or more", GPU, {"choice": repr("c"), "tried": 4})
    assert called(few, read=[x], written=[x]) == "a", "nothing is read from the disk again"
    assert called(few, read=[x]) == "c" and not looks.built


@pytest.mark.parametrize("how", ["off", "switched off", "few", "small", "captured", "in place", "held", "waited for"])
def test_where_nothing_is_measured(looks, monkeypatch, how):
    x, options = torch.zeros(64), {}
    if how == "off":
        options["look"] = 1
    elif how == "switched off":
        monkeypatch.setenv("TMAPIPE_LOOK", "1")
    elif how == "few":
        options["few"] = ("a",)
    elif how == "small":
        monkeypatch.setattr(tuning, "LEAST", 257)
    elif how == "captured":
        monkeypatch.setattr(kernels, "capturing", lambda: True)
    elif how == "in place":
        options["written"] = [x[:32]]
    elif how == "held":  # by another look
        monkeypatch.setattr(tp.calling, "holding", lambda: True)
    else:
        monkeypatch.setenv("TMAPIPE_WATCHDOG", "5")
    assert called(read=[x], **options) == "a" and not looks.built
    if how in ("captured", "held", "in place", "waited for"):  # of these, a result is taken that is there
        tuning.taken["a call, 256 bytes or more", GPU] = {"choice": repr("c"), "tried": 4}
        assert called(read=[x], **options) == "c" and not looks.built


@pytest.mark.parametrize("x", [np.zeros(64, np.float32), torch.zeros(64), torch.zeros(64, device="meta")])
def test_tensors_that_lie_on_no_gpu(x):
    assert tuning.gpu_of([x]) is None


def test_tensors_that_are_traced(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        x = torch.zeros(64, device="cuda")
    assert x.is_cuda and tuning.gpu_of([x]) is None
    with mode:
        assert tuning.gpu_of([x]) is None


def test_bad_numbers(monkeypatch):
    monkeypatch.setenv("TMAPIPE_LOOK", "some")
    refused(called, argument="TMAPIPE_LOOK", value="some", rule="a number of candidates")
    refused(called, look=0, argument="look", value=0, rule="a number of candidates")


def test_results_that_cannot_be_kept_are_good_for_the_process(looks, monkeypatch):
    monkeypatch.setattr(tuning, "keep", lambda *_: (_ for _ in ()).throw(OSError("no room")))
    with pytest.warns(UserWarning, match="no room"):
        assert called() == "b"
    assert called() == "b" and looks.built == [3]


def test_no_result_where_nothing_can_be_measured(looks, monkeypatch):
    monkeypatch.setattr(tuning, "timed", lambda runs, device: [])
    assert called() == "a" and called() == "a" and looks.built == [3, 3]


CALLS = {
    "softmax": (Softmax, lambda x: (x,)),
    "layer_norm": (LayerNorm, lambda x: (x, x[0], x[1].clone())),
    "cross_entropy": (CrossEntropy, lambda x: (x, torch.arange(len(x)))),
    "sum": (Reduce, lambda x: (x,)),
    "cumsum": (Cumsum, lambda x: (x,)),
    "gradients": (LayerNormBackward, lambda x: (x, x[0], x)),
}


@pytest.mark.parametrize("name", CALLS)
def test_kernels_of_rows_take_the_form_that_is_the_fastest(looks, name):
    make, given = CALLS[name]
    x = torch.randn(8, 257)
    kernel, plain = make(), make()
    plain.look = 1
    results, expected = (each(*given(x)) for each in (kernel, plain))
    assert looks.built == [4] and len(plain.fitted) == len(kernel.fitted) == 1
    ((schedule,), (first,)) = (each.fitted.values() for each in (kernel, plain))
    assert (schedule.form.kind, schedule.form.warps) != (first.form.kind, first.form.warps)
    pairs = zip(*(each if isinstance(each, tuple) else (each,) for each in (results, expected)), strict=True)
    for mine, other in pairs:
        torch.testing.assert_close(mine, other)
    another = make()
    another(*given(x))
    assert looks.built == [4] and [*another.fitted] == [*kernel.fitted]


def test_softmax_in_place_takes_the_first_form(looks):
    x = torch.randn(8, 256)
    expected, softmax = torch.softmax(x, -1), Softmax()
    softmax(x, out=x)
    torch.testing.assert_close(x, expected)
    assert not looks.built
    softmax(torch.randn(8, 256))
    assert looks.built == [4]


def test_forms_differ():
    for length, size, vectors in ((128, 4, 0), (1424, 2, 2), (79032, 4, 8), (81576, 2, 0)):
        forms = row_forms(length, size, 8, vectors=vectors)
        few = different(forms, 4)
        assert few[0] == forms[0] and len({*few}) == 4 and len({form.kind for form in few}) > 1
        assert len({form.kind for form in few}) >= min(4, len({form.kind for form in forms}))
    assert different(forms[:1], 4) == forms[:1]


def test_held_calls_launch_nothing_and_are_compiled_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TMAPIPE_CHECK", "0")  # which the proof has tests of its own for
    asked = []
    compile_each = compiling.compile_each
    monkeypatch.setattr(
        compiling, "compile_each", lambda jobs, *how: asked.append(len(jobs)) or compile_each(jobs, *how)
    )
    x, y = torch.randn(4, 512), torch.zeros(4, 512)
    copies = [tp.schedules.Copy(tile=(1, 128 << i)) for i in range(2)]
    with tp.calling.held() as launches:
        copies[0](x, y)
    assert len(launches) == 1 and not y.any()
    runs = tuning.built(copies, lambda copy: copy(x, y))
    assert [*runs] == [0, 1] and asked == [2] and torch.equal(x, y)
    tuning.built([tp.schedules.Copy(tile=(1, 128 << i)) for i in range(2)], lambda copy: copy(x, y))
    assert asked == [2], "the store has both"


def test_copies_look_at_ways(looks):
    """What is copied by elements first, is copied by runs where that is faster. Runs of one form are one way."""
    x = torch.randint(-100, 100, (50, 20, 165), dtype=torch.int16)[:, 1:3, 25:]
    copy = tp.schedules.Copy()
    for _ in range(2):
        assert torch.equal(copy(x), x) and looks.built == [2]
    assert vars(copy)["_runs"] and tuning.recall_entry(*next(iter(tuning.taken)))["choice"] == "('runs', 4096)"
    assert torch.equal(tp.schedules.Copy()(x), x) and looks.built == [2], "others know it"


def elementwise(function, x, *more):
    kernel = tp.schedules.Elementwise(function)
    result = kernel(x, *more)
    plain = tp.schedules.Elementwise(function)
    plain.look = 1
    assert torch.equal(result, plain(x, *more))
    return kernel


@pytest.mark.parametrize("columns", [256, 257])
def test_functions_look_by_what_they_compute(looks, columns):
    x, wide, three = torch.randn(64, columns), torch.randn(64, 300), 3.0
    gate = wide[:, :columns]
    elementwise(lambda x, gate: x * tp.math.sigmoid(gate) + three, x, gate)
    assert looks.built == [4] and len(tuning.taken) == 1

    def elsewhere(a, b):
        gated = tp.math.sigmoid(b)
        return a * gated + 3.0

    elementwise(elsewhere, x, gate)
    assert looks.built == [4] and len(tuning.taken) == 1, "what computes the same shares the result"
    elementwise(lambda x, gate: gate * tp.math.sigmoid(x) + three, x, gate)
    three = 4.0
    elementwise(lambda x, gate: x * tp.math.sigmoid(gate) + three, x, gate)
    assert looks.built == [4] * 3 and len(tuning.taken) == 3, "what computes something else does not"
    elementwise(elsewhere, x.bfloat16(), wide.bfloat16()[:, :columns])
    assert len(tuning.taken) == 4, "nor do other types"


def test_functions_of_many_tensors_have_a_name(looks):
    """And as many CTAs as have room: once, two were asked for that had none."""
    many = [torch.randn(64, 256) for _ in range(16)]
    elementwise(lambda *given: sum(given[1:], given[0]), *many)
    assert looks.built == [4]


def test_functions_without_a_name_take_the_first_form(looks, monkeypatch):
    monkeypatch.setattr(tp.schedules.elementwise, "identity", lambda program: None)
    elementwise(lambda x: x * 2, torch.randn(64, 256))
    assert not looks.built


def test_functions_keep_the_form_that_is_the_fastest(looks):
    looks.best = 2
    kernel = elementwise(lambda x, y: x + y, torch.randn(64, 512), torch.randn(512))
    ((_, form, *_),) = kernel.fitted
    assert form == tp.schedules.elementwise.tile_forms((64, 512), 4, True, 1, 4, 4)[2]
    other = elementwise(lambda x, y: x + y, torch.randn(64, 512), torch.randn(512))
    assert [*other.fitted] == [*kernel.fitted] and looks.built == [3]


@pytest.mark.parametrize("pairs", [False, True])
def test_rotary_looks_at_forms(looks, pairs):
    x, angles = torch.randn(2, 64, 4, 64), torch.rand(64, 1, 32)
    given, kernel = (x, angles.cos(), angles.sin()), tp.schedules.Rotary(pairs)
    plain = tp.schedules.Rotary(pairs)
    plain.look = 1
    torch.testing.assert_close(kernel(*given), plain(*given))
    forms = tp.schedules.rotary.rotary_forms(64, 4, (4, 4), pairs)
    (known,) = tuning.taken.values()
    assert looks.built == [4] and known["choice"] == repr(forms[1])
    tp.schedules.Rotary(pairs)(*given)
    assert looks.built == [4]


def test_rotary_by_tiles_is_one_of_its_forms(looks):
    looks.best = len(tp.schedules.rotary.rotary_forms(64, 4, (4, 4), False)[:8])
    x, angles = torch.randn(2, 64, 4, 64), torch.rand(64, 1, 32)
    kernel = tp.schedules.Rotary()
    kernel.look = 9
    expected = tp.schedules.Rotary()(x, angles.cos(), angles.sin())
    torch.testing.assert_close(kernel(x, angles.cos(), angles.sin()), expected)
    assert tuning.recall_entry(*next(reversed(tuning.taken)))["choice"] == "'tiles'"


@pytest.mark.parametrize("columns", [256, 257])
def test_transposes_look_at_forms(looks, columns):
    x, transpose = torch.randn(67, columns), tp.schedules.Transpose()
    for _ in range(2):
        assert torch.equal(transpose(x), x.T) and looks.built == [3]
    (form,) = transpose.fitted
    assert [known["choice"] for known in tuning.taken.values()] == [repr(form)]
    plain = tp.schedules.Transpose()
    plain.look = 1
    assert torch.equal(plain(x), x.T) and form not in plain.fitted and looks.built == [3]


BIAS = Epilogue(lambda acc, bias: acc + bias, operands={"bias": PerColumn()})


@pytest.fixture
def here(looks, monkeypatch):
    """This machine's GPU is an H200, on whose tensors nothing but `Looks` measures."""
    weights = tuning.random_weights
    monkeypatch.setattr(tuning, "is_here", lambda device: device.name == GPU)
    monkeypatch.setattr(tuning, "need_gpu", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: GPU)
    monkeypatch.setattr(tuning, "random_weights", lambda *of, device: weights(*of, device="cpu"))
    monkeypatch.setattr(
        tuning, "operands", lambda problem, epilogue, device: problem_operands(problem, epilogue, "cpu")
    )
    looks.device = tuning.Device(GPU, 132, ((1, 132),))
    return looks


@pytest.mark.parametrize(
    "shape, how",
    [
        ((8, 2048, 4096), {}),
        ((1000, 1024, 512), {"weights": "fp8_e4m3", "epilogue": BIAS}),
        ((8, 2944, 4096), {"weights": "int4", "group": 64, "zeros": True}),
    ],
)
def test_weights_of_few_bits_look_at_forms(here, shape, how):
    def form(**more):
        found = tuning.choose_dequant(shape, **{**how, **more})
        return found.a.tile, found.b.tile, found.tiles

    model = form()
    assert not here.built, "without this GPU, by the model"
    looked = form(device=here.device)
    assert looked == form(device=here.device) != model and len(here.built) == len(tuning.taken) == 1
    assert form(device=here.device, look=1) == model and len(here.built) == 1
    form(device=here.device, weights="uint4", group=None)
    assert len(tuning.taken) == 2, "other weights look by themselves"


def test_weights_do_not_look_where_the_model_is_sure(here):
    tuning.choose_dequant((500, 7936, 1408), "int4", group=128, zeros=True, device=here.device)
    assert not here.built


def test_weights_look_where_nothing_is_captured_and_there_is_a_gpu(here, monkeypatch):
    monkeypatch.setattr(kernels, "capturing", lambda: True)
    tuning.choose_dequant((8, 2048, 4096), device=here.device)
    assert not here.built
    monkeypatch.undo()
    with pytest.raises(tp.errors.MissingGpuError):
        tuning.choose_dequant((8, 2048, 4096), look=2)
    refused(
        tuning.choose_dequant, (8, 2048, 4096), look=0, argument="choose_dequant(look)", rule="a number of candidates"
    )


@pytest.mark.parametrize("options, built", [({}, [4]), ({"stages": 4}, [])])
def test_copies_of_whole_vectors_look_at_threads(looks, options, built):
    """Unless the engine is asked for by its options."""
    looks.best, x = 1, torch.randn(64, 128)
    copy = tp.schedules.Copy(**options)
    assert torch.equal(copy(x), x) and looks.built == built
    assert bool(vars(copy).get("_elements")) == bool(built)


def test_long_rows_are_not_copied_row_by_row():
    """Then a tile is part of one row, and the check runs as many tiles as a row has."""
    for n, by_rows in ((800, {"rows"}), (40_000, set())):
        x = torch.zeros(9_000_000 // n, n + 21)[:, :n]
        for kind, kinds in ((torch.bfloat16, by_rows), (x.dtype, {"elements"})):
            ways = tp.schedules.copy.ways(x, torch.empty(x.shape, dtype=kind), 0)
            assert {kind for kind, _ in ways} == {"alone", "runs", *kinds}
