"""Operands of epilogues: what is refused, and in which order pieces are loaded and taken."""

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tests.unit.fake_isa import record
from tmapipe.plan.transfers import pieces

S, E = tp.schedules, tp.epilogue
ADD = {"function": lambda acc, bias: acc + bias}


@pytest.mark.parametrize(
    "name,options",
    [
        ("epilogue", {"operands": {"bias": E.PerColumn()}}),
        ("epilogue", {"operands": {"c": E.Matrix()}, **ADD}),
        ("epilogue", {"operands": {"bias": E.PerColumn(), "c": E.Matrix()}, **ADD}),
        ("operands['bias']", {"operands": {"bias": "column"}, **ADD}),
        ("operands['bias']", {"operands": {"bias": E.PerColumn}, **ADD}),
        ("operands['load']", {"operands": {"load": E.Matrix()}, "function": lambda acc, load: load}),
        ("operands['a']", {"operands": {"a": E.Matrix()}, "function": lambda acc, a: a}),
        ("operands['out']", {"operands": {"out": E.Matrix()}, "function": lambda acc, out: out}),
        ("BarrierRing(stages)", {"operands": {"bias": E.PerColumn()}, "ahead": 0, **ADD}),
    ],
)
def test_declarations_refused(name, options):
    refused(lambda: S.Gemm(epilogue=E.Epilogue(**options)), argument=name, rule="")


A, B = np.zeros((64, 64), np.float16), np.zeros((128, 64), np.float16)


@pytest.mark.parametrize(
    "argument,value",
    [
        ("bias", None),
        ("bias", 1.0),
        ("bias.shape", np.zeros(64, np.float16)),
        ("bias", np.zeros((1, 1, 128), np.float16)),
        ("bias.stride", np.zeros(256, np.float16)[::2]),
        ("alpha.shape", np.zeros(2, np.float32)),
        ("alpha", np.zeros(1, np.float16)),
        ("alpha", "1.0"),
        ("c.shape", np.zeros((64, 64), np.float16)),
        ("c", np.zeros(64, np.float16)),
        ("other", np.zeros(64, np.float16)),
    ],
)
def test_tensors_refused(argument, value):
    kinds = {"c": E.Matrix(), "bias": E.PerColumn(), "alpha": E.Scalar()}
    gemm = S.Gemm((64, 128, 64), (1, 1), epilogue=E.Epilogue(lambda acc, c, bias, alpha: acc, operands=kinds))
    given = {"c": np.zeros((64, 128), np.float16), "bias": np.zeros(128, np.float16), "alpha": 1.0}
    refused(gemm, A, B, argument=argument, rule="", **(given | {argument.partition(".")[0]: value}))


def test_numbers_that_fp32_does_not_hold():
    gemm = S.Gemm((64, 64, 64), epilogue=E.Epilogue(lambda acc, alpha: acc * alpha, operands={"alpha": E.Scalar()}))
    for value in (1e300, -1e39):
        refused(
            gemm, *[torch.ones(8, 64).half()] * 2, alpha=value, argument="alpha", rule="a float can hold", value=value
        )


@pytest.mark.parametrize("kind,tile", [(S.Gemm, (128, 128, 64)), (S.Gemm, (64, 72, 64)), (S.PingPong, (128, 128, 64))])
def test_pieces_are_loaded_as_they_are_stored(kind, tile):
    """The n-th slot has the n-th piece: its rows are those of all warpgroups that share the tile."""
    gemm = kind(tile, (1, 1), epilogue=E.Epilogue(lambda acc, c: acc + c, operands={"c": E.Matrix()}))
    extents = {"a": (2, 300, 64), "b": (2, 160, 64), "c": (2, 300, 160), "d": (2, 300, 160)}
    plan = gemm.plan()
    loads = [event for event in record(gemm, plan, plan.role("fetch").first_warp, extents) if event[0] == "load"]
    matmul, role = plan.matmuls[0], plan.role("math")
    assert [event[2] for event in loads] == [n % 2 for n in range(len(loads))]
    taken = {}
    for team in range(role.teams):
        events = record(gemm, plan, role.first_warp + team * role.team_warps, extents)
        order = [event for event in events if event[0] in ("read", "store")]
        for read, store in zip(order[::2], order[1::2], strict=True):
            assert read[:2] == ("read", "c") and store[0] == "store"
            taken.setdefault(store[3], []).append(read[2])
    per_tile = len(pieces(*matmul.shape[:2], matmul.warpgroups, gemm.operands.width))
    assert [event[3] for event in loads] == sorted(taken, key=[event[3] for event in loads].index)
    assert len(loads) % per_tile == 0 and all(event[2] in taken[event[3]] for event in loads)


@pytest.mark.parametrize("columns", [0, 4, 12, 264, 32.0, "32"])
def test_columns_refused(columns):
    refused(E.Epilogue, columns=columns, argument="Epilogue(columns)", rule="is a multiple of 8 up to 256")


