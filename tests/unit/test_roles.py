"""Roles and bodies: which method a role runs, and what a body may not do."""

from types import MappingProxyType

import pytest

import tmapipe as tp
from tests.unit.errors import refused
from tests.unit.fake_isa import RecordingIsa, record
from tmapipe.kernel import KernelContext, kernel_main
from tmapipe.plan import TAKEN

S = tp.schedules
EXTENTS = {"x": (20, 200), "y": (20, 200)}


class Rows(tp.Schedule):
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage(tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


def test_bodies():
    assert Rows().declared.bodies == {"load": Rows.fill, "store": Rows.drain}


def test_a_body_stays_an_ordinary_function():
    """`role.jit` only registers it: tracing works on a copy, so that the model can run it afterwards."""

    def body(self, k, tile):
        pass

    code = body.__code__
    assert Rows.load.jit(body) is body and body.__code__ is code


def test_subclass_replaces_a_body():
    class Twice(Rows):
        load, store = Rows.load, Rows.store

        @load.jit
        def fill_twice(self, k, tile):
            for _ in range(2):
                with k.ring.produce() as slot:
                    slot.x.load(tile)

    assert Twice().declared.bodies == {"load": Twice.fill_twice, "store": Rows.drain}
    twice, once = Twice(), Rows()
    counts = [len([e for e in record(s, s.plan(), 0, EXTENTS) if e[0] == "load"]) for s in (twice, once)]
    assert counts == [2 * 12, 12]


def test_a_role_without_a_body():
    class Missing(Rows):
        extra = tp.Role(warps=1)

    with pytest.raises(tp.errors.ScopeError, match=r"role 'extra' has no body. Decorate a method .* @extra\.jit"):
        record(Missing(), Missing().plan(), 2, EXTENTS)


def test_a_resized_or_replaced_role_keeps_its_body():
    """In a subclass and in an instance, for all that refer to it; whichever of the two roles decorates another body."""

    class Read(tp.Schedule):
        load, use = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(3, producer=load, consumer=use)
        x = tp.TmaLoadStage(tile=(8, 64), ring=ring)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @use.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.x.read()

    class Wider(Read):
        use = tp.Role(warps=4)

    class Other(Wider):
        @Read.use.jit
        def look(self, k, tile):
            with k.ring.consume():
                pass

    assert Wider().declared.bodies == {"load": Read.fill, "use": Read.drain}
    assert Other().declared.bodies == {"load": Read.fill, "use": Other.look}
    mine = Read()
    mine.use = tp.Role(warps=4)
    for schedule in (Wider(), Other(), mine):
        plan = schedule.plan()
        assert plan.role("use").warps == 4 and plan.barrier("ring.free").count == 4
    assert len([e for e in record(Wider(), Wider().plan(), 4, {"x": (8, 64)}) if e[0] == "read"]) == 1
    assert Read().plan().role("use").warps == 1 and Read.ring.phases[1] == (Read.use,)


def test_none_removes_a_role_and_its_body():
    class Watched(Rows):
        watch = tp.Role(warps=1)

        @watch.jit
        def look(self, k, tile):
            pass

    class Unwatched(Watched):
        watch = None

    assert [role.name for role in Watched().plan().roles] == ["load", "store", "watch"]
    assert [role.name for role in Unwatched().plan().roles] == ["load", "store"]
    assert Unwatched().declared.bodies == Rows().declared.bodies
    mine = Watched()
    mine.watch = None
    assert [role.name for role in mine.plan().roles] == ["load", "store"]


def test_a_role_that_is_removed_cannot_be_used():
    class Without(Rows):
        store = None

    refused(Without().plan, argument="ring.phases", value=Rows.store, rule="is a Role that Without does not declare")


def test_one_role_of_two_names_is_refused():
    class Named(Rows):
        also = Rows.store

    rule = "is declared as store already"
    refused(Named().plan, argument="Named.also", value=Rows.store, rule=rule)
    twice = Rows()
    twice.also = Rows.load
    refused(twice.plan, argument="Rows.also", value=Rows.load, rule="is declared as load already")

    class Renamed(Rows):
        store, drainer = None, Rows.store

    class Back(Named):
        also = None

    assert Back().plan().ring("ring").phases == (("load",), ("store",))
    assert Renamed().declared.bodies == {"load": Rows.fill, "drainer": Rows.drain}
    assert Renamed().plan().ring("ring").phases == (("load",), ("drainer",))


def test_two_bodies_of_one_role_are_refused():
    class Twice(Rows):
        @Rows.load.jit
        def one(self, k, tile):
            pass

        @Rows.load.jit
        def two(self, k, tile):
            pass

    refused(Twice().plan, argument="Twice.two", rule="is the second body of role load, beside one")


def test_a_body_of_a_role_that_nobody_declares():
    other = tp.Role(warps=1)

    class Stray(Rows):
        @other.jit
        def more(self, k, tile):
            pass

    refused(Stray().plan, argument="Stray.more", value=other, rule="a role that Stray does not declare")
    Stray.other = other
    assert Stray().declared.bodies["other"] is Stray.more

    class Without(Stray):
        other = None

    assert "other" not in Without().declared.bodies  # removed with its role

    class Perhaps(Rows):
        optional_roles = MappingProxyType({"other": other})

        @other.jit
        def more(self, k, tile):
            pass

    assert "other" not in Perhaps().declared.bodies
    perhaps = Perhaps()
    perhaps.other = other
    assert perhaps.declared.bodies["other"] is Perhaps.more


def test_two_bodies_of_one_method_name_are_refused():
    def twice():
        class Twice(tp.Schedule):
            load, store = tp.Role(warps=1), tp.Role(warps=1)

            @load.jit
            def body(self, k, tile):
                pass

            @store.jit
            def body(self, k, tile):  # noqa: F811
                pass

    refused(twice, argument="Twice.body", rule="is the body of a role already")

    class Hidden(Rows):
        @Rows.store.jit
        def fill(self, k, tile):
            pass

    refused(Hidden().plan, argument="Hidden.fill", value=Hidden.fill, rule="hides the body of role load")

    def both(self, k, tile):
        pass

    refused(tp.Role(warps=1).jit, tp.Role(warps=1).jit(both), argument="both", rule="is the body of a role already")


def test_a_method_that_is_no_body_does_not_replace_one():
    class Plain(Rows):
        def fill(self, k, tile):
            pass

    error = refused(Plain().plan, argument="Plain.fill", value=Plain.fill, rule="hides the body of role load")
    assert "@load.jit" in error.fix

    class Decorated(Rows):
        @Rows.load.jit
        def fill(self, k, tile):
            pass

    assert Decorated().declared.bodies["load"] is Decorated.fill

    class Elsewhere(Plain):
        @Rows.load.jit
        def fill_twice(self, k, tile):
            pass

    assert Elsewhere().declared.bodies["load"] is Elsewhere.fill_twice


def test_functions_of_one_name_outside_of_classes_are_two():
    """A cell of a notebook that runs again."""
    for _ in range(2):
        role = tp.Role(warps=1)

        @role.jit
        def body(self, k, tile):
            pass


# ---- early exits ------------------------------------------------------------------------------------------------------


def with_break(self, k, tile):
    for _ in range(3):
        break


def with_continue(self, k, tile):
    while k:
        continue


def with_return(self, k, tile):
    if k:
        return


def with_return_in_with(self, k, tile):
    with k.ring.produce() as slot:
        return slot


def with_a_value(self, k, tile):
    return 3


@pytest.mark.parametrize("body", [with_break, with_continue, with_return, with_return_in_with, with_a_value])
def test_early_exits_are_refused_where_the_body_is_declared(body):
    word = next(word for word in ("break", "continue", "return") if word in body.__name__ or word == "return")
    with pytest.raises(
        tp.errors.ScopeError, match=rf"test_roles\.py:\d+: `{word}` in the body of a role. Use `if`/`else`"
    ) as info:
        tp.Role(warps=1).jit(body)
    line = int(str(info.value).split(".py:")[1].split(":")[0])
    first = body.__code__.co_firstlineno
    assert first < line < first + 4


def test_ordinary_control_flow_is_not_refused():
    def body(self, k, tile):
        for i in range(3):
            if i == 1:
                with k.ring.produce() as slot:
                    slot.x.load(tile)
            else:
                pass
        while k.more():
            k.next()

    tp.Role(warps=1).jit(body)


def test_a_helper_inside_a_body_may_return():
    """What a nested function or a lambda returns is no exit of the body."""

    def body(self, k, tile):
        def double(value):
            return 2 * value

        k.use(double(3), lambda value: value)

    tp.Role(warps=1).jit(body)


# ---- what a body sees -------------------------------------------------------------------------------------------------


def context(schedule, role, **extents):
    plan = schedule.plan()
    isa = RecordingIsa(plan, plan.role(role).first_warp, extents=extents or EXTENTS)
    return KernelContext(isa, schedule, plan.role(role))


def with_yield(self, k, tile):
    with k.ring.produce() as slot:
        yield slot


async def with_async(self, k, tile):
    with k.ring.produce() as slot:
        slot.x.load(tile)


async def with_both(self, k, tile):
    yield tile


@pytest.mark.parametrize("body, word", [(with_yield, "yield"), (with_async, "async"), (with_both, "async")])
def test_a_body_runs_from_its_beginning_to_its_end(body, word):
    first = body.__code__.co_firstlineno
    with pytest.raises(tp.errors.ScopeError, match=rf"test_roles\.py:{first}: `{word}` in the body of a role"):
        tp.Role(warps=1).jit(body)


@pytest.mark.parametrize("body", [None, 3, "fill", print, tp.Role(warps=1)])
def test_a_body_is_a_function(body):
    refused(tp.Role(warps=1).jit, body, argument="Role.jit(body)", value=body, rule="method of a schedule")


def test_a_part_that_is_missing_is_a_missing_attribute():
    k = context(Rows(), "load")
    assert getattr(k, "mma", None) is None and not hasattr(k, "mma") and hasattr(k, "ring")
    with k.ring.produce() as slot:
        assert getattr(slot, "z", 3) == 3
        slot.x.load(m=0, n=0)


def offered(k):
    """The parts that a role has, as the error about another one lists them."""
    with pytest.raises(tp.errors.ScopeError) as info:
        k.nothing  # noqa: B018
    return set(str(info.value).split(" which has ")[1].partition(".")[0].split(", "))


def test_context_offers_what_the_role_has():
    k = context(Rows(), "load")
    assert k.ring.phase == 0 and k.plan.name == "Rows" and k.tiles.count == 3 * 4
    assert k.steps("x", "m") == 3 and k.steps("y", "n") == 4
    with pytest.raises(tp.errors.ScopeError, match=r"k\.mma in role 'load', which has ring\."):
        k.mma  # noqa: B018
    gemm = {"a": (1, 300, 100), "b": (1, 520, 100), "d": (1, 300, 520)}
    math = context(S.Gemm(), "math", **gemm)
    assert math.ring.phase == 1 and math.steps("a", "k") == 2
    assert offered(math) == {"ring", "mma", "d"}
    assert offered(context(S.Gemm(), "load", **gemm)) == {"ring"}
    assert offered(context(S.PingPong(), "math", **gemm)) == {"ring", "mma", "d", "order", "epilogue_order"}


def test_names_that_a_context_has_itself_are_taken():
    k = context(Rows(), "load")
    assert {name for name in (*dir(type(k)), *vars(k)) if not name.startswith("_")} == set(TAKEN)


def test_a_role_outside_a_ring_does_not_see_it():
    class Watcher(Rows):
        idle = tp.Role(warps=1)

        @idle.jit
        def wait(self, k, tile):
            k.ring.consume()

    with pytest.raises(tp.errors.ScopeError, match=r"k\.ring in role 'idle', which has nothing"):
        record(Watcher(), Watcher().plan(), 2, EXTENTS)


def test_wrong_verbs_in_a_body():
    class Swapped(Rows):
        load, store = Rows.load, Rows.store

        @load.jit
        def fill(self, k, tile):
            with k.ring.consume() as slot:
                slot.x.load(tile)

    with pytest.raises(tp.errors.ScopeError, match=r"consume\(\) on ring 'ring' in role 'load'"):
        record(Swapped(), Swapped().plan(), 0, EXTENTS)


# ---- the kernel around the bodies -------------------------------------------------------------------------------------


def test_set_up_and_tails():
    """Every warp lets the next kernel start, and waits for the one before between its set-up and its first load. The last warp
    initializes before all meet; a role's tail follows its last tile."""
    rows = Rows()
    plan = rows.plan()
    loader = [event[0] for event in record(rows, plan, 0, EXTENTS)]
    assert loader == ["grid_launch_dependents", "grid_wait", "cta_sync"] + ["wait", "arm", "load"] * 12
    events = record(rows, plan, plan.warps - 1, EXTENTS)
    inits = [("init", b.name, stage, b.count) for b in plan.barriers for stage in range(3)]
    set_up = [("prefetch", "x"), ("prefetch", "y"), *inits, ("init_fence",), ("grid_wait",), ("cta_sync",)]
    assert events[: 1 + len(set_up)] == [("grid_launch_dependents",), *set_up]
    storer = [event[0] for event in events]
    assert storer[-2:] == ["wait_group", "arrive"]  # the last slot's read, its release


def test_clusters_meet_as_a_cluster():
    gemm = S.Gemm(cluster=(2, 1))
    extents = {"a": (1, 256, 64), "b": (1, 256, 64), "d": (1, 256, 256)}
    for warp in range(12):
        events = record(gemm, gemm.plan(), warp, extents)
        kinds = [event[0] for event in events]
        assert (
            events.count(("cluster_arrive", "relaxed")) == kinds.count("cluster_wait") == 1 and "cta_sync" not in kinds
        )


def test_every_warp_of_a_warpgroup_sets_its_registers_first():
    gemm = S.Gemm()
    plan = gemm.plan()
    extents = {"a": (1, 256, 64), "b": (1, 256, 64), "d": (1, 256, 256)}
    for warp in range(12):
        events = [e for e in record(gemm, plan, warp, extents) if e[0] not in ("init", "prefetch", "init_fence")]
        assert events[2] == ("setmaxnreg", plan.registers[warp // 4], warp >= 4)  # before it waits for the others
        assert [e[0] for e in events[3:5]] == ["grid_wait", "cluster_wait"]
        assert [e[0] for e in events].count("setmaxnreg") == 1
        assert (len(events) == 5) == (warp in (1, 2, 3))  # idle warps of the loader's warpgroup


@pytest.mark.parametrize("tiles", [(0, 5), (5, 0)])
def test_no_tiles(tiles):
    """No tile: only set-up and tails."""
    m, n = tiles
    extents = {"x": (8 * m, 64 * n), "y": (8 * m, 64 * n)}
    isa = RecordingIsa(Rows().plan(), 0, extents=extents)
    isa.divisors = lambda values: {name: max(1, value) for name, value in values.items()}  # as the host makes them
    kernel_main(isa, Rows())
    assert isa.of("load", "wait", "arm") == []
