"""The schedule `Attention` is proved for every shape; its roles have to agree on the blocks of keys."""

import pytest

from tests.sweeps import ALL
from tmapipe.check import Kind
from tmapipe.schedules import Attention

FORMS = {
    "full": {},
    "causal": {"d": 64, "causal": "start", "lse": True},
    "causal, of other lengths": {"causal": "end"},
    "wide heads": {"d": 256},
    "narrow values": {"d": (192, 128), "causal": "end"},
    "wide blocks": {"tile": (128, 1, 176)},
    "packed": {"causal": "end", "tile": (8, 8, 128)},
    "window": {"d": 64, "causal": "end", "window": 500},
}
SOME = ("full", "causal, of other lengths")


@pytest.mark.parametrize("form", FORMS if ALL else SOME)
def test_is_proved_for_every_shape(form):
    report = Attention(**FORMS[form]).check()
    assert report.ok and report.trips == "every trip count", f"{report}\n{report.runs}"


def test_roles_that_see_different_keys_are_rejected():
    class Uneven(Attention):
        def _blocks(self, k, tile):
            first, before, whole, after = super()._blocks(k, tile)
            return first, before, whole + (k.role.name == "load" and 1), after

    report = Uneven().check()
    assert Kind.TRIP_COUNTS in report.kinds(), str(report)
