"""The schedule `Attention` as PTX: nothing in local memory, and turns of its warpgroups by named barriers."""

from collections import Counter

import pytest

from tests.oracle.ptx import Ptx
from tests.sweeps import ALL
from tmapipe.gpu.build import build
from tmapipe.schedules import Attention

#: (options, loops over blocks of keys that come after the first block)
FORMS = [({"causal": "end", "lse": True}, 2), *ALL * [({}, 1), ({"d": 64}, 1), ({"tile": (128, 1, 176)}, 1)]]


@pytest.mark.parametrize("form, loops", FORMS)
def test_nothing_in_local_memory_and_turns_by_named_barriers(form, loops):
    schedule = Attention(**form)
    plan = schedule.plan()
    compiled = build(schedule, plan, keep=True, unroll=False)
    assert compiled.resources.spill_bytes == 0 and ".local" not in compiled.ptx
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
