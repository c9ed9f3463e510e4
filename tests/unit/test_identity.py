"""The identity of a kernel: equal for what compiles to the same code, in any process, and another one for anything else."""

import functools
import importlib.util
import os
import pickle
import subprocess
import sys
import textwrap

import cloudpickle
import pytest

import tmapipe as tp
from tests.oracle.registry import REGISTRY
from tests.raw_rows import Doubled
from tmapipe.epilogue import Epilogue
from tmapipe.program import trace
from tmapipe.program.identity import identity


def of(schedule):
    return identity(trace(schedule, schedule.plan()))


@functools.cache
def of_registered():
    """Of every registered schedule, then of its small form; at last of one with raw code."""
    return [of(make()) for each in REGISTRY for make in (each.make, each.make_small)] + [of(Doubled())]


def test_every_registered_schedule_has_one_of_its_own_which_is_the_same_in_another_process():
    here = of_registered()
    assert None not in here
    assert len(set(here)) == len(here)
    code = "from tests.unit.test_identity import of_registered; print(*of_registered())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        timeout=100,
    )
    assert found.stdout.split() == here, found.stderr


def test_a_schedule_that_was_sent_to_another_process_has_the_same():
    """A schedule that is made anew in this process has the same identity."""
    for each, here in zip(REGISTRY, of_registered()[1::2], strict=False):
        assert of(pickle.loads(cloudpickle.dumps(each.make_small()))) == here, each.name


def test_types_and_the_target_count():
    gemm = tp.schedules.Gemm((64, 64, 16), (1, 1), 2)
    plans = [gemm.plan(), gemm.plan({"a": "fp16", "b": "fp16"}), gemm.plan({"d": "fp32"})]
    assert len({identity(trace(gemm, plan)) for plan in plans}) == 3


def test_constants_and_operations_of_an_epilogue_count():
    def gemm(function):
        return of(tp.schedules.Gemm((64, 64, 16), (1, 1), 2, epilogue=Epilogue(function, stages=1)))

    factor = 3.0
    twice = gemm(lambda acc: acc * 2.0)
    assert twice == gemm(lambda value: value * 2.0)  # another name, on another line
    assert twice == gemm(lambda acc: acc * (factor - 1))
    assert len({twice, gemm(lambda acc: acc * 3.0), gemm(lambda acc: acc * -0.0), gemm(lambda acc: acc * 0.0)}) == 4


SOURCE = """
import math
import tmapipe as tp

FACTOR = 2

def half(rows):
    return rows // FACTOR

def scaled(value):
    return value * FACTOR

class Table:
    factor = 2
    def of(self, value):
        return value * self.factor

TABLE = Table()

def gpu(rows, role, by=1):
    import cutlass.cute as cute
    for row in range(rows.shape[0]):
        rows[row, cute.arch.lane_idx()] = scaled(by) + TABLE.of(math.ceil(1.5))

class Schedule(tp.Schedule):
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    x = tp.TmaLoadStage(tile=(16, 64), ring=ring)
    y = tp.TmaStoreStage(tile=(16, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        for _ in range(half(6)):
            with k.ring.produce() as slot:
                slot.x.load(tile)

    @work.jit
    def double(self, k, tile):
        for _ in range(half(6)):
            with k.ring.consume() as slot:
                k.raw(gpu, reads=(slot.x,))
                values = slot.x.read()
        k.y.store(tile, values)
"""


