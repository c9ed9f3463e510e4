"""Declarations: frozen, with a repr that can be read, compared by identity; their names are the schedule's."""

import copy
import pickle

import attrs
import pytest

import tmapipe as tp
from tests.unit.errors import refused

S = tp.schedules


class Rows(tp.Schedule):
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage(tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)


def parts():
    """One of each, by its repr."""
    load, math = tp.Role(warps=1), tp.Role(warpgroups=2, registers=240, teams=2)
    ring = tp.BarrierRing(3, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(128, 64), ring=ring, multicast=tp.MulticastGroup("n"), l2_hint="evict_first")
    b = tp.TmaLoadStage("n k", tile=[64, 64], ring=ring, dtype="bfloat16").anything_outside()
    of_ring = "BarrierRing(3, producer=Role(warps=1), consumer=Role(warpgroups=2, registers=240, teams=2))"
    of_a = f"TmaLoadStage(tile=(128, 64), ring={of_ring}, dims='m k', multicast=MulticastGroup('n'), l2_hint='evict_first')"
    of_b = f"TmaLoadStage(tile=(64, 64), ring={of_ring}, dtype=bf16, dims='n k').anything_outside()"
    shared = tp.SharedStage(tile=(8, 64), ring=ring, writer=math, dtype="fp32", swizzle=0)
    return {
        "Role(warps=1)": load,
        "Role(warpgroups=2, registers=240, teams=2)": math,
        of_ring: ring,
        "BarrierRing(chain=(Role(warps=1), (Role(warps=2), Role(warps=3)), Role(warps=4)))": tp.BarrierRing(
            chain=(load, (tp.Role(warps=2), tp.Role(warps=3)), tp.Role(warps=4))
        ),
        of_a: a,
        of_b: b,
        f"SharedStage(tile=(8, 64), ring={of_ring}, swizzle=0, dtype=fp32, writer={math!r})": shared,
        f"Wgmma(a={of_a}, b={of_b})": tp.Wgmma(a, b),
        f"Wgmma(a={of_a}, b={of_b}, promote=True)": tp.Wgmma(a, b, promote=True),
        f"Wgmma(a={of_a}, b={of_b}, in_flight=2)": tp.Wgmma(a, b, in_flight=2),
        "Turnstile(role=Role(warpgroups=2, registers=240, teams=2))": tp.Turnstile(math),
        f"TmaStoreStage(dims='m k', source={of_a}, stages=1)": tp.TmaStoreStage(source=a),
        f"TmaStoreStage(dims='m k', source={of_a}, stages=1).with_l2_hint('evict_first')": tp.TmaStoreStage(
            source=a
        ).with_l2_hint("evict_first"),
        "TmaStoreStage(dims='m n', tile=(8, 64), role=Role(warps=1), stages=2, dtype=fp32, reduce='add')": tp.TmaStoreStage(
            "m n", tile=(8, 64), role=load, dtype="fp32", reduce="add"
        ),
        "RegisterTile(role=Role(warpgroups=1), shape=(64, 64))": tp.RegisterTile(tp.Role(warpgroups=1), (64, 64)),
        "Table('l')": tp.Table("l"),
        "Table('b i')": tp.Table("b i"),
        "Table('l', ascending=True)": tp.Table("l", ascending=True),
        "MulticastGroup('m', 'n')": tp.MulticastGroup("m", "n"),
        "bf16": tp.dtypes.bf16,
    }


PARTS = parts()


@pytest.mark.parametrize("text", PARTS)
def test_reprs_show_what_was_given(text):
    """And give the same again, but where two of what is given must be one object."""
    assert repr(PARTS[text]) == text
    if not text.startswith(("Wgmma", "SharedStage")):
        assert repr(eval(text, {**vars(tp.dtypes), **vars(tp.tiles), **vars(tp)})) == text


@pytest.mark.parametrize("text", PARTS)
def test_declarations_are_frozen(text):
    part = PARTS[text]
    for name in (attrs.fields(type(part))[0].name, "name", "anything"):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(part, name, 1)


@pytest.mark.parametrize("text", [text for text in PARTS if text not in ("MulticastGroup('m', 'n')", "bf16")])
def test_declarations_compare_by_identity(text):
    part = PARTS[text]
    assert part == part and part != copy.copy(part) and len({part, part, copy.copy(part)}) == 2
    assert repr(pickle.loads(pickle.dumps(part))) == text


def test_groups_and_types_compare_by_value():
    assert tp.MulticastGroup("m", "n") == tp.MulticastGroup("m", "n") != tp.MulticastGroup("n", "m")
    assert len({tp.dtypes.bf16, tp.dtypes.fp16, pickle.loads(pickle.dumps(tp.dtypes.bf16))}) == 2


# ---- names ------------------------------------------------------------------------------------------------------------


