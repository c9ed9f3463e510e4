"""BulkLoadStage: a ring whose slots are filled without a descriptor."""

import numpy as np
import pytest

import tmapipe as tp
from tests.emit.kernels import BulkVectorCopy
from tests.unit.errors import refused


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_a_copy_in_bulk(pieces):
    x = np.arange(1024 * pieces, dtype=np.float32)
    assert (BulkVectorCopy()(x) == x).all()


def test_its_loads_are_bulk_copies():
    run = BulkVectorCopy().simulate(np.zeros(3072, np.float32))
    assert run.counts["BulkLoad"] == 3 and run.counts["TmaLoad"] == 0 and run.loaded_bytes == 4 * 3072


def test_it_is_proved():
    assert BulkVectorCopy().check().trips == "every trip count"


def test_only_whole_pieces():
    refused(BulkVectorCopy(), np.zeros(1500, np.float32), argument="x.shape", rule="whole pieces of 1024 elements")


def test_what_needs_a_descriptor_is_refused():
    ring = BulkVectorCopy.ring
    refused(tp.BulkLoadStage, "m n", tile=(4, 64), ring=ring, argument="tile", rule="one extent")
    refused(tp.BulkLoadStage, "n", tile=(64,), ring=ring, swizzle=128, argument="swizzle", rule="needs a descriptor")
    refused(tp.BulkLoadStage, "n", tile=(64,), ring=ring, l2_hint="evict_first", argument="l2_hint", rule="descriptor")


def test_explain_says_so():
    assert "load x [n]: tile 1024 bf16, swizzle 0 bytes, box 1024" in BulkVectorCopy().explain()
