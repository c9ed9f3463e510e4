"""The exhaustive oracle itself, on small programs written by hand: what it must find, and the same program put right."""

import random
from typing import NamedTuple

import attrs
import pytest

from tests.oracle.conformance import EXAMPLES
from tests.oracle.explore import explore, explore_program
from tests.oracle.explore_accesses import KNOWN, QUIET
from tests.oracle.one_run import check_program
from tests.oracle.plain import record
from tests.oracle.program_families import FAMILIES, set_up
from tests.oracle.random_programs import changed
from tests.oracle.small_program import SLOT_BYTES, SmallProgram
from tests.sweeps import ALL
from tmapipe.check import Kind
from tmapipe.check.deadlocks import check_operations
from tmapipe.isa import TABLE, Global, declared, ops
from tmapipe.model import Layout

ONE_TILE = [("arrive tx", 0, SLOT_BYTES), ("load", 0, 0)]
LEAVE = [("cluster arrive",), ("cluster wait",)]
STORED = [("store", 0), ("commit",), ("bulk wait", 0, True)]


def program(counts, *warps, slots=1, **options):
    """Of warps' calls, by CTA; barriers are initialized and visible."""
    return set_up(SmallProgram(tuple(counts), slots, tuple(map(tuple, warps)), **options))


def explored(small, **options):
    return explore_program(small.plan(), small.entry, small.shapes(), **options)


def checked(small):
    return check_program(small.plan(), small.entry, small.shapes())


def four(*calls):
    """A warpgroup, all of whose warps do the same."""
    return [calls] * 4


def multiplied(*after):
    return program([1], *four(("acc",), ("wait", 0, 0), ("mma fence",), ("mma", 0), *after), ONE_TILE, mma=True)


