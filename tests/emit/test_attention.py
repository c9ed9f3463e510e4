"""The schedule `Attention` as PTX: nothing in local memory, and turns of its warpgroups by named barriers."""

import itertools
import re
from collections import Counter

import pytest

from tests.emit.kernels import built
from tests.oracle.ptx import Ptx
from tests.sweeps import ALL
from tmapipe.gpu.build import build
from tmapipe.math import tanh
from tmapipe.schedules import Attention, Score

#: (options, loops over blocks of keys that come after the first block)
FORMS = [
    ({"causal": "end", "lse": True}, 2),
    ({"d": 64, "causal": "end", "lse": True}, 2),
    ({"d": 96, "causal": "end", "lse": True}, 2),  # 132 registers of accumulators
    *ALL * [({"d": 64, "tile": (24, 8, None), "causal": "end", "lse": True}, 2)],
    *ALL * [({}, 1), ({"d": 64}, 1), ({"tile": (128, 1, 176)}, 1), ({"d": 256}, 1)],
]


@pytest.mark.parametrize("form, loops", FORMS)
def test_nothing_in_local_memory_and_turns_by_named_barriers(form, loops):
    schedule = Attention(**form)
    plan = schedule.plan()
    compiled = build(schedule, plan, keep=True, unroll=False)
    assert compiled.resources.spill_bytes == 0 and ".local" not in compiled.ptx
    # Of a block, what is subtracted from both rows' scores is tied to the product before: all of it with three warpgroups,
    # else ptxas spills and finds the powers twice; with two, that of the powers behind the first 64 columns.
    tied = schedule.scales_late or schedule.keys_a_block > 64
    assert compiled.ptx.count("0xff800000") == (2 * loops if tied else 0)
    turns = next(each for each in plan.named_barriers if each.name == "order.turn")
    (work,) = (role for role in plan.roles if role.name == "work")
    ptx, count = Ptx(compiled.ptx, plan), turns.instances
    for own in range(count):
        facts = ptx.facts(work.first_warp + 4 * own)
        assert not facts.unknown and facts.local == 0
        # A turn a loop: each waits at its own barrier, and lets in the next one. The last one lets the first one in at the
        # beginning, which meets it again at the end.
        waits = {key: n for key, n in facts.named_syncs.items() if key[1] == turns.threads}
        assert waits == {(turns.id + own, turns.threads): loops + (own == 0)}
        following = turns.id + (own + 1) % count, turns.threads
        assert facts.named_arrivals == Counter({following: loops + (own == count - 1)})
    stores = guards(compiled.ptx, "st.global.b32", "mul.f32")
    assert schedule.with_lse == bool(stores)
    for conditions in stores:  # of each dimension: from 0 on, and before its end
        assert len(conditions) == (9 if schedule.packed > 1 else 6), (
            conditions
        )  # of a last extent of 1 alone, that it is there


def test_bounded_scores_need_no_highest_one():
    """Their loop has no maximum of a row, no exchange between threads, and no scaling of sums."""

    def compiled(bound):
        schedule = Attention(128, tile=(192, 1, 80), score=Score(lambda x, i, j: 30 * tanh(x * (1 / 30)), bound=bound))
        made = build(schedule, schedule.plan(), keep=True, unroll=False)
        assert made.resources.spill_bytes == 0
        return Counter(line.split()[0] for line in made.ptx.splitlines() if line.strip())

    bounded, free = compiled(30), compiled(None)
    assert not bounded["max.NaN.f32"] and free["max.NaN.f32"] > 2 * 40  # of two blocks, 40 scores of a thread each
    assert (bounded["shfl.sync.bfly.b32"], free["shfl.sync.bfly.b32"]) == (4, 12)
    assert bounded["ex2.approx.ftz.f32"] == bounded["tanh.approx.f32"] == 2 * 40
    assert free["mul.f32"] - bounded["mul.f32"] >= 2 * 64  # sums of o, scaled in the loop and after it


@pytest.mark.parametrize("d, early", [(128, True), (64, False)])
def test_two_warpgroups_read_a_mask_while_products_run(d, early):
    """Those of three wait for the product first, since both would be in registers together."""
    schedule = Attention(d, causal="end", lse=True, score=Score(mask="h m s"))
    compiled = build(schedule, schedule.plan(), keep=True)
    assert not early or compiled.resources.spill_bytes == 0
    some = re.findall(r"ldmatrix|wgmma\.mma_async|wgmma\.wait_group", compiled.ptx)
    before = [last for last, name in itertools.pairwise(some) if name == "ldmatrix" != last]
    assert {*before} == {"wgmma.mma_async" if early else "wgmma.wait_group"}


@pytest.mark.parametrize("name", ["window attention"])
def test_warpgroups_of_a_window_take_no_turns(name):
    kernel = built(name)
    assert kernel.compiled.resources.spill_bytes == 0 and ".local" not in kernel.compiled.ptx
    assert not any(each.name == "order.turn" for each in kernel.plan.named_barriers)


def guards(ptx, name, before):
    """Of each instruction *name* that follows one *before*, the comparisons in the condition of the branch around it."""
    lines = [line.strip() for line in ptx.splitlines()]
    made = {found[1]: line for line in lines if (found := re.match(r"[\w.]+\s+(%p\d+),", line))}

    def comparisons(predicate):
        line = made[predicate]
        if line.startswith("setp"):
            return {line.split(None, 1)[1].split(",", 1)[1]}
        return set().union(*map(comparisons, re.findall(r"%p\d+", line)[1:]))

    at = [i for i, line in enumerate(lines) if line.startswith(name) and lines[i - 1].startswith(before)]
    branches = (next(line for line in reversed(lines[:i]) if line.startswith("@%p")) for i in at)
    return [comparisons(re.match(r"@(%p\d+) bra", branch)[1]) for branch in branches]
