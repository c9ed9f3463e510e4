"""`explain()`: each number that it prints, and each formula evaluates to the number beside it."""

import re

import pytest

import tmapipe as tp
from examples.attention import attention_of
from tmapipe.program import trace
from tmapipe.program.explain import fragments_held

S = tp.schedules


def two_rings():
    """Two rings of as many slots, each with its own bytes."""
    load, use = tp.Role(warps=1), tp.Role(warps=2)
    rings = [tp.BarrierRing(3, producer=load, consumer=use) for _ in range(2)]
    made = type("TwoRings", (tp.Schedule,), {
        "load": load, "use": use, "first": rings[0], "second": rings[1],
        "x": tp.TmaLoadStage(tile=(8, 64), ring=rings[0]), "w": tp.TmaLoadStage(tile=(16, 32), ring=rings[1], dtype="fp32"),
    })  # fmt: skip
    return made()


EVERY = {
    "copy": lambda: S.Copy(),
    "gemm": lambda: S.Gemm(),
    "gemm 2x2": lambda: S.Gemm(cluster=(2, 2), epilogue=tp.epilogue.Epilogue(dtype="fp32")),
    "gemm 64": lambda: S.Gemm((64, 72, 64), (1, 4)),
    "gemm, dynamic": lambda: S.Gemm(tiles=tp.tiles.DynamicTiles()),
    "gemm, by GPC": lambda: S.Gemm(cluster=(1, 2), tiles=tp.tiles.GpcTiles()),
    "pingpong": lambda: S.PingPong(),
    "splitk": lambda: S.SplitK(4),
    "splitk, added": lambda: S.SplitK(4, reduce="add"),
    "add parts": lambda: S.AddParts(),
    "two rings": two_rings,
}


def value(formula):
    """The numbers of `a 128 x 64 x 2 + b 8 x 2` or `(8 warps (math)) x 3 CTAs`, put together. A name may be `x`, too."""
    formula = re.sub(r"\((\w+|the team before)\)", "", formula)
    words = " ".join(re.findall(r"(?<![\w-])(?:\d+|x)(?![\w-])|[()+]", formula))
    return eval(re.sub(r"(^|[(+]) ?x ", r"\1 ", words).replace("x", "*").strip())


@pytest.mark.parametrize("name", EVERY)
def test_formulas_give_their_numbers(name):
    text = EVERY[name]().explain()
    checked = 0
    for pattern in (
        r"(?P<number>\d+) arrivals = (?P<formula>.*)",
        r"expect-tx by \w+: (?P<number>\d+) bytes a slot = (?P<formula>.*)",
        r"^  \w+: (?P<formula>\d+ x \d+) = (?P<number>\d+) at \d+",
    ):
        for found in re.finditer(pattern, text, re.M):
            assert value(found["formula"]) == int(found["number"]), found[0]
            checked += 1
    assert checked >= 5


@pytest.mark.parametrize("name", EVERY)
def test_nothing_derived_is_missing(name):
    schedule = EVERY[name]()
    plan, text = schedule.plan(), schedule.explain()
    for barrier in plan.barriers:
        assert re.search(rf"{re.escape(barrier.name)}: .*{barrier.count} arrivals = ", text), barrier
    for part in (*plan.buffers, *plan.named_barriers, *plan.roles, *plan.transfers, *plan.matmuls):
        assert part.name in text
    for ring in plan.rings:
        assert f"ring {ring.name}: {ring.stages} slots, " in text
        for nbytes in ring.armed.values():
            assert f"{nbytes} bytes a slot" in text
    for count in plan.registers.values():
        assert f"setmaxnreg {count}" in text
    assert f"shared memory: {plan.smem_bytes} bytes" in text and f"{plan.threads} threads ({plan.warps} warps)" in text


def test_two_rings_name_their_own_loads():
    text = two_rings().explain()
    assert "1024 bytes a slot = x 8 x 64 x 2\n" in text and "2048 bytes a slot = w 16 x 32 x 4\n" in text


