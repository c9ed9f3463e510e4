"""The schedule `Attention` is proved for every shape; its roles have to agree on the blocks of keys."""

import time

import pytest

from tests.sweeps import ALL
from tmapipe.check import Kind
from tmapipe.schedules import Attention, Score, SplitAttention, WindowAttention

FORMS = {
    "full": {},
    "causal": {"d": 64, "causal": "start", "lse": True},
    "causal, of other lengths": {"causal": "end"},
    "wide heads": {"d": 256},
    "narrow values": {"d": (192, 128), "causal": "end"},
    "wide blocks": {"tile": (128, 1, 176)},
    "packed": {"causal": "end", "tile": (8, 8, 128)},
    "window": {"d": 64, "causal": "end", "window": 500},
    "mask": {"score": Score(mask="b h m s"), "causal": "start", "window": 300, "lse": True},
    "mask of keys": {"d": 64, "score": Score(mask="b s"), "tile": (8, 8, 128)},
    "sinks": {"score": Score(sinks=True), "causal": "end", "tile": (8, 8, 128)},
    "window of warpgroups": {"window": 500, "causal": "start", "queries": 192, "score": Score(sinks=True), "lse": True},
    "narrow window of warpgroups": {"window": 20, "d": 128, "queries": 128},
    "parts": {"parts": 4},
    "parts, causal": {"parts": 4, "heads": 8, "causal": "end", "lse": True},
    "parts, window": {"parts": 4, "heads": 3, "causal": "end", "window": 500, "score": Score(sinks=True, mask="b s")},
}
SOME = ("full", "causal, of other lengths", "window of warpgroups")


@pytest.mark.parametrize("form", FORMS if ALL else SOME)
def test_is_proved_for_every_shape(form):
    options = FORMS[form]
    begun = time.process_time()
    made = SplitAttention if "parts" in options else WindowAttention if "queries" in options else Attention
    report = made(**options).check()
    assert report.ok and report.trips == "every trip count", f"{report}\n{report.runs}"
    assert not report.findings and time.process_time() - begun < 10  # some 2 s on an idle machine


def test_roles_that_see_different_keys_are_rejected():
    class Uneven(Attention):
        def _blocks(self, k, tile):
            last, ((done, count, unseen),), first = super()._blocks(k, tile)
            return last, ((done, count + (k.role.name == "load" and 1), unseen),), first

    report = Uneven().check()
    assert Kind.TRIP_COUNTS in report.kinds(), str(report)