@pytest.fixture
def made(tmp_path):
    """The identity of `SOURCE`, after replacements, in a file of its own."""

    def make(*changes, source=SOURCE):
        for before, after in changes:
            assert before in source
            source = source.replace(before, after)
        file = tmp_path / f"source_{len(list(tmp_path.iterdir()))}.py"
        file.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location("a_users_module", file)
        module = sys.modules["a_users_module"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            return of(module.Schedule())
        finally:
            del sys.modules["a_users_module"]

    return make


@pytest.mark.parametrize(
    "change",
    [
        ("FACTOR = 2", "# how much\n\n\nFACTOR = 2"),
        ("    return rows // FACTOR", "    # rounded down\n    return rows // FACTOR"),
        ("def scaled(value):\n", "def scaled(value):\n\n    # moved\n"),
        ("range(half(6))", "range(3)"),
        ("rows // FACTOR", "6 // 2"),
        ("def half(rows):\n    return rows // FACTOR", "def third(n): return n // 2\ndef half(n): return third(n)"),
    ],
    ids=["a comment", "a line", "a line in raw code", "a helper's value", "a constant", "a helper of a helper"],
)
def test_comments_lines_and_how_helpers_are_written_do_not_count(made, change):
    assert made(change) == made() is not None


@pytest.mark.parametrize(
    "change",
    [
        ("rows // FACTOR", "rows // 3"),
        ("value * FACTOR", "value + FACTOR"),
        ("FACTOR = 2", "FACTOR = 3"),
        ("    factor = 2", "    factor = 3"),
        ("value * self.factor", "value - self.factor"),
        ("by=1", "by=2"),
        ("math.ceil(1.5)", "math.floor(1.5)"),
        ("TABLE = Table()", "TABLE = Table(); TABLE.factor = 5"),
    ],
    ids=[
        "a helper",
        "a helper of raw code",
        "a global",
        "a class",
        "a method",
        "a default",
        "a function",
        "an attribute",
    ],
)
def test_what_a_kernel_is_made_of_counts(made, change):
    assert made(change) not in (made(), None)


@pytest.mark.parametrize(
    "change",
    [
        ("import math", "import math, os"),
        ("TABLE = Table()", "TABLE = open('/dev/null')"),
        ("value * FACTOR", "value * len(globals())"),
        ("value * FACTOR", "value * no_such_name"),
    ],
    ids=["the environment", "a file", "globals()", "no value"],
)
def test_what_another_process_may_not_have_gives_none(made, change):
    changes = [change]
    if "os" in change[1]:
        changes.append(("value * FACTOR", "value * len(os.environ)"))
    assert made(*changes) is None


def test_what_raw_code_has_captured_counts():
    def capturing(value):
        class Capturing(Doubled):
            @Doubled.work.jit
            def double(self, k, tile):
                with k.ring.consume() as slot:
                    k.raw(lambda rows: (rows, value), updates=(slot.x,))

        return of(Capturing())

    assert capturing(1) == capturing(1) is not None
    found = [
        capturing(each) for each in (1, 1.0, True, "1", (1,), [1], {1: 1}, {1}, None, range(1), 1j, b"1", int, len)
    ]
    assert None not in found
    assert len(set(found)) == len(found)
    assert capturing({"a", "b", "c"}) == capturing({"c", "b", "a"})
    assert capturing(iter(())) is None


def test_raw_code_that_the_dsl_has_rewritten_counts_as_it_was():
    from tests.unit.test_raw_functions import HALF

    before = of(HALF)
    HALF.compile()
    assert of(HALF) == before is not None


def test_what_a_launch_computes_counts():
    class Half(tp.schedules.Copy):
        def grid(self, extent):
            return {dim: (count + 1) // 2 for dim, count in super().grid(extent).items()}

    class AsMany(tp.tiles.PersistentTiles):
        def least_ctas(self):
            return 2

    as_many = tp.schedules.Copy((4, 64))
    as_many.tiles = AsMany()
    found = [of(Half((4, 64))), of(as_many), of(tp.schedules.Copy((4, 64)))]
    assert len(set(found)) == 3 and None not in found


def test_packages_may_be_installed_in_any_folder(tmp_path):
    """`pip install --target` gives them one that is not called site-packages: their functions are no user's even so."""
    (tmp_path / "cutlass").mkdir()
    (tmp_path / "cutlass" / "__init__.py").write_text("")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from tmapipe.program.names import is_users_file
print(*(is_users_file(sys.argv[1] + name) for name in ("/cutlass/math.py", "/mine.py")))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert found.stdout.split() == ["False", "True"], found.stderr
