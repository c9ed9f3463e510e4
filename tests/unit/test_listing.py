"""The listing of a program: its roles, loops and operations, with the lines of bodies."""

import inspect

import tmapipe as tp
from examples.stream_copy import Copy


def test_a_copy_role_by_role():
    text = Copy().program()
    assert "ring   ring: 4 slots, load -> store, barriers ring.full, ring.free" in text
    load, store = text.split("role load, warp 0:")[1].split("role store, warp 1:")
    assert (
        load.index("waits for ring.free[ring.slot]")
        < load.index("arms 16384 bytes")
        < load.index("starts the TMA load")
    )
    assert "for i in 0 .. tiles:   with ring.slot = 0, ring.parity = 1" in load
    assert "next   ring.slot = next(ring.slot, 4); ring.parity = ring.parity ^ lap(ring.slot)" in load
    assert "waits for ring.full[ring.slot] (parity ring.parity)" in store
    assert "arrives at ring.free[ring.held]   if ring.held >= 0" in store


def test_lines_are_the_bodies():
    lines, first = inspect.getsourcelines(Copy.fill)
    produces = first + next(i for i, line in enumerate(lines) if "produce()" in line)
    assert f"# stream_copy.py:{produces}" in Copy().program()


def test_epilogues_and_branches():
    epilogue = tp.epilogue.Epilogue(lambda acc, bias: acc + bias, operands={"bias": tp.epilogue.PerColumn()})
    text = tp.schedules.Gemm(epilogue=epilogue).program()
    assert "apply(<lambda>" in text and "bias[operand_ring.slot]" in text
    assert "for j in 0 .. (a.k + 63) // 64" in text


def test_ctas_of_a_mask():
    """The numbers of CTAs, as reports say them, and not the mask's bits."""
    text = tp.schedules.Gemm(cluster=(2, 1)).program()
    assert "TMA load of b into b[ring.slot] of CTAs " in text
    assert "arrives at ring.free[ring.held] of CTAs 0, 1 (relaxed scope)" in text


def test_names_of_cells():
    text = tp.schedules.PingPong().program()
    assert "waits for order.turn[(warp - 4) // 4] (parity order.turn.parity)" in text
