"""What random calls have found: each was a bare exception or a hang once."""

import traceback

import ml_dtypes
import numpy as np
import pytest

import tmapipe as tp
from tests.fuzz.junk import JUNK
from tests.fuzz.outcomes import Call, judge
from tests.fuzz.publics import CALLABLES
from tests.unit.errors import refused
from tests.user_copy import copy_of
from tmapipe import tuning

X = np.ones((8, 64), np.float32)


def numbers(k, tile):
    for _ in range(1.0):
        pass


def nothing(k, tile):
    for _ in None:
        pass


def slots(k, tile):
    for _ in k.ring.consume():
        pass


def no_attribute(k, tile):
    acc = None
    acc.values()


def too_few(k, tile):
    k.steps("x")


def unknown(k, tile):
    with k.ring.consume() as slot:
        k.y.store(tile, value=slot.x.read())


@pytest.mark.parametrize("body", [numbers, nothing, slots, no_attribute, too_few, unknown])
def test_pythons_own_errors_end_at_the_line_of_the_body(body):
    for call in (copy_of(body).check, lambda: copy_of(body)(X)):
        with pytest.raises((TypeError, AttributeError)) as info:
            call()
        last = traceback.extract_tb(info.value.__traceback__)[-1]
        assert (last.filename, last.name) == (__file__, body.__name__)


def test_an_error_inside_the_library_keeps_its_traceback(monkeypatch):
    def broken(*_):
        raise TypeError("inside")

    monkeypatch.setattr("tmapipe.protocol.stores.BoundStore.store", broken, raising=False)
    with pytest.raises(TypeError, match="inside") as info:
        copy_of(lambda k, tile: k.y.store(tile, k.full("y", 0.0))).check()
    assert traceback.extract_tb(info.value.__traceback__)[-1].name == "broken"


def test_a_role_that_never_stops_producing(monkeypatch):
    monkeypatch.setattr("tmapipe.program.control.MOST_ACTING", 20)

    def produces(k, tile):
        while True:
            with k.ring.consume() as slot:
                slot.x.read()

    report = copy_of(produces).check()
    assert report.errors[0].kind is tp.check.Kind.LIMIT and __file__ in report.errors[0].where[0]


def test_dims_in_a_circle():
    schedule = tp.schedules.Copy((4, 64))
    schedule.relations = (tp.Dim("m", of="n", plus=2), tp.Dim("n", of="m", plus=-2))
    refused(schedule.plan, argument="relations", value="m and n", rule="in a circle")


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "bfloat16"])
def test_rows_of_every_type(name):
    x = np.arange(80 * 96).reshape(80, 96).astype(getattr(ml_dtypes, name))
    assert (tp.schedules.Copy((4, 64))(x).view("u1") == x.view("u1")).all()


def test_devices_have_few_multiprocessors():
    for many in (2**16, 10**9):
        refused(tuning.Device, "X", many, ((1, 4),), argument="multiprocessors", value=many, rule="below")


#: Callable, argument: of which each value of a wrong type was a bare exception.
ARGUMENTS = [
    ("Softmax()", "x"), ("Softmax()", "out"), ("CrossEntropy()", "x"), ("RmsNormBackward()", "x"), ("Reduce", "operation"),
    ("Attention", "scale"), ("Attention", "score"), ("Attention", "tiles"), ("Attention", "tile"), ("SoftmaxRows", "form"),
    ("ElementwiseTiles", "inputs"), ("ElementwiseTiles", "tile"), ("ElementwiseRows", "kinds"), ("candidates", "problem"),
    ("candidates", "device"), ("estimate", "candidate"), ("estimate", "fused"), ("torch.linear", "weight"),
    ("TransposeTiles", "dims"), ("TransposeTiles", "tile"), ("TransposeTiles", "vector"), ("RotaryTiles", "pairs"),
    ("torch.gemm", "a"), ("torch.softmax", "dim"), ("torch.rms_norm", "eps"),
    ("SplitAttention()", "v"), ("SplitAttention.of", "q"), ("Attention.of", "v"), ("Attention.of", "causal"),
    ("Attention.of", "lse"), ("torch.Linear", "in_features"), ("torch.Linear", "bias"), ("torch.SwiGLU", "hidden"),
    ("torch.SwiGLU", "device"), ("torch.SwiGLU", "dtype"),
    ("torch.cross_entropy", "reduction"), ("torch.transpose", "dims"), ("columns_of", "transposed"), ("in_shares", "peers"),
    ("Operands", "declared"), ("Operands", "epilogue"), ("Candidate.can_be_built", "problem"),
    ("Candidate.can_be_built", "epilogue"), ("Device.resident", "cluster_size"), ("TmaStoreStage.with_l2_hint", "hint"),
    *(("torch.scaled_dot_product_attention", name) for name in (
        "query", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"
    )),
]  # fmt: skip


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS, ids=lambda each: each)
def test_values_of_wrong_types_are_refused_by_name(name, argument):
    function, needed = CALLABLES[name]
    judged = [judge(Call("", lambda v=v: function(**{**needed, argument: v}))) for v in JUNK]
    assert not [each for each in judged if not each[0].good]


def test_parts_are_taken_in_the_order_of_the_tiles_inside():
    """`SplitK` of `GridTiles` computed the first tiles of each CTA alone, and was called safe."""
    a, b = np.arange(2 * 80 * 64).reshape(2, 80, 64).astype(np.float16) % 7 - 3
    for each in (1, 3):
        schedule = tp.schedules.SplitK(2, (64, 64, 32), (1, 1), tiles=tp.tiles.GridTiles(each=each))
        assert (schedule(a, b) == a.astype(np.float32) @ b.T.astype(np.float32)).all()


def test_orders_of_parts_hand_on_what_the_order_of_the_tiles_says():
    def said(kind):
        return {name for name, value in vars(kind).items() if callable(value) and name[0] != "_"}

    inside = set().union(*(said(kind) for kind in (tp.tiles.GridTiles, tp.tiles.DynamicTiles, tp.tiles.GpcTiles)))
    assert inside <= said(tp.tiles.SplitKTiles), "what SplitKTiles does not hand on"


def test_what_a_kernel_was_made_of_cannot_be_exchanged():
    """Kernels are kept by shape: another operation would have found those of the first."""
    schedules = tp.schedules
    made = schedules.Reduce(), schedules.Elementwise(lambda x: x), schedules.Transpose()
    for schedule, names in zip(made, (["operation"], ["function", "dtype"], ["dims"]), strict=True):
        for name in names:
            with pytest.raises(AttributeError, match=name):
                setattr(schedule, name, getattr(schedule, name))


@pytest.mark.parametrize(
    ("name", "argument"),
    [("Schedule.export", "name"), ("Schedule.export", "dtypes"), ("torch.cross_entropy", "ignore_index")],
)
def test_a_list_is_refused_by_name(name, argument):
    function, needed = CALLABLES[name]
    with pytest.raises(tp.InputError, match=argument):
        function(**{**needed, argument: [64]})


def test_parts_together_are_counted():
    schedule = tp.schedules.AddParts((4, 64))
    schedule.together = (0, 0)
    refused(schedule.plan, argument="together", value=(0, 0), rule="number of parts")
