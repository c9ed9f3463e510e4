"""A few random moves of boxes: right, or refused by a rule. The long run is ``python -m tests.fuzz.boxes``."""

import pytest

from tests.fuzz import boxes
from tests.fuzz.box_cases import LOADS, STORES, draw
from tests.fuzz.outcomes import Outcome
from tests.sweeps import ALL


@pytest.fixture(scope="module")
def few():
    return list(boxes.judged(range(7000, 7100 if ALL else 7070), "cpu", 1))


def test_right_or_refused(few):
    assert not [entry for entry in few if not entry[4].good]
    counts = boxes.summary(few)
    assert counts["outcomes"]["right"] > len(few) // 4 < counts["outcomes"]["refused"]
    assert set(counts["loads"]) == set(LOADS) and set(counts["stores"]) == set(STORES)
    assert len(counts["refused"]) > 5 and all(len(rule) > 8 for rule in counts["refused"])


def test_a_wrong_row_is_noticed(monkeypatch):
    """The model, changed: stores of tiles write one element more."""
    from tmapipe.isa.ops import TmaStore
    from tmapipe.model.memory import MOVES

    right = MOVES[TmaStore]

    def more(of, flight, op, values):
        right(of, flight, op, values)
        of.tensors[of.layout.stores[op.store].argument].flat[0] += 1

    seed = next(seed for seed in range(7000, 7100) if draw(seed).moves.store == "slot" and boxes.accepted(seed))
    monkeypatch.setitem(MOVES, TmaStore, more)
    entry = boxes.judge_one(seed, "cpu")
    assert entry[4] is Outcome.WRONG and "elements differ" in entry[5]


def test_what_lies_around_is_looked_at(monkeypatch):
    """The element before the output."""
    seed = next(seed for seed in range(7000, 7100) if boxes.accepted(seed))
    case = draw(seed)

    def beside(*tensors, out, **named):
        out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(3)

    monkeypatch.setattr(type(case.schedule), "simulate", lambda self, *tensors, **named: beside(*tensors, **named))
    with pytest.raises(Exception, match="elements differ"):
        case.run("cpu")


def test_names_of_rules():
    said = "InputError: x.stride = (5, 1): 5 x 2 bytes is no positive multiple of 16, as TMA needs. Fix: pad the rows."
    assert boxes.rule_of(said) == "# x # bytes is no positive multiple of #, as TMA needs"