def test_one_object_has_a_name_in_each_schedule():
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage(tile=(8, 64), ring=ring)

    class One(tp.Schedule):
        fill, drain, slots, source = load, store, ring, x
        result = tp.TmaStoreStage(source=x)

    class Two(tp.Schedule):
        first, second, queue, left = load, store, ring, x
        right = tp.TmaStoreStage(source=x)

    one, two = One(), Two()
    assert [one.declared.name_of(part) for part in (load, ring, x)] == ["fill", "slots", "source"]
    assert [two.declared.name_of(part) for part in (load, ring, x)] == ["first", "queue", "left"]
    assert (
        one.plan().ring("slots").phases == (("fill",), ("drain",))
        and one.plan().store("result").buffer.name == "source"
    )
    assert (
        two.plan().ring("queue").phases == (("first",), ("second",)) and two.plan().store("right").buffer.name == "left"
    )


def test_one_part_of_two_names_is_refused():
    class Twice(Rows):
        again = Rows.x

    refused(Twice().plan, argument="Twice.again", value=Rows.x, rule="is declared as x already")


def made(**parts):
    return type("Made", (tp.Schedule,), parts)()


@pytest.mark.parametrize("name", ["plan", "check", "tiles", "cluster", "grid", "declared"])
def test_names_that_every_schedule_has_are_refused(name):
    part = tp.Role(warps=1)
    rule = "something that every Schedule has"
    refused(made, **{name: part}, argument=name, value=part, rule=rule)
    refused(setattr, Rows(), name, part, argument=name, value=part, rule=rule)


def test_parts_that_are_not_declared_are_refused_by_name():
    load, store, math = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warpgroups=1, teams=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage(tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)
    whole = {"load": load, "store": store, "ring": ring, "x": x, "y": y}
    made(**whole).plan()
    for missing, argument in (("load", "ring.phases"), ("store", "ring.phases"), ("ring", "x.ring"), ("x", "y.source")):
        some = {name: part for name, part in whole.items() if name != missing}
        kind = type(whole[missing]).__name__
        rule = f"is a {kind} that Made does not declare"
        refused(made(**some).plan, argument=argument, value=whole[missing], rule=rule)
    deep = tp.BarrierRing(2, producer=load, consumer=math)
    a, b = (tp.TmaLoadStage(dims, tile=(64, 64), ring=deep) for dims in ("m k", "n k"))
    mma = tp.Wgmma(a, b)
    whole = {"load": load, "math": math, "ring": deep, "a": a, "b": b, "mma": mma, "d": tp.TmaStoreStage(source=mma)}
    whole["d"] = tp.TmaStoreStage("m n", source=mma)
    made(**whole).plan()
    for missing, argument in (("a", "mma.a"), ("b", "mma.b"), ("mma", "d.source")):
        some = {name: part for name, part in whole.items() if name != missing}
        refused(made(**some).plan, argument=argument, value=whole[missing], rule="that Made does not declare")
    by_threads = tp.TmaStoreStage("m n", tile=(8, 64), role=store)
    some = {"load": load, "math": math, "ring": deep, "a": a, "b": b, "y": by_threads}
    refused(made(**some).plan, argument="y.role", value=store, rule="is a Role that Made does not declare")
    teams = tp.Role(warpgroups=2, teams=2)
    some = {**whole, "order": tp.Turnstile(teams)}
    refused(made(**some).plan, argument="order.role", value=teams, rule="is a Role that Made does not declare")
    refused(Rows().declared.name_of, ring, argument="BarrierRing", value=ring, rule="that Rows does not declare")


def test_what_refers_to_a_replaced_part_refers_to_the_one_in_its_place():
    class Deeper(Rows):
        ring = tp.BarrierRing(5, producer=Rows.load, consumer=Rows.store)

    class Wider(Deeper):
        x = tp.TmaLoadStage(tile=(8, 128), ring=Deeper.ring, dtype="fp32")
        y = tp.TmaStoreStage(source=x)

    assert Deeper().plan().buffer("x").stages == 5 and Rows().plan().buffer("x").stages == 3
    assert Wider().plan().buffer("x").stages == 5 and Wider().plan().store("y").tile == (8, 128)
    mine = Wider()
    mine.ring = tp.BarrierRing(4, producer=Rows.load, consumer=Rows.store)
    assert mine.plan().buffer("x").stages == 4 and mine.declared.name_of(Rows.ring) == "ring"
    del mine.ring
    assert mine.plan().buffer("x").stages == 5

    class Square(S.Gemm):
        def __init__(self):
            super().__init__((128, 256, 64))
            self.b = tp.TmaLoadStage("l n k", tile=(128, 64), ring=self.ring)

    plan = Square().plan()
    assert plan.matmul("mma").shape == (128, 128, 64) and plan.load("b").tile == (1, 128, 64)


