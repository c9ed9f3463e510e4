"""Operations and instructions on global memory by threads, such as counters and tables, and among the lanes of a warp.

A launch has some counters: int32 in global memory that are 0 when it starts, and must be 0 when it ends. In the machine,
clusters run one after another, so the caller passes what an atomic operation finds there, as if clusters took turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tmapipe.isa.effects import Global, operation
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.lowering import Lowering
from tmapipe.isa.operands import At, Data, Name
from tmapipe.isa.values import Condition, Value
from tmapipe.plan.model import Store

__all__ = [
    "Ballot", "CounterAdd", "CounterStore", "GlobalInstructions", "ReadSmid", "Shuffle", "TableLoad", "TileStore",
]  # fmt: skip


@operation(
    "atom.global.add.u32",
    "adds 1 to counter {counter}, which was {before}",
    Global("atomic"),
)
class CounterAdd(NamedTuple):
    """Facts: None."""

    counter: Data
    before: Data


@operation("st.global.b32", "sets counter {counter} to {value}", Global("write"))
class CounterStore(NamedTuple):
    """Facts: None."""

    counter: Data
    value: Data


@operation("ld.global.b32", "reads entries {entries} of table {table}", Global("read"))
class TableLoad(NamedTuple):
    """Of one entry by all lanes, or of one each by the first ones. Facts: None."""

    table: Name
    entries: At


@operation("st.global", "stores its values of a tile of {store}", Global("write"))
class TileStore(NamedTuple):
    """To the tile that starts at element `at`, by each lane those that it has. Facts: None."""

    store: Name
    at: At = ()


@operation("vote.sync.ballot.b32", "counts {votes} votes of the lanes")
class Ballot(NamedTuple):
    """Facts: None."""

    votes: Data


@operation("shfl.sync.idx.b32", "takes a value from lane 0")
class Shuffle(NamedTuple):
    """Orders no accesses to memory. Facts: None."""


@operation("mov.u32 %smid", "reads the number of its multiprocessor")
class ReadSmid(NamedTuple):
    """Facts: None."""


class GlobalInstructions(Lowering):
    """Instructions on counters, tables and tensors. They may be touched only after `griddepcontrol_wait`."""

    def lane_0(self, body: Callable[[], None], when: Condition = True) -> None:
        """Runs *body* in lane 0 alone, if *when*, by predication.

        In it only registers, `atomic_add`, `store_counter`, `smid`, and control flow. Conditions may be those of one lane.
        """
        if when:
            body()

    def shuffle(self, value: Value) -> Value:
        """``shfl.sync.idx``: lane 0's *value*, in all lanes."""
        self.emit(Shuffle())
        return value

    def smid(self) -> Value:
        """``%smid``: the number of the calling multiprocessor. In the machine, which has one: 0."""
        self.emit(ReadSmid())
        return 0

    def launch_words(self, in_machine: Callable[[int], Sequence[int]]) -> Sequence[Value]:
        """The 32-bit words that the host passed to the launch for the order of tiles.

        Args:
            in_machine: What they are in the machine, of the number of clusters.
        """
        return in_machine(self.clusters)

    def atomic_add(self, counter: Value, in_turn: Callable[[], int]) -> Value:
        """``atom.global.add``, relaxed, at GPU scope, by the calling lane: adds 1 to a counter. Returns what it was before.

        Args:
            counter: Its number.
            in_turn: In the machine, what it was if clusters take turns.
        """
        before = in_turn()
        self.emit(CounterAdd(counter, before))
        return before

    def store_counter(self, counter: Value, value: int) -> None:
        """``st.global`` by the calling lane: sets a counter."""
        self.emit(CounterStore(counter, value))

    def store_values(self, store: Store, at: Sequence[Value], values: Fragment) -> None:
        """``st.global`` (each lane): stores the warp's part of *values*, converted, to the tile that starts at element *at*.
        Elements outside the tensor are not written. At most `store.vector` bytes at once. Generic proxy."""
        self.emit(TileStore(store.name, self.start(store, at)))

    def load_entry(self, table: str, i: Value, without_data: int) -> Value:
        """``ld.global``: entry *i* of a table, in all lanes.

        Args:
            table: Its name.
            i: Less than it has entries.
            without_data: What the entry is in the check, which has no data.
        """
        (entry,) = self.ask(TableLoad(table, (i,)), lambda: (without_data,))
        return int(entry)

    def ballot(
        self, table: str, first: Value, count: Value, holds: Callable[[Value, Value], Condition], without_data: int
    ) -> Value:
        """``ld.global`` by lane i of entry *first* + i, if that is less than *count*, and ``vote.ballot``. Returns, in all
        lanes, for how many of these 32 ``holds(index, entry)`` is true.

        Args:
            table: Its name.
            first: The first entry.
            count: Of entries in the table that may be read.
            holds: Takes an index and an entry; uses arithmetic and comparison only.
            without_data: What every entry is in the check, which has no data.
        """
        mine = tuple(range(first, min(first + 32, count)))
        entries = self.ask(TableLoad(table, mine), lambda: [without_data] * len(mine))
        votes = sum(bool(holds(i, int(entry))) for i, entry in zip(mine, entries, strict=True))
        self.emit(Ballot(votes))
        return votes