#: name -> (kinds of which at least one must be found, wrong program, right program)
CASES = {
    "wait for what nobody signals": (
        {Kind.DEADLOCK},
        program([1], [("wait", 0, 0)], []),
        program([1], [("wait", 0, 0)], [("arrive", 0)]),
    ),
    "two warps wait for each other": (
        {Kind.DEADLOCK},
        program([1, 1], [("wait", 0, 0), ("arrive", 1)], [("wait", 1, 0), ("arrive", 0)]),
        program([1, 1], [("arrive", 1), ("wait", 0, 0)], [("wait", 1, 0), ("arrive", 0)]),
    ),
    "a deadlock that only some interleavings reach: the barrier goes on before the wait": (
        {Kind.DEADLOCK},
        program([1], [("arrive", 0), ("arrive", 0)], [("wait", 0, 0)]),
        program([1, 1], [("arrive", 0), ("wait", 1, 0), ("arrive", 0)], [("wait", 0, 0), ("arrive", 1)]),
    ),
    "a wait that sees one phase or the third": (
        {Kind.LAPPED_WAIT},
        program([1], [("arrive", 0), ("arrive", 0), ("arrive", 0)], [("wait", 0, 0)]),
        program([1], [("arrive", 0)], [("wait", 0, 0)]),
    ),
    "the second arrival of one warp in place of the other's": (
        {Kind.EARLY_ARRIVAL},
        program([2], [("arrive", 0), ("arrive", 0)], [("arrive", 0), ("arrive", 0)]),
        program([2], [("arrive", 0), ("wait", 0, 0), ("arrive", 0)], [("arrive", 0), ("wait", 0, 0), ("arrive", 0)]),
    ),
    "all lanes arrive where one is counted": (
        {Kind.SURPLUS_ARRIVAL},
        program([1], [("arrive", 0, 32)], [("wait", 0, 0)]),
        program([32], [("arrive", 0, 32)], [("wait", 0, 0)]),
    ),
    "fewer bytes armed than a load delivers": (
        {Kind.TX_MISMATCH},
        program([1], [("arrive tx", 0, SLOT_BYTES - 16), ("load", 0, 0)], [("wait", 0, 0)]),
        program([1], ONE_TILE, [("wait", 0, 0)]),
    ),
    "more bytes armed than a load delivers": (
        {Kind.DEADLOCK, Kind.TX_MISMATCH},
        program([1], [("arrive tx", 0, SLOT_BYTES + 16), ("load", 0, 0)], [("wait", 0, 0)]),
        program([1], ONE_TILE, [("wait", 0, 0)]),
    ),
    "a read that no wait precedes": (
        {Kind.RACE},
        program([1], ONE_TILE, [("read", 0), ("wait", 0, 0)]),
        program([1], ONE_TILE, [("wait", 0, 0), ("read", 0)]),
    ),
    "one lane signals what all have written": (
        {Kind.RACE},
        program([1], [("write", 0), ("arrive", 0)], [("wait", 0, 0), ("read", 0)]),
        program([1], [("write", 0), ("warp sync",), ("arrive", 0)], [("wait", 0, 0), ("read", 0)]),
    ),
    "a store of what threads wrote, without the proxy fence": (
        {Kind.PROXY},
        program([1], [("write", 0), ("warp sync",), ("arrive", 0)], [("wait", 0, 0), *STORED]),
        program([1], [("write", 0), ("fence",), ("warp sync",), ("arrive", 0)], [("wait", 0, 0), *STORED]),
    ),
    "the same, with the fence after the signal": (
        {Kind.PROXY},
        program([1], [("write", 0), ("warp sync",), ("arrive", 0), ("fence",)], [("wait", 0, 0), *STORED]),
        program([1], [("write", 0), ("fence",), ("warp sync",), ("arrive", 0)], [("wait", 0, 0), *STORED]),
    ),
    "a store's source overwritten by its own warp": (
        {Kind.STORE_SOURCE_REUSED},
        program([], [("store", 0), ("commit",), ("write", 0), ("bulk wait", 0, True)], []),
        program([], [*STORED, ("write", 0)], []),
    ),
    "a store's source handed on before it has been read": (
        {Kind.RACE},
        program(
            [1], [("store", 0), ("commit",), ("arrive", 0), ("bulk wait", 0, True)], [("wait", 0, 0), ("write", 0)]
        ),
        program([1], [*STORED, ("arrive", 0)], [("wait", 0, 0), ("write", 0)]),
    ),
    "a load in flight when its CTA leaves": (
        {Kind.IN_FLIGHT_AT_EXIT},
        program([1], ONE_TILE, []),
        program([1], [*ONE_TILE, ("wait", 0, 0)], []),
    ),
    "a store in no group": (
        {Kind.IN_FLIGHT_AT_EXIT},
        program([], [("store", 0), ("bulk wait", 0, True)], []),
        program([], STORED, []),
    ),
    "a barrier used before it is initialized": (
        {Kind.INIT_NOT_VISIBLE},
        SmallProgram((1,), 1, ((("init", 0), ("fence init",), ("arrive", 0)), (("wait", 0, 0),))),
        SmallProgram((1,), 1, ((("init", 0), ("fence init",), ("sync",), ("arrive", 0)), (("sync",), ("wait", 0, 0)))),
    ),
    "loads onto a barrier whose initialization is not fenced": (
        {Kind.INIT_NOT_VISIBLE},
        SmallProgram((1,), 1, ((("init", 0), ("sync",), *ONE_TILE), (("sync",), ("wait", 0, 0)))),
        SmallProgram((1,), 1, ((("init", 0), ("fence init",), ("sync",), *ONE_TILE), (("sync",), ("wait", 0, 0)))),
    ),
    "an arrival at a peer with the scope of a CTA": (
        {Kind.SCOPE},
        program([1], [("arrive at", 0, 2, "cta"), *LEAVE], [("wait", 0, 0), *LEAVE], ctas=2),
        program([1], [("arrive at", 0, 2), *LEAVE], [("wait", 0, 0), *LEAVE], ctas=2),
    ),
    "a CTA that leaves before its peer has signalled it": (
        {Kind.EXITED_PEER},
        program([1], [("arrive at", 0, 2)], [], ctas=2),
        program([1], [("arrive at", 0, 2)], [("wait", 0, 0)], ctas=2),
    ),
    "a mask with a CTA that is not there": (
        {Kind.OUT_OF_RANGE},
        program([1], [("arrive at", 0, 6), *LEAVE], [("wait", 0, 0), *LEAVE], ctas=2),
        program([1], [("arrive at", 0, 2), *LEAVE], [("wait", 0, 0), *LEAVE], ctas=2),
    ),
    "participants that name different numbers of threads": (
        {Kind.NAMED_BARRIER},
        program([], [("bar sync", 1, 64)], [("bar sync", 1, 96)]),
        program([], [("bar sync", 1, 64)], [("bar sync", 1, 64)]),
    ),
    "accumulators read while a wgmma is in flight": (
        {Kind.RESULT_TOO_EARLY},
        multiplied(("mma commit",), ("acc read",), ("mma wait", 0)),
        multiplied(("mma commit",), ("mma wait", 0), ("acc read",)),
    ),
    "a wgmma in flight at the end": (
        {Kind.IN_FLIGHT_AT_EXIT},
        multiplied(("mma commit",)),
        multiplied(("mma commit",), ("mma wait", 0)),
    ),
    "a slot released while a wgmma reads it": (
        {Kind.RACE},
        program(
            [1, 4],
            *four(
                ("acc",), ("wait", 0, 0), ("mma fence",), ("mma", 0), ("mma commit",), ("arrive", 1), ("mma wait", 0)
            ),
            [*ONE_TILE, ("wait", 1, 0), *ONE_TILE, ("wait", 0, 1)],
            mma=True,
        ),
        program(
            [1, 4],
            *four(
                ("acc",), ("wait", 0, 0), ("mma fence",), ("mma", 0), ("mma commit",), ("mma wait", 0), ("arrive", 1)
            ),
            [*ONE_TILE, ("wait", 1, 0), *ONE_TILE, ("wait", 0, 1)],
            mma=True,
        ),
    ),
    "slots that share bytes": (
        {Kind.RACE},
        program([1], [("write", 0)], [("write", 1)], slots=2, overlap=SLOT_BYTES // 2),
        program([1], [("write", 0)], [("write", 1)], slots=2),
    ),
    "a relaxed arrival at a peer releases no accesses": (
        {Kind.RACE},
        program(
            [1],
            [("write", 0), ("warp sync",), ("arrive at", 0, 1, "relaxed"), *LEAVE],
            [("wait", 0, 0), ("read", 0), *LEAVE],
            [("arrive at", 0, 2), *LEAVE],
            LEAVE,
            ctas=2,
        ),
        program(
            [1],
            [("write", 0), ("warp sync",), ("arrive at", 0, 1), *LEAVE],
            [("wait", 0, 0), ("read", 0), *LEAVE],
            [("arrive at", 0, 2), *LEAVE],
            LEAVE,
            ctas=2,
        ),
    ),
}


def met(scope):
    """One warp writes what the other reads; in between, all meet at the cluster's barrier."""
    meet = [("cluster arrive", scope), ("cluster wait",)]
    return program([], [("write", 0), *meet], [*meet, ("read", 0)], meet, meet, ctas=2)


CASES["a relaxed arrival at the cluster's barrier releases no accesses"] = ({Kind.RACE}, met("relaxed"), met("cluster"))


def initialized(*calls):
    """A barrier of one CTA, which a warp initializes with *calls* and the other one waits for, once all have met."""
    meet = [("cluster arrive", "relaxed"), ("cluster wait",)]
    warps = [[("init", 0), *calls, *meet, ("arrive", 0)], [*meet, ("wait", 0, 0)], meet, meet]
    return SmallProgram((1,), 1, tuple(map(tuple, warps)), ctas=2)


CASES["nor an initialization that is not fenced"] = (
    {Kind.INIT_NOT_VISIBLE},
    initialized(),
    initialized(("fence init",)),
)


def relayed(scope):
    """A warp writes, meets the next one at a named barrier; that one signals a third, which reads."""
    work = [("write", 0), ("bar sync", 1, 64), *LEAVE]
    meet = [("bar sync", 1, 64), ("arrive at", 0, 1, scope), *LEAVE]
    look = [("wait", 0, 0), ("read", 0), *LEAVE]
    return program([1], work, meet, look, LEAVE, LEAVE, LEAVE, ctas=2)


CASES["a named barrier tells its participants, a relaxed arrival nobody"] = (
    {Kind.RACE},
    relayed("relaxed"),
    relayed("cluster"),
)


COPIED = (("init", 0), ("copy", 0, 0, 0, 1))
CASES["copies onto a barrier tell nobody of its initialization"] = (
    {Kind.INIT_NOT_VISIBLE},
    SmallProgram((32,), 1, (COPIED, (("wait", 0, 0),))),
    SmallProgram((32,), 1, ((*COPIED, ("sync",)), (("sync",), ("wait", 0, 0)))),
)


def tells(*arrives):
    """A warp initializes a barrier after all have met, and then arrives at another one."""
    first = (("init", 0), ("fence init",), ("sync",), ("init", 1), *arrives)
    return SmallProgram((1, 1), 1, (first, (("sync",), ("wait", 0, 0), ("arrive", 1))))


CASES["the elected lane tells of an initialization when it arms, another lane does not"] = (
    {Kind.INIT_NOT_VISIBLE},
    tells(("arrive", 0)),
    tells(*ONE_TILE),
)


# ---- each operation in a case -----------------------------------------------------------------------------------------


def op(what, *operands):
    return ("op", what.__name__, *operands)


def landed(issue, nbytes=SLOT_BYTES):
    """What lands in slot 0 and counts its bytes on the barrier is read before, and after, the wait."""
    start, look = [("arrive tx", 0, nbytes), issue], [("wait", 0, 0), ("read", 0)]
    return {Kind.RACE}, program([1], [*start, *look[::-1]], slots=2), program([1], [*start, *look], slots=2)


def stored(issue):
    """The source of a store is written before, and after, the wait for its group."""
    over = [("bulk wait", 0, True), ("write", 0)]
    wrong, right = (program([], [issue, ("commit",), *after]) for after in (over[::-1], over))
    return {Kind.STORE_SOURCE_REUSED, Kind.RACE}, wrong, right


def seen_from_afar(*before):
    """A slot is written after a warp of the other CTA has read it."""
    look = [op(ops.PeerRead, 0, 1), ("warp sync",), ("arrive at", 0, 1), *LEAVE]
    write = [*before, ("write", 0), *[("wait", 0, 0)][len(before) :], *LEAVE]
    return program([1], write, LEAVE, look, LEAVE, ctas=2)


THROUGH = op(ops.TmaLoadThrough, "s0", 0, 1, SLOT_BYTES, None, 1, 0, 1, (0, 0))


def described(*hand_over):
    """A descriptor in slot 1 is written by one warp, and loaded through by another."""
    make = [op(ops.DescriptorWrite, "s0", 1, (0, 8)), *hand_over, ("warp sync",), ("arrive", 0)]
    use = [("wait", 0, 0), op(ops.DescriptorAcquire, 1), ("arrive tx", 1, SLOT_BYTES), THROUGH, ("wait", 1, 0)]
    return program([1, 1], make, use, slots=2)


def from_registers(*after):
    """Slot 0 is loaded, and multiplied with what is in registers."""
    multiply = ("acc",), ("wait", 0, 0), ("mma fence",), op(ops.WgmmaFromRegisters, "mma0", 0), ("mma commit",)
    return program([1], *four(*multiply, *after), ONE_TILE, mma=True)


class LoadedAgain(SmallProgram):
    """What is stored from slot 0 goes where its load reads."""

    def plan(self):
        plan = super().plan()
        (store,) = (attrs.evolve(each, argument="x0") for each in plan.stores)
        return attrs.evolve(plan, stores=(store,), arguments=tuple(load.argument for load in plan.loads))


def loaded_again(*fence):
    warps = [("store", 0), ("commit",), ("bulk wait", 0, False), *fence, ("arrive", 0)], [("wait", 0, 0), *ONE_AGAIN]
    return set_up(LoadedAgain((1, 1), 1, tuple(map(tuple, warps))))


class Dependent(SmallProgram):
    """It may start before the kernels before it have ended. No kernel writes the tensor of slot 0."""

    def plan(self):
        plan = super().plan()
        roles = tuple(attrs.evolve(role, early=("x0",)) for role in plan.roles)
        return attrs.evolve(plan, overlaps=True, roles=roles)


def dependent(*warps):
    """Of two slots and barriers: warps that all wait for the kernels before, at the latest before they return."""
    return set_up(Dependent((1, 1), 2, tuple((*warp, op(ops.GridWait)) for warp in warps)))


def copied(slot):
    return [("arrive tx", slot, SLOT_BYTES), ("load", slot, slot), ("wait", slot, 0)]


WAITS = op(ops.GridWait)
STORED_EARLY, STORED_LATE = (dependent([*copied(0), *before, *STORED]) for before in ((), (WAITS,)))
ONE_AGAIN = [("arrive tx", 1, SLOT_BYTES), ("load", 0, 1), ("wait", 1, 0)]
HAND_OVER = op(ops.DescriptorRelease, 1)
MORE, FEWER, AS_BEFORE = (op(ops.SetMaxNreg, n, n > 56) for n in (72, 56, 64))
CASES |= {
    "a bulk load": landed(op(ops.BulkLoad, "s0", 0, 0, SLOT_BYTES, (0, 0))),
    "rows gathered": landed(op(ops.TmaGather, "s0", 0, 0, 128, 0, 16, (5, 9, 2, 0), (0, 0)), 128),
    "words stored by st.async": landed(op(ops.StAsync, 0, 0, SLOT_BYTES, 1, (7,))),
    "a copy to a peer": landed(op(ops.PeerCopy, 0, 0, SLOT_BYTES, 1, 1)),
    "a reduction of registers into a peer": landed(op(ops.RedAsync, "s0", 0, 0, SLOT_BYTES, 1, (7,))),
    "a reduction into a peer": landed(op(ops.PeerReduce, "s0", 0, 0, SLOT_BYTES, 1, 1, 0, 1)),
    "rows scattered": stored(op(ops.TmaScatter, "y0", 0, 0, (5, 9, 2, 0), (0, 0))),
    "a bulk store": stored(op(ops.BulkStore, "y0", 0, (0, 0))),
    "a read of a peer's slot": ({Kind.RACE, Kind.PROXY}, seen_from_afar(), seen_from_afar(("wait", 0, 0))),
    "a descriptor": ({Kind.PROXY}, described(), described(HAND_OVER)),
    "a multiplication of registers": (set(Kind), from_registers(), from_registers(("mma wait", 0))),
    "a result loaded again": ({Kind.PROXY, Kind.RACE}, loaded_again(), loaded_again(op(ops.FenceProxyAsyncGlobal))),
    "a load before the kernels before have ended": (
        {Kind.DEPENDENCY},
        dependent([*copied(0), *copied(1)]),
        dependent([*copied(0), WAITS, *copied(1)]),
    ),
    "a load by a warp that has not waited itself": (
        {Kind.DEPENDENCY},
        dependent([("wait", 0, 0), *copied(1)], [WAITS, ("arrive", 0)]),
        dependent([("wait", 0, 0), WAITS, *copied(1)], [WAITS, ("arrive", 0)]),
    ),
    "a store before the kernels before have ended": ({Kind.DEPENDENCY}, STORED_EARLY, STORED_LATE),
    "a warp that never waits for the kernels before": (
        {Kind.DEPENDENCY},
        set_up(Dependent((1,), 1, ((("arrive", 0),), (WAITS,)))),
        dependent([("arrive", 0)], []),
    ),
    "registers": (
        {Kind.REGISTERS},
        *(program([], *four(*sets), mma=True) for sets in ([MORE], [FEWER, AS_BEFORE])),
    ),
    "bytes armed without an arrival": (
        {Kind.DEADLOCK, Kind.TX_MISMATCH},
        program([1], [("expect tx", 0, 2 * SLOT_BYTES), ("load", 0, 0), ("arrive", 0), ("wait", 0, 0)]),
        program([1], [("expect tx", 0, SLOT_BYTES), ("load", 0, 0), ("arrive", 0), ("wait", 0, 0)]),
    ),
}


def operations(small):
    return {type(op) for program in record(small.plan(), small.entry, small.shapes()) for op in program}


def without_example(table):
    """Operations of a table that the oracle does not know, or has no program with: in words."""
    shown = set(QUIET).union(*(operations(right) for _, _, right in CASES.values()))
    return [
        f"{op.__name__}: {'add right and wrong programs to CASES' if op in KNOWN else 'explore_accesses.KNOWN lacks it'}"
        for op in table
        if op not in KNOWN or op not in shown
    ]


def test_the_oracle_knows_every_operation_by_an_example():
    assert without_example(TABLE) == []


def test_an_operation_that_the_oracle_does_not_know_is_named():
    class Teleport(NamedTuple):
        slot: int

    assert without_example([*TABLE, Teleport]) == ["Teleport: explore_accesses.KNOWN lacks it"]
    _, _, right = CASES["a bulk load"]
    programs = record(right.plan(), right.entry, right.shapes())
    with pytest.raises(TypeError, match="does not know Teleport"):
        explore(right.plan(), [[Teleport(0), *programs[0]]])


def test_an_operation_without_an_example_is_named(monkeypatch):
    monkeypatch.delitem(CASES, "rows gathered")
    assert without_example(TABLE) == ["TmaGather: add right and wrong programs to CASES"]


# ---- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_finds_what_is_wrong(name):
    kinds, wrong, _ = CASES[name]
    found = explored(wrong)
    assert found.ok is False
    assert found.kinds & kinds, f"{found.kinds}: {found.example}"
    assert found.example


@pytest.mark.parametrize("name", CASES)
def test_and_nothing_in_the_right_program(name):
    _, _, right = CASES[name]
    found = explored(right)
    assert found.ok is True and found.complete, f"{found.kinds}: {found.example}"
    assert not found.example


@pytest.mark.parametrize("name", CASES)
def test_the_linear_check_says_the_same(name):
    _, wrong, right = CASES[name]
    assert not checked(wrong).ok
    assert checked(right).ok, str(checked(right))


LOCAL = tuple(op._replace(at=()) if hasattr(op, "at") else op for op in EXAMPLES if isinstance(op, QUIET))


@pytest.mark.parametrize("name", CASES)
def test_what_the_oracle_takes_for_quiet_synchronizes_nothing(name):
    """Put between any two operations, they leave the verdicts of both, and the oracle's steps, as they are."""
    for small in CASES[name][1:]:
        layout = Layout(small.plan())
        programs = record(small.plan(), small.entry, small.shapes(), layout=layout)
        quiet = [op for op in LOCAL if not (layout.plan.overlaps and declared(type(op)).effect(Global))]
        more = [[one for i, op in enumerate(p) for one in (quiet[i % len(quiet)], op)] for p in programs]
        plain, found = explore(layout, programs), explore(layout, more)
        assert (found.kinds, found.states, found.steps) == (plain.kinds, plain.states, plain.steps)
        kinds = [{f.kind for f in check_operations(layout, p, small.shapes())[0]} for p in (programs, more)]
        assert kinds[0] == kinds[1]


def test_the_linear_check_names_the_relaxed_signal():
    assert "relaxed" in str(checked(relayed("relaxed")))


def test_the_example_is_a_way_to_the_failure():
    """Both waits of the deadlock are still to come; what has been done is told in order, with who did it."""
    _, wrong, _ = CASES["a deadlock that only some interleavings reach: the barrier goes on before the wait"]
    steps = [(agent.split(" ")[0], op.split("(")[0]) for agent, op in explored(wrong, first_only=True).example]
    assert [op for agent, op in steps if agent == "w0"][-3:] == ["MbarArrive", "MbarArrive", "Exit"]
    assert "MbarWait" not in [op for _, op in steps]


def test_giving_up_is_not_a_pass():
    _, _, right = CASES["the second arrival of one warp in place of the other's"]
    found = explored(right, limit=3)
    assert found.ok is None and not found.complete and not found.kinds


def test_the_first_failure_is_enough_if_asked():
    _, wrong, _ = CASES["fewer bytes armed than a load delivers"]
    found = explored(wrong, first_only=True)
    assert found.ok is False and len(found.kinds) == 1


@pytest.mark.parametrize("block", range(3 if ALL else 1))
def test_leaving_out_interleavings_changes_no_verdict(block):
    """Against all interleavings without exception, which only the smallest programs allow."""
    decided = 0
    for seed in range(20 * block, 20 * block + 20):
        rng = random.Random(seed)
        small = rng.choice(FAMILIES)(rng)
        for _ in range(rng.randint(0, 2)):
            small = changed(small, rng)
        small = attrs.evolve(small, calls=tuple(calls[:9] for calls in small.calls))
        every = explored(small, reduce=False, limit=4000)
        if every.complete:
            decided += 1
            few = explored(small)
            assert few.ok == every.ok, str(small)
            assert few.steps <= every.steps
    assert decided >= 5
