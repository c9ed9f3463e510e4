"""The schedule `Attention` as PTX: nothing in local memory, and turns of its warpgroups by named barriers."""

import re
from collections import Counter

import numpy as np
import pytest

from tests.oracle.ptx import Ptx
from tests.sweeps import ALL
from tmapipe.gpu.build import build
from tmapipe.gpu.fragments import POWER_OF_2
from tmapipe.schedules import Attention

#: (options, loops over blocks of keys that come after the first block)
FORMS = [
    ({"causal": "end", "lse": True}, 2),
    ({"d": 64, "causal": "end", "lse": True}, 2),
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
        assert len(conditions) == 6, conditions


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


def test_powers_by_multiply_and_add():
    """What the instructions of `POWER_OF_2` give for each x, step by step."""
    x = np.concatenate([np.linspace(-126, 127, 100_001, endpoint=False), [-127, -1e30, -np.inf, 0]]).astype(np.float32)
    values = {"$1": x}

    def value(name):
        constant = name.startswith("0f")
        return values[name] if not constant else np.array(int(name[2:], 16), np.uint32).view(np.float32)

    def down(exact):
        near = exact.astype(np.float32)
        return np.where(near > exact, np.nextafter(near, np.float32(-np.inf)), near)

    for line in POWER_OF_2.strip("{; }").split(";")[2:]:
        name, _, given = line.strip().partition(" ")
        to, *operands = given.split(", ")
        wide = [value(each).astype(np.float64) for each in operands if name.endswith("f32")]
        if name == "max.f32":
            found = np.maximum(*wide).astype(np.float32)
        elif name == "add.rm.f32":
            found = down(wide[0] + wide[1])
        elif name == "sub.f32":
            found = (wide[0] - wide[1]).astype(np.float32)
        elif name == "fma.rn.f32":
            found = (wide[0] * wide[1] + wide[2]).astype(np.float32)
        elif name == "mov.b32":
            found = value(operands[0]).view(np.uint32)
        elif name == "shl.b32":
            found = values[operands[0]] << np.uint32(int(operands[1]))
        else:
            assert name == "add.s32"
            found = values[operands[0]] + values[operands[1]]
        values[to] = found
    found, exact = values["$0"].view(np.float32), np.exp2(x.astype(np.float64))
    assert np.abs(found[:-4] / exact[:-4] - 1).max() < 2.0**-13
    assert list(found[-4:]) == [0, 0, 0, 1]
