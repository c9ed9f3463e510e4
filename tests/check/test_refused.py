"""What bodies and epilogues may not do with fragments, coordinates and loops: refused, at the line, and early."""

import itertools
import math

import numpy as np
import pytest

import tmapipe as tp
from tests.unit.errors import refused
from tests.unit.limits import ended
from tmapipe.check import Kind

S = tp.schedules
A, B = np.ones((64, 32), np.float16), np.ones((64, 32), np.float16)


def gemm(epilogue, **options):
    return S.Gemm((64, 64, 32), (1, 1), 2, epilogue=epilogue, **options)


def line_of(function):
    return f"{__file__}:{function.__code__.co_firstlineno}"


# ---- fragments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "epilogue",
    [
        lambda acc: list(acc),
        lambda acc: sum(x for x in acc),
        lambda acc: acc * len(acc),
        lambda acc: acc if acc > 0 else -acc,
        lambda acc: acc * float(acc),
        lambda acc: acc - acc.max(),
        lambda acc: acc / acc.sum(),
        lambda acc: acc - np.mean(acc),
        lambda acc: acc - np.add.reduce(acc),
        lambda acc: acc - tp.math.exp(acc).sum(),
        lambda acc: acc[:, :1] + acc,
        lambda acc: acc[0],
    ],
)
def test_what_depends_on_the_share_of_a_tile(epilogue):
    """On the model and in the proof alike, which names the line."""
    with pytest.raises(tp.errors.ScopeError, match="of a fragment") as info:
        ended(gemm(epilogue).check)
    assert line_of(epilogue) in str(info.value)
    with pytest.raises(tp.errors.ScopeError, match="of a fragment"):
        gemm(epilogue)(A, B)


def test_a_loop_over_the_shape():
    with pytest.raises(tp.errors.ScopeError, match="shape of a fragment"):
        ended(gemm(lambda acc: acc * max(*acc.shape)).check)


def test_what_works_element_by_element():
    report = gemm(
        lambda acc: tp.math.where(acc > 0, acc, 0) + tp.math.maximum(acc, 1) * tp.math.where(acc > 1, acc, -acc)
    ).check()
    assert report.ok
    values = gemm(lambda acc: tp.math.minimum(abs(-acc) ** 2, 9) + acc)(A, B)
    assert (values == 41).all()


@pytest.mark.parametrize(
    "epilogue, outputs",
    [
        (lambda acc: None, {}),
        (lambda acc: {"d": acc, "e": None}, {"e": tp.epilogue.Output()}),
        (lambda acc: {"d": None, "e": acc}, {"e": tp.epilogue.Output()}),
        (lambda acc: "d", {}),
        (lambda acc: [acc], {}),
        (lambda acc: (acc, acc), {}),
    ],
)
def test_an_epilogue_returns_fragments(epilogue, outputs):
    made = gemm(tp.epilogue.Epilogue(epilogue, outputs=outputs))
    said = (
        r"^epilogue <lambda> of .*test_refused.py:\d+ returned .*(Is a `return` missing|Return the value|Return a dict)"
    )
    for run in (made.check, lambda: made(A, B)):
        with pytest.raises(tp.errors.ScopeError, match=said):
            run()


def test_accumulators_are_combined_by_an_epilogue():
    refused(lambda: S.GatedGemm(epilogue=None), argument="epilogue", value=None, rule="combines both sums")
    made = S.GatedGemm()
    made.epilogue = tp.epilogue.Epilogue()
    with pytest.raises(tp.errors.ScopeError, match="2 accumulators stored without an epilogue"):
        made.check()


@pytest.mark.parametrize("name", ["relu", "exp", "gelu", "silu", "sqrt"])
@pytest.mark.parametrize("wrong", ["torch", None, "x", [1.0], 1j, np.array(["x"]), np.array([1j])])
def test_functions_of_what_they_do_not_know(name, wrong):
    wrong = pytest.importorskip("torch").tensor(-1.0) if wrong == "torch" else wrong
    refused(getattr(tp.math, name), wrong, argument="tmapipe.math", rule="fragments and numbers")


# ---- bodies -----------------------------------------------------------------------------------------------------------


class Scaled(tp.Schedule):
    """Threads rewrite what was loaded, and it is stored."""

    load, work, store = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
    ring = tp.BarrierRing(2, chain=(load, work, store))
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring, dtype="fp32")
    y = tp.TmaStoreStage(source=x)

    def start(self, slot, tile):
        slot.x.load(tile)

    def change(self, slot):
        slot.x.write(slot.x.read() * 2)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            self.start(slot, tile)

    @work.jit
    def scale(self, k, tile):
        with k.ring.consume() as slot:
            self.change(slot)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


X = np.ones((16, 128), np.float32)


def both(schedule, **what):
    """Refused by the proof, and by the model."""
    assert Scaled().check().ok and (Scaled()(X) == 2).all()
    refused(schedule.check, **what)
    refused(schedule, X, **what)


@pytest.mark.parametrize("value", [1.0, 1, None, np.float32(1)])
def test_what_is_written_is_a_fragment(value):
    class Wrong(Scaled):
        def change(self, slot):
            slot.x.write(value)

    both(Wrong(), argument="slot.x.write", value=value, rule="takes a fragment")