def test_gemm_2x2():
    """Facts of the tuned GEMM on a 2 x 2 cluster, as a reader would look for them."""
    text = S.Gemm(cluster=(2, 2)).explain()
    for fact in (
        "Gemm for sm_90a: 384 threads (12 warps) a CTA",
        "cluster m=2 x n=2 = 4 CTAs, rank = m + 2 n",
        "load: warps 0..0, setmaxnreg 40",
        "math: warps 4..11, setmaxnreg 232",
        "40 + 232 + 232 = 504 <= 168 at launch x 3 warpgroups",
        "ring ring: 4 slots, load -> math",
        "ring.full: 1 arrivals = 1 expect-tx (load)",
        "ring.free: 24 arrivals = (8 warps (math)) x 3 CTAs",
        "49152 bytes a slot = a 128 x 64 x 2 + b 256 x 64 x 2",
        "math reads by wgmma: a slot is released 1 later",
        "tile 1 x 128 x 64 bf16, swizzle 128 bytes, box 64 x 64, 1/2 each, multicast along n with mask 0x0005 << origin",
        "multicast along m with mask 0x0003 << origin",
        "matmul mma: 128 x 256 x 64 over 2 warpgroups, 4 wgmma m64n256k16 a slot and 64 rows, 128 accumulator registers",
        "named barrier d.sync: id 1..2, 128 threads",
    ):
        assert fact in text, fact


def test_what_a_reader_finds_of_edges_and_wide_tiles():
    text = S.Gemm(
        (192, 256, 64), (1, 2), a=tp.Operand(outside="anything"), epilogue=tp.epilogue.Epilogue(stages=1)
    ).explain()
    assert "box 96 x 64, over the edge in boxes of 16 rows, 1/2 each" in text and text.count("over the edge") == 1
    assert "4 wgmma m64n128k16 and m64n128k16 a slot and 64 rows, 128 accumulator registers" in text


def test_architecture_and_types_can_be_asked_for():
    assert "Copy for sm_120a" in S.Copy().explain(arch="sm_120a")
    assert "fp32" in S.Gemm().explain({"d": "fp32"})


def test_registers_of_fragments():
    """Of attention: the sums, an operand from registers, and the scores in fp32 with four numbers for each of two rows."""
    text = attention_of(128).explain()
    assert "    registers a thread: 64 for qk, 96 for pv, at most 72 at once for fragments (" in text
    assert "attention.py:79)" in text


def test_registers_of_fragments_that_a_loop_carries():
    class Carried(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warps=4)
        ring = tp.BarrierRing(2, producer=load, consumer=work)
        x = tp.TmaLoadStage("s m n", tile=(8, 256), ring=ring)
        y = tp.TmaStoreStage("m n", tile=(8, 256), role=work)

        @load.jit
        def fill(self, k, tile):
            for s in range(k.steps("x", "s")):
                with k.ring.produce() as slot:
                    slot.x.load(tile, s=s)

        @work.jit
        def add(self, k, tile):
            low, high = k.full("y", 0.0), k.full("y", 0.0)
            for _ in range(k.steps("x", "s")):
                with k.ring.consume() as slot:
                    values = slot.x.read()  # 16 numbers a thread
                low, high = tp.math.minimum(low, values), tp.math.maximum(high, values)
            k.y.store(tile, high - low)

    class Rare(Carried):
        @Carried.work.jit
        def rarely(self, k, tile):
            total = k.full("y", 0.0)
            for _ in range(k.steps("x", "n")):
                with k.ring.consume() as slot:
                    if tile.m == 12345:  # four at once, in one tile that few problems have
                        a, b, c = slot.x.read(), slot.x.read() * 2.0, slot.x.read() * 3.0
                        total = total + a * b * c + c * a
            k.y.store(tile, total)

    held = fragments_held(trace(Rare()))
    assert held["work"][0] == 64 and "test_explain.py" in held["work"][1]
    held = fragments_held(trace(Carried()))
    assert held.keys() == {"work"} and held["work"][0] == 48  # both and what is read
    assert "test_explain.py" in held["work"][1]
    del Carried.add
    assert "at once" not in Carried().explain()  # without the body, nothing is known