def test_what_does_not_fit_in_the_place_of_another_is_refused():
    class Elsewhere(Rows):
        other = tp.Role(warps=1)
        ring = tp.BarrierRing(3, producer=other, consumer=Rows.store)

    refused(Elsewhere().plan, argument="TmaLoadStage(loader)", value=Rows.load, rule="a role of the ring's first phase")

    class AnotherKind(Rows):
        store = tp.Table("m")

    refused(AnotherKind().plan, argument="ring.phases", value=Rows.store, rule="is a Role that AnotherKind does not")


# ---- what a change makes invalid ----------------------------------------------------------------------------------------


def test_what_is_compiled_is_kept_until_something_changes_that_it_depends_on():
    def with_kernels():
        rows = Rows()
        rows.__dict__.update(_compiled={"key": 1}, _launchers={"key": 2})
        return rows, rows.plan()

    rows, plan = with_kernels()
    rows.checked = False
    assert rows.plan() is plan and {"_compiled", "_launchers"} <= set(vars(rows))
    changes = {
        "cluster": {"m": 1},
        "tiles": tp.tiles.PersistentTiles(),
        "y": tp.TmaStoreStage(source=Rows.x),
        "factor": 2,
    }
    for name, value in changes.items():
        rows, plan = with_kernels()
        setattr(rows, name, value)
        assert rows.plan() is not plan and not {"_compiled", "_launchers"} & set(vars(rows))
        rows.__dict__.update(_compiled={"key": 1})
        delattr(rows, name)
        assert "_compiled" not in vars(rows)


# ---- values of a wrong type ---------------------------------------------------------------------------------------------


def test_values_of_a_wrong_type():
    load, store = Rows.load, Rows.store
    for wrong in (5, 1.5, object()):
        rule = "is a Role for each phase, or a tuple"
        refused(tp.BarrierRing, 2, producer=wrong, consumer=store, argument="producer", value=wrong, rule=rule)
        refused(tp.BarrierRing, 2, producer=load, consumer=wrong, argument="consumer", value=wrong, rule=rule)
        refused(tp.BarrierRing, 2, chain=wrong, argument="BarrierRing(chain)", value=wrong, rule=rule)
        refused(tp.BarrierRing, 2, chain=(load, wrong), argument="BarrierRing(chain)", value=wrong, rule=rule)
        refused(tp.BarrierRing, 2, chain=(load, (wrong,)), argument="BarrierRing(chain)", value=wrong, rule=rule)
    for wrong in (["m", "n"], 2, ("m", "n")):
        rule = "up to 5 different names"
        refused(tp.TmaLoadStage, wrong, tile=(8, 64), ring=Rows.ring, argument="dims", value=wrong, rule=rule)
    for wrong in (64, True, (8, True), {"m": 8}, "ab"):
        rule = "one to five positive extents"
        refused(tp.TmaLoadStage, tile=wrong, ring=Rows.ring, argument="tile", value=wrong, rule=rule)
    for wrong in (True, "2", [2]):
        refused(tp.Role, warps=wrong, argument="warps", value=wrong, rule="positive integer")
        refused(tp.Role, warps=2, teams=wrong, argument="teams", value=wrong, rule="must divide")
        if wrong is not True:
            refused(tp.Role, warps=4, registers=wrong, argument="registers", value=wrong, rule="24 to 256")
        refused(tp.BarrierRing, wrong, producer=load, consumer=store, argument="stages", value=wrong, rule="positive")
    for wrong in (5, ["m"], None):
        refused(tp.MulticastGroup, wrong, argument="MulticastGroup(axes)", value=(wrong,), rule="names of one or more")
        refused(tp.Table, wrong, argument="Table(dims)", rule="name of one dimension")
    refused(tp.Table, "b i", ascending=True, argument="Table(ascending)", value=True, rule="of one dimension")
    refused(tp.Table, "b", ascending=1, argument="Table(ascending)", value=1, rule="True or False")
    refused(tp.TmaLoadStage, tile=(8, 64), ring=Rows.ring, dtype=[], argument="dtype", value=[], rule="one of bf16")
    refused(
        tp.TmaLoadStage, tile=(8, 64), ring=Rows.ring, loader="load", argument="loader", value="load", rule="a role"
    )


@pytest.mark.parametrize("cluster", [None, 2, (1,), "m", {"m": 0}, {"m": True}, {"m": None}])
def test_clusters_of_a_wrong_type(cluster):
    rows = Rows()
    rows.cluster = cluster
    refused(rows.plan, argument="cluster", rule="maps dimensions|positive integer")


@pytest.mark.parametrize("checked", [None, 1, "no", [False]])
def test_whether_it_is_checked(checked):
    rows = Rows()
    rows.checked = checked
    refused(rows.plan, argument="Schedule.checked", value=checked, rule="is True or False")


def test_repr_of_a_schedule_names_its_parts():
    text = "Copy(load: Role, store: Role, ring: BarrierRing, x: TmaLoadStage, y: TmaStoreStage)"
    assert repr(tp.schedules.Copy()) == text

    copy = tp.schedules.Copy()
    copy.relations = "m"  # refused
    assert repr(copy) == "Copy(...)"