def test_a_fragment_of_another_size():
    class Wrong(Scaled):
        def change(self, slot):
            slot.x.write(np.ones(3, np.float32))

    refused(Wrong(), X, argument="slot.x.write", rule="takes a fragment")


@pytest.mark.parametrize("at", [(), (0,), (0, 0, 0)])
def test_as_many_indices_as_dimensions(at):
    class Wrong(Scaled):
        def start(self, slot, tile):
            slot.x.load_from(*at)

    both(Wrong(), argument="slot.x.load_from", value=at, rule="one index along each of m, n")


@pytest.mark.parametrize(
    "at", [(0.5, 0), (0, 1.0), (0, "0"), (0, None), (None, 0), (2**31, 0), (0, -(2**40)), ([1], 0)]
)
def test_whole_indices(at):
    class Wrong(Scaled):
        def start(self, slot, tile):
            slot.x.load_from(*at)

    both(Wrong(), argument="slot.x.load_from", value=at, rule="one index along each of m, n")


@pytest.mark.parametrize("place", [lambda tile: np.float32, lambda tile: [1], lambda tile: 2**40])
def test_whole_coordinates(place):
    class Wrong(Scaled):
        def start(self, slot, tile):
            slot.x.load(tile, n=place(tile))

    both(Wrong(), argument="slot.x.load(n)", rule="whole number of tiles")


def test_no_fraction_of_a_coordinate():
    class Wrong(Scaled):
        def start(self, slot, tile):
            slot.x.load(tile, n=tile.n / 2)

    with pytest.raises(
        tp.errors.ScopeError, match=r"with / of `tile.n`.* Numbers are whole: use //, or divide a fragment by it"
    ):
        Wrong()(X)


JUNK = (None, 0.5, "0", [1], (0, 1), np.float32(1), np.zeros(2), len, 2**40)


