"""A producer and a consumer, TMA in and TMA out: right results in every order, and each fault's error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machine.parts import TILE, CopyRing, ramp, run, run_recorded
from tests.oracle.plain import record
from tests.sweeps import examples
from tmapipe.base.arithmetic import bf16, fp8_e4m3, fp16, fp32
from tmapipe.errors import DeadlockError, HazardError, InputError, PipelineError
from tmapipe.model import POLICIES


def copy(ring: CopyRing, x: np.ndarray, clusters: int = 1, **options):
    y = np.full_like(x, -1)
    made = run(ring.made, ring.entry, {"x": x, "y": y}, clusters, **options)
    return y, made


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("tiles", [0, 1, 2, 3, 4, 7, 20])
def test_every_stage_and_trip_count(stages, tiles):
    x = ramp((TILE[0] * tiles, TILE[1]))
    y, _ = copy(CopyRing(stages), x)
    assert (x == y).all()


@given(rows=st.integers(1, 40), columns=st.integers(1, 40), stages=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=examples(40))
def test_ragged_edges(rows, columns, stages, seed):
    """Outside the tensor loads read zero and count their bytes, and stores write nothing."""
    x = ramp((rows, columns), fp32)
    y, _ = copy(CopyRing(stages, dtype=fp32), x, clusters=1 + seed % 3, seed=seed)
    assert (x == y).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_result_for_20_seeds(policy):
    x = ramp((50, 30))
    for seed in range(20):
        y, _ = copy(CopyRing(3), x, clusters=2, seed=seed, policy=policy)
        assert (x == y).all()


def test_seeds_give_different_orders_and_the_same_seed_the_same():
    x = ramp((50, 30))

    def orders(seed):
        return [(e.agent, e.op) for e in copy(CopyRing(3), x, seed=seed, trace=True)[1].trace]

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)


@pytest.mark.parametrize("dtype", [bf16, fp16, fp32, fp8_e4m3])
def test_types(dtype):
    x = ramp((20, 30), dtype)
    y, _ = copy(CopyRing(2, dtype=dtype), x)
    assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("policy", POLICIES)
def test_without_data_the_protocol_runs_alone(policy):
    ring = CopyRing(3)
    run_ = run_recorded(ring.made, ring.entry, {"x": (800, 16), "y": (800, 16)}, policy)
    assert run_.counts["TmaLoad"] == run_.counts["StoreWrite"] == 100
    assert run_.loaded_bytes == 100 * ring.slots.slot_bytes
    assert run_.counts["MbarWait"] == 200


def test_data_and_protocol_take_the_same_operations():
    x = ramp((80, 30))
    with_data = copy(CopyRing(2), x)[1].counts
    ring = CopyRing(2)
    without = run_recorded(ring.made, ring.entry, {"x": x.shape, "y": x.shape}).counts
    del with_data["LoadWrite"]  # a step of its own only where there are bytes to write
    assert with_data == without


# ---- faults -----------------------------------------------------------------------------------------------------------


def errors(fault: str, tiles: int = 6, stages: int = 2) -> set[str]:
    """What comes out over policies and seeds: rules of hazards, "deadlock", "wrong" or "right"."""
    found = set()
    x = ramp((TILE[0] * tiles, TILE[1]))
    for policy in POLICIES:
        for seed in range(6):
            try:
                y, _ = copy(CopyRing(stages, fault), x, policy=policy, seed=seed)
                found.add("right" if (x == y).all() else "wrong")
            except HazardError as error:
                found.add(error.rule)
            except DeadlockError:
                found.add("deadlock")
    return found


def test_no_wait_for_full():
    found = errors("no wait for full")
    assert "slot-being-loaded" in found and "right" not in found


def test_no_wait_for_free():
    assert errors("no wait for free") <= {"slot-being-loaded", "slot-being-stored", "surplus-arrival", "deadlock"}


def test_released_before_the_store_has_read():
    found = errors("no read wait")
    assert "slot-being-stored" in found and found <= {"slot-being-stored", "right", "wrong"}


def test_a_surplus_of_arrivals():
    assert "right" not in errors("lanes")


def test_a_missing_arrival_deadlocks_and_says_who_waits():
    ring = CopyRing(2, "no arrive")
    with pytest.raises(DeadlockError) as caught:
        copy(ring, ramp((80, 16)))
    text = str(caught.value)
    assert "load (warp 0) of CTA 0 waits for free[0] parity 0: it is in phase 0 with 0 of 1 arrivals" in text
    assert "store (warp 1) of CTA 0 waits for full[0] parity 1: it is in phase 1 with 0 of 1 arrivals" in text
    assert "parts.py:" in text
    assert caught.value.blocked.keys() == {0, 1}


def test_the_same_deadlock_without_data():
    ring = CopyRing(2, "no arrive")
    with pytest.raises(DeadlockError, match=r"free\[0\] parity 0.*parts\.py:\d+"):
        run_recorded(ring.made, ring.entry, {"x": (80, 16), "y": (80, 16)})


def test_a_count_too_high_deadlocks():
    with pytest.raises(DeadlockError, match="1 of 2 arrivals"):
        copy(CopyRing(2, "count"), ramp((80, 16)))


def test_bytes_that_nothing_delivers():
    with pytest.raises(DeadlockError, match="16 bytes armed, not delivered and not on their way"):
        copy(CopyRing(2, "bytes"), ramp((80, 16)))


def test_more_bytes_than_were_armed():
    with pytest.raises(HazardError, match="16 bytes more landed than were armed"):
        copy(CopyRing(2, "few bytes"), ramp((80, 16)))


def test_a_skipped_load():
    with pytest.raises(DeadlockError, match="256 bytes armed, not delivered"):
        copy(CopyRing(2, "no load"), ramp((80, 16)))


def test_hazards_name_the_line():
    with pytest.raises(
        HazardError, match=r"store \(warp 1\) of CTA 0 stores y from slot x\[0\].*parts\.py:\d+"
    ) as caught:
        copy(CopyRing(2, "no wait for full"), ramp((80, 16)))
    assert caught.value.agent == 1 and caught.value.rule == "slot-being-loaded"


def test_a_step_limit_is_an_error():
    with pytest.raises(PipelineError, match="max_steps"):
        copy(CopyRing(2), ramp((80, 16)), max_steps=50)
    ring = CopyRing(2)
    with pytest.raises(PipelineError, match="max_steps"):
        record(ring.made, ring.entry, {"x": (80, 16), "y": (80, 16)}, max_steps=50)


def test_bad_tensors():
    ring = CopyRing(2)
    with pytest.raises(InputError, match="y = None"):
        run(ring.made, ring.entry, {"x": ramp((8, 16))})
    with pytest.raises(InputError, match="dimensions m n"):
        run(ring.made, ring.entry, {"x": ramp((8, 16)), "y": ramp((1, 8, 16))})
    with pytest.raises(InputError, match=r"float32.*slots of fp16"):
        run(ring.made, ring.entry, {"x": ramp((8, 16)), "y": ramp((8, 16), fp32)})
