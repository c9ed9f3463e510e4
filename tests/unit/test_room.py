"""Epilogues for which accumulators leave too few registers, or that give no integers: refused by `plan()`, or warned of."""

import warnings

import pytest

import tmapipe as tp
from tests.unit.errors import refused

S, E = tp.schedules, tp.epilogue
SCALE = {"scale": E.PerRow()}
SUMS = {"sums": E.Output("fp32")}


def relu():
    return E.Epilogue(tp.math.relu)


def scaled():
    return E.Epilogue(lambda acc, scale: acc * scale, operands=SCALE, stages=1)


def twice():
    return E.Epilogue(lambda acc: {"d": tp.math.relu(acc), "sums": acc}, outputs=SUMS, stages=1)


@pytest.mark.parametrize(
    ("make", "needed"),
    [
        (
            lambda: S.Gemm((256, 208, 32)),
            "208 accumulator .* 200 leave room to work with 2",
        ),  # wgmmas wait for each other
        (
            lambda: S.Gemm((256, 192, 64), epilogue=scaled()),
            "192 .* 160 leave room for an epilogue with operands or sums",
        ),
        (
            lambda: S.PingPong((128, 176, 64), epilogue=twice()),
            "176 .* 152 leave room for an epilogue with further tiles",
        ),
        (lambda: S.Gemm((192, 224, 64), (1, 1), epilogue=scaled()), "112 .* 104 leave room .* with 3 warpgroups"),
        (lambda: S.GatedGemm((64, 192, 32), (1, 2), a=tp.Operand("m")), "192 .* 184 leave room"),
    ],
)
def test_too_many_accumulators(make, needed):
    refused(make().plan, argument="Wgmma", rule=needed)


def test_a_warning_where_some_spill(recwarn):
    S.Gemm((256, 152, 64), (1, 1), epilogue=twice()).plan()
    assert len(recwarn) == 1 and "152 accumulator registers" in str(recwarn[0].message)
    assert recwarn[0].filename == __file__
    S.Gemm((256, 200, 64), (1, 2)).plan()
    S.PingPong((256, 96, 64)).plan()
    assert [str(each.message).split(" beside")[0][-30:] for each in recwarn[1:]] == [
        "200 accumulator registers a thread"[-30:], "192 accumulator registers a thread"[-30:],
    ]  # fmt: skip


def promoted_twice(m, n, k):
    made = S.GatedGemm((m, n, k), (1, 1), mainloop=tp.mainloop.Cooperative(promote=True))
    return lambda: made.plan(dict.fromkeys(("a", "gate", "up"), "fp8_e4m3"))


def test_two_promoted_products_in_long_k_tiles(recwarn):
    """ptxas spilled 8 bytes of 128 x 112 x 256, 40 of 128 x 112 x 512, 48 of 128 x 120 x 256 and of 192 x 80 x 256."""
    for tile, rule in (
        ((128, 120, 256), "112 leave room"),
        ((128, 112, 512), "96 leave room"),
        ((192, 80, 256), "72 leave room"),
    ):
        refused(promoted_twice(*tile), argument="Wgmma(gate_mma) tile", rule=rule)
    for tile in ((128, 128, 128), (128, 104, 256), (192, 72, 256), (128, 88, 512)):
        promoted_twice(*tile)()
    assert not recwarn
    promoted_twice(128, 112, 256)()
    assert "112 accumulator registers a thread beside" in str(recwarn[0].message)


@pytest.mark.parametrize(
    "make",
    [
        lambda: S.Gemm((256, 192, 64)),
        lambda: S.SplitK(3, (256, 192, 64)),
        lambda: S.PingPong((128, 160, 128), epilogue=relu()),
        lambda: S.Gemm((128, 256, 64), epilogue=scaled()),
        lambda: S.Gemm((192, 160, 64), (1, 2), epilogue=twice()),
        lambda: S.GatedGemm((64, 168, 64), (1, 1)),
        lambda: S.SplitK(3, (256, 192, 64), epilogue=scaled()),  # which another kernel applies
    ],
)
def test_what_is_accepted_without_a_word(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make().plan()


def test_integers_are_not_what_an_epilogue_gives():
    """Planned, they failed when compiled."""
    types = dict.fromkeys(("a", "gate", "up"), "int8") | {"d": "int32"}
    refused(S.GatedGemm((128, 64, 128)).plan, types, argument="d", value="int32", rule="works in fp32")
    types = {"a": "int8", "b": "int8", "d": "int32"}
    refused(S.Gemm((128, 64, 128), epilogue=relu()).plan, types, argument="d", value="int32", rule="works in fp32")
    S.Gemm((128, 64, 128)).plan(types)