class Gathered(tp.Schedule):
    """y[r] = x[at[r]], row by row."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring, dtype="fp32").in_parts(4)
    at = tp.Table("r")
    y = tp.TmaStoreStage("r n", source=x)
    number, part = staticmethod(lambda i: i), staticmethod(lambda i: i)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            for i in range(4):
                slot.x.load_part_from(self.part(i), k.at.entry(self.number(tile.r * 4 + i)), tile.n * 64)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


@pytest.mark.parametrize("junk", JUNK)
def test_numbers_of_parts_and_of_entries(junk):
    schedule = Gathered()
    assert schedule.check().ok
    schedule.number = lambda i: junk
    assert refused(schedule.check, argument="k.at.entry", rule="number of an entry").value is junk
    schedule.number, schedule.part = Gathered.number, lambda i: junk
    assert refused(schedule.check, argument="slot.x.load_part", rule="in 4 parts").value is junk


class Passed(Scaled):
    """y = x, through scratch."""

    load, work, ring, x = Scaled.load, Scaled.work, Scaled.ring, Scaled.x
    mine = tp.Scratch(work, tile=(8, 64), dtype="fp32", copies=2)
    bias = tp.Scratch(work, tile=(8,), dtype="fp32")
    copy, window, element = 1, (0, 0), 0

    @work.jit
    def scale(self, k, tile):
        with k.ring.consume() as slot:
            copy = k.mine.copy(self.copy)
            copy.write(slot.x.read())
            k.bias.write(tp.math.row_sum(slot.x.read()))
            k.sync()
            slot.x.write(copy.read(tile=(8, 64), at=self.window) + k.bias.read(at=self.element))
            k.sync()


@pytest.mark.parametrize("junk", [junk for junk in JUNK if not isinstance(junk, np.ndarray)])
def test_numbers_of_copies_and_of_elements(junk):
    assert Passed().check().ok
    for name, argument, value in (
        ("copy", "k.mine.copy", junk),
        ("window", "slot.mine.read(at)", (junk, 0)),
        ("element", "slot.bias.read(at)", junk),
    ):
        if name != "element" or junk is not None:
            schedule = Passed()
            setattr(schedule, name, value)
            refused(schedule.check, argument=argument, rule=r"number of a copy|\(row, column\)|begin|index into a tile")


@pytest.mark.parametrize(
    "change, what",
    [
        (lambda v: v * 10**400, "mul of a fragment and an int, which has more than 128 bits"),
        (lambda v: tp.math.cast(v, "int32") + 2**31, "add of a fragment and 2147483648, which has more than 32 bits"),
        (lambda v: tp.math.row_sum(v, inside=2**31), "lt of a fragment and 2147483648, which has more than 32 bits"),
        (lambda v: tp.math.cast(v, "int32") // 0, "floordiv of a fragment by 0. It takes a divisor other than 0"),
        (lambda v: tp.math.cast(v, "int32") % 0, "mod of a fragment by 0. It takes a divisor other than 0"),
        (lambda v: tp.math.cast(v, "int32") << 32, "lshift of a fragment by 32. It takes .* 0 to 31 bits"),
        (lambda v: tp.math.cast(v, "int32") >> -1, "rshift of a fragment by -1. It takes .* 0 to 31 bits"),
        (lambda v: round(v), "a rounding .*of a fragment"),
        (lambda v: math.floor(v), "a rounding .*of a fragment"),
        (lambda v: pytest.importorskip("torch").exp(v), r"torch.exp\(\) of a fragment"),
        (lambda v: v**0, "power of 0. It takes an int from 1 to 64"),
        (lambda v: v**10**9, "power of 1000000000. It takes an int from 1 to 64"),
    ],
)
def test_numbers_that_fragments_have_no_room_for(change, what):
    class Wrong(Scaled):
        def change(self, slot):
            slot.x.write(change(slot.x.read()))

    for run in (Wrong().check, lambda: Wrong()(X)):
        with pytest.raises(tp.errors.ScopeError, match=what):
            run()


def test_an_output_that_nothing_stores():
    class Wrong(Scaled):
        store = Scaled.store

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.x.read()

    refused(Wrong().check, argument="y", value=None, rule="is an output of Wrong that no body stores")


@pytest.mark.parametrize("tile", [1, "m", (0, 0), {"m": 0}, np.zeros(2)])
def test_tiles_are_those_that_the_body_is_called_with(tile):
    class Wrong(Scaled):
        def start(self, slot, _):
            slot.x.load(tile)

    refused(Wrong().check, argument="slot.x.load", rule="the tile that the body was called with")


@pytest.mark.parametrize("stage, dim", [("x", "q"), ("q", "m"), ("ring", "m"), (3, "m"), (None, None)])
def test_steps_of_what_there_is(stage, dim):
    class Wrong(Scaled):
        load = Scaled.load

        @load.jit
        def fill(self, k, tile):
            for _ in range(k.steps(stage, dim)):
                with k.ring.produce() as slot:
                    slot.x.load(tile)

    refused(Wrong().check, argument="k.steps", value=(stage, dim), rule="a stage and one of its dimensions")


def test_what_is_no_part_of_a_slot():
    class Wrong(S.Gemm):
        math = S.Gemm.math

        @math.jit
        def multiply(self, k, tile):
            with k.mma.accumulate() as acc:
                for _ in range(k.steps("a", "k")):
                    with k.ring.consume() as slot:
                        acc.add(slot.a, 3)
            k.d.store(tile, acc)

    with pytest.raises(tp.errors.ScopeError, match=r"acc.add\(\) takes slot.a and slot.b"):
        Wrong().check()


@pytest.mark.parametrize("epilogue", [3, "relu", (1, 2), np.ones(3)])
def test_an_epilogue_is_a_function(epilogue):
    class Wrong(S.Gemm):
        math = S.Gemm.math

        @math.jit
        def multiply(self, k, tile):
            with k.mma.accumulate() as acc:
                for _ in range(k.steps("a", "k")):
                    with k.ring.consume() as slot:
                        acc.add(slot.a, slot.b)
            k.d.store(tile, acc, epilogue)

    refused(Wrong().check, argument="d.store(epilogue)", rule="a function of fragments")


def test_an_epilogue_takes_what_it_is_called_with():
    for wrong in (lambda: 1, lambda acc, other: acc):
        with pytest.raises(tp.errors.ScopeError, match="an epilogue is called with 1 accumulator: "):
            gemm(wrong).check()
    for made in (gemm(object), S.GatedGemm(epilogue=str), S.AddParts(epilogue=object)):
        with pytest.raises(tp.errors.ScopeError, match=r"an epilogue is called with [12] accumulators?: "):
            made.check()
    for k in (64, 0):
        for wrong in (object, tp.Role, lambda: 1):
            with pytest.raises(tp.errors.ScopeError, match="an epilogue is called with 1 accumulator: "):
                S.StreamK(3, (64, 64, 32), (1, 1), epilogue=wrong)(A[:, :k], B[:, :k])
    with pytest.raises(TypeError, match="bad operand"):
        gemm(lambda acc: acc + (-"a")).check()  # its own mistake


def test_a_body_that_never_ends(monkeypatch):
    monkeypatch.setattr("tmapipe.program.isa.MOST", 2_000)  # sooner

    class Endless(Scaled):
        load, ring = Scaled.load, Scaled.ring

        @load.jit
        def fill(self, k, tile):
            for _ in itertools.count():
                with k.ring.produce() as slot:
                    slot.x.load(tile)

    report = ended(Endless().check)
    (finding,) = report.findings
    assert not report.ok and finding.kind is Kind.LIMIT and finding.where[0] in finding.message
    assert finding.where[0].startswith(f"{__file__}:")


# ---- types that parts are added in ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x, d, argument",
    [
        ("fp32", "int8", "d"),
        ("bf16", "int32", "d"),
        ("fp8_e4m3", "fp32", "x"),
        ("fp8_e5m2", "fp8_e5m2", "x"),
        ("int32", "fp8_e4m3", "d"),
    ],
)
def test_types_of_parts(x, d, argument):
    refused(S.AddParts().plan, {"x": x, "d": d}, argument=argument, rule="add|rounded|converted")
