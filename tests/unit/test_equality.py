"""Schedules are values: equal where all that a plan or a body can read of them is."""

import copy
import functools
import pickle

import numpy as np
import pytest

import tmapipe as tp
from tests.oracle.peer_forms import Reduced
from tests.oracle.registry import REDUCED, REGISTRY
from tmapipe.epilogue import OperandSum

S = tp.schedules


@pytest.mark.parametrize("registered", REGISTRY, ids=lambda registered: registered.name)
def test_schedules_made_alike_are_equal(registered):
    one, two = registered.make(), registered.make()
    assert one == two and hash(one) == hash(two) and one.plan() == two.plan()
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert other == one and hash(other) == hash(one) and other.plan() == one.plan()
        assert other.declared.bodies == one.declared.bodies


def test_copies_have_the_bodies_of_roles_that_an_instance_declares():
    """The role that loads an epilogue's operands, which only schedules with some have."""
    one = S.Gemm(
        (64, 64, 64), (1, 1), 2, epilogue=tp.epilogue.Epilogue(shift, operands={"by": tp.epilogue.PerColumn()})
    )
    assert list(one.declared.bodies) == ["load", "math", "fetch"] and list(S.Gemm().declared.bodies) == ["load", "math"]
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert other == one and other.declared.bodies == one.declared.bodies and other.check().ok


@pytest.mark.parametrize("options", [
    {"mainloop": tp.mainloop.Cooperative(along="n"), "epilogue": REDUCED}, {"a": tp.Operand(sums={"s": OperandSum("m")})},
])  # fmt: skip
def test_copies_have_workspaces_of_the_same_shapes(options):
    """A copy or pickle of such a stage keeps the attributes that its extents follow from."""
    one = S.Gemm((64, 64, 64), (1, 1), 2, **options)
    a, b = np.ones((40, 24), np.float16), np.ones((72, 24), np.float16)
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert other == one and other.bind(a, b).shapes == one.bind(a, b).shapes


def test_all_ready_made_schedules_differ():
    made = [make() for registered in REGISTRY for make in (registered.make, registered.make_small)]
    assert len(set(made)) == len(made)
    assert len({*made, *(registered.make() for registered in REGISTRY)}) == len(made)


class Rows(tp.Schedule):
    load, store = tp.Role(warps=1), tp.Role(warps=1)

    def __init__(self, stages=3, tile=(8, 64), **attributes):
        self.ring = tp.BarrierRing(stages, producer=self.load, consumer=self.store)
        self.x = tp.TmaLoadStage(tile=tile, ring=self.ring)
        self.y = tp.TmaStoreStage(source=self.x)
        for name, value in attributes.items():
            setattr(self, name, value)


class Other(Rows):
    pass


def shift(value, by=1):
    return value + by


class Helper:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Lazy:
    @functools.cached_property
    def value(self):
        return 1


ALIKE = [
    {"cluster": {"m": 2}},
    {"tiles": tp.tiles.PersistentTiles(tp.tiles.Grouped(4))},
    {"arch": "sm_100a"},
    {"function": shift},
    {"helper": Helper(a=1, b=[2, (3,)])},
    {"helper": Helper(function=shift)},
    {"inner": Rows(4)},
]


@pytest.mark.parametrize("attributes", ALIKE)
def test_equal_attributes(attributes):
    one, two, other = Rows(**attributes), Rows(**copy.deepcopy(attributes)), Rows()
    assert one == two and hash(one) == hash(two) and one != other


DIFFERENT = [
    ({"stages": 4}, {"stages": 3}),
    ({"tile": (8, 64)}, {"tile": (8, 128)}),
    ({"cluster": {"m": 1, "n": 2}}, {"cluster": {"n": 2, "m": 1}}),
    ({"extra": tp.Role(warps=1)}, {}),
    ({"extra": tp.Role(warps=1)}, {"extra": tp.Role(warps=2)}),
    ({"extra": tp.Role(warps=1)}, {"another": tp.Role(warps=1)}),
    ({"function": lambda x: x}, {"function": lambda x: x}),
    ({"helper": Helper(a=1)}, {"helper": Helper(a=2)}),
    ({"helper": Helper(a=1)}, {"helper": Helper(b=1)}),
    ({"helper": Helper(f=lambda x: x)}, {"helper": Helper(f=lambda x: x)}),
    ({"inner": Rows(4)}, {"inner": Rows(5)}),
    ({"steps": 1}, {"steps": True}),
    ({"steps": (1, 2)}, {"steps": (1, 2, 3)}),
    ({"one": tp.Role(warps=1), "two": tp.Role(warps=2)}, {"two": tp.Role(warps=2), "one": tp.Role(warps=1)}),
    ({"table": np.zeros(2)}, {"table": np.zeros(2)}),  # whose answer is two
]


@pytest.mark.parametrize("one, two", DIFFERENT)
def test_different_attributes(one, two):
    assert Rows(**one) != Rows(**two) and Rows(**one) == Rows(**one) and Rows(**two) == Rows(**two)


def test_what_a_kind_of_stage_sets_besides_its_fields_counts():
    assert Reduced("add") == Reduced("add") != Reduced("min")


def test_types_count_and_being_checked_does_not():
    assert Rows() != Other() and Rows() != "Rows" and Rows() == Rows(checked=False)


def test_attributes_like_the_class_has_them_are_no_difference():
    assert Rows(arch="sm_90a", transposed=()) == Rows()


def test_what_has_been_computed_does_not_count():
    one, two = Rows(), Rows()
    one.plan()
    one.ring = tp.BarrierRing(3, producer=Rows.load, consumer=Rows.store)
    assert one == two
    one.helper, two.helper = Lazy(), Lazy()
    assert one.helper.value == 1 and one == two


def test_schedules_that_refer_to_each_other():
    one, two = Rows(), Rows()
    one.helper, two.helper = Helper(of=None), Helper(of=None)
    one.helper.of, two.helper.of = one.helper, two.helper
    assert one == two


def test_copies_go_their_own_way():
    one = Rows()
    one.plan()
    two = copy.copy(one)
    two.ring = tp.BarrierRing(5, producer=Rows.load, consumer=Rows.store)
    assert one.plan().ring("ring").stages == 3 and two.plan().ring("ring").stages == 5
    three = copy.deepcopy(two)
    three.load = tp.Role(warps=1, registers=None)
    assert three.plan() == two.plan() and three == two


def test_copies_and_pickles_leave_behind_what_was_made():
    """Kernels among it, which cannot be pickled."""
    rows = Rows()
    rows.plan()
    rows.__dict__["_compiled"] = {"key": lambda: None}
    for other in (copy.copy(rows), pickle.loads(pickle.dumps(rows))):
        assert not {"_plans", "_compiled", "_declared"} & set(vars(other)) and other == rows