def test_columns_of_a_piece():
    """Of operands and outputs alike, and not more than the tile has."""
    for columns, width in ((None, 64), (32, 32), (16, 16)):
        operands = E.Epilogue(lambda acc, c: acc + c, operands={"c": E.Matrix()}, columns=columns)
        for epilogue in (operands, E.Epilogue(columns=columns)):
            plan = S.Gemm((128, 128, 64), epilogue=epilogue).plan()
            assert plan.store("d").columns == width
        assert S.Gemm((128, 128, 64), epilogue=operands).plan().buffer("c").tile == (128, width)
    assert S.Gemm((128, 16, 64), epilogue=E.Epilogue(columns=32)).plan().store("d").columns == 16


def test_rows_of_a_tile_in_one_box():
    """Of d alone: such rows of 272 bytes lie in different banks without a swizzle."""
    plan = S.Gemm((64, 136, 64), (1, 1), epilogue=E.Epilogue(columns=136)).plan()
    (store,) = plan.stores
    assert (store.box[-2:], store.buffer.swizzle) == ((64, 136), 0)
    a, b = (np.random.default_rng(rows).integers(-3, 4, (rows, 72)).astype(np.float16) for rows in (70, 200))
    assert (S.Gemm((64, 136, 64), (1, 1), epilogue=E.Epilogue(columns=136))(a, b) == (a.astype(float) @ b.T)).all()
    more = E.Epilogue(lambda acc: {"d": acc, "e": acc}, outputs={"e": E.Output()}, columns=136)
    assert S.Gemm((64, 136, 64), (1, 1), epilogue=more).plan().store("d").columns == 64


def test_pieces():
    assert pieces(128, 128, 2, 64) == [(0, 0), (0, 64)]
    assert pieces(256, 72, 2, 64) == [(0, 0), (0, 8), (1, 0), (1, 8)]
    for rows, columns, groups, width in ((64, 8, 1, 8), (192, 200, 3, 64), (128, 40, 1, 32)):
        found = pieces(rows, columns, groups, width)
        covered = {c for _, first in found for c in range(first, first + width)}
        assert covered == set(range(columns)) and {block for block, _ in found} == set(range(rows // (64 * groups)))


# ---- several outputs --------------------------------------------------------------------------------------------------


def both(acc):
    return {"d": acc, "sums": acc}


@pytest.mark.parametrize("name", ["d", "a", "out", "load", "ring"])
def test_names_of_outputs_refused(name):
    refused(
        lambda: S.Gemm(epilogue=E.Epilogue(both, outputs={name: E.Output()})),
        argument=f"outputs['{name}']",
        rule="always there" if name == "d" else "name",
    )


@pytest.mark.parametrize(
    "epilogue", [None, lambda acc: acc, lambda acc: {"d": acc}, lambda acc: {"d": acc, "sums": acc, "more": acc}]
)
def test_an_epilogue_that_returns_other_outputs(epilogue):
    gemm = S.Gemm((64, 128, 64), (1, 1), epilogue=E.Epilogue(epilogue, outputs={"sums": E.Output()}))
    with pytest.raises(
        tp.errors.ScopeError,
        match=r"^(an epilogue without a function|epilogue <lambda> of .*) returned .* Return a dictionary of d, sums",
    ):
        gemm(A, B)


@pytest.mark.parametrize("store_stages", [1, 2, 3])
def test_outputs_share_the_count_of_bulk_groups(store_stages):
    """Before a buffer is written, the store that was issued from it last has been read: so many stores of both ago."""
    gemm = S.Gemm(
        (128, 128, 64), (1, 1), epilogue=E.Epilogue(both, outputs={"sums": E.Output("fp32")}, stages=store_stages)
    )
    extents = {"a": (1, 300, 64), "b": (1, 520, 64), "d": (1, 300, 520), "sums": (1, 300, 520)}
    events = record(gemm, gemm.plan(), 4, extents)
    issued, read = [], 0
    for event in events:
        if event[0] == "store":
            issued.append(event[1:3])
        elif event[0] == "wait_group":
            read = max(read, len(issued) - event[1])
        elif event[0] == "write_columns":
            assert event[1:3] not in issued[read:], "a buffer is written while a store of it may still read"
    assert {name for name, _ in issued} == {"d", "sums"} and len(issued) == 2 * 3 * 5 * 2
    *waits, last, of_sums = [event[1] for event in events if event[0] == "wait_group" and event[2]]
    assert set(waits) == {2 * store_stages - 1}  # and no store is waited for earlier than that
    assert last == of_sums == 0


def test_slots_have_room_for_what_a_piece_needs_and_no_more():
    """In units of 128 elements; one more where rows begin anywhere."""
    epilogue = E.Epilogue(lambda acc, scale: acc * scale, operands={"scale": E.PerRow()})
    assert S.Gemm((128, 64, 32), epilogue=epilogue).scale.tile == (128,)
    assert S.GroupedGemm((128, 64, 32), epilogue=epilogue).scale.tile == (256,)
