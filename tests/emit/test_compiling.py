"""Candidates compiled in processes of their own, and loaded here."""

import gc
import pathlib
import sys
import threading
from collections import OrderedDict

import pytest
import torch

import tmapipe as tp
from tests.unit.limits import ended
from tmapipe import prove
from tmapipe.gpu import kernels
from tmapipe.tuning import Candidate, Problem, compiling
from tmapipe.tuning.compiling import compile_each, jobs_of, load
from tmapipe.tuning.problem import PLAIN


def compile_all(few, folder, processes, done=lambda candidate, error: None, epilogue=PLAIN):
    """Compiles candidates for one problem; returns "", or what went wrong, for each."""
    jobs = jobs_of(Problem(256, 256, 256), few, epilogue)
    errors = compile_each(jobs, folder, processes, lambda index, error: done(few[index], error))
    return {few[index]: error for index, error in sorted(errors.items())}


def test_compiled_elsewhere_and_loaded(tmp_path):
    """By two processes, with a function that pickle does not take, an operand, and an output that is reduced."""
    epilogue = tp.epilogue.Epilogue(
        lambda acc, bias: {"d": tp.math.relu(acc + bias), "sums": acc},
        operands={"bias": tp.epilogue.PerColumn("fp32")},
        outputs={"sums": tp.epilogue.RowSum()},
    )
    bad, good = Candidate("Gemm", (64, 1000), (1, 1)), Candidate("Gemm", (64, 64), (1, 1))
    few, said = [bad, good, Candidate("SplitK", (128, 1000), (1, 1), (("parts", 2),))], []
    errors = compile_all(few, tmp_path, 2, lambda c, error: said.append((c, error)), epilogue)
    assert errors[good] == "" and "InputError" in errors[bad] and "1000" in errors[bad]
    assert "InputError" in errors[few[2]]
    assert dict(said) == errors
    assert callable(load(tmp_path, 1).function)


def test_what_was_compiled_to_be_measured_is_in_the_store(tmp_path, monkeypatch):
    """This process finds the kernel that another process has measured, and does not compile it again. Without an epilogue, and
    beside a refusal."""
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path / "cache"))
    good, bad = Candidate("Gemm", (64, 64), (1, 1)), Candidate("Gemm", (64, 1000), (1, 1))
    errors = compile_all([good, bad, good], tmp_path, 1)
    assert errors[good] == "" and "1000" in errors[bad]
    made = (tmp_path / "0.o").read_bytes()
    assert (tmp_path / "2.o").read_bytes() == made
    problem = Problem(256, 256, 256)
    schedule, dtypes, ranks = good.build(problem), good.dtypes(problem), good.ranks(problem)
    monkeypatch.setattr(kernels, "kept", OrderedDict())
    monkeypatch.setattr(prove, "known", {})
    for where, name in ((kernels, "build"), (prove, "require_safe")):
        monkeypatch.setattr(where, name, lambda *_, **__: pytest.fail("it is done again"))
    found = kernels.kernel_for(
        schedule, schedule.plan(dtypes), ranks, lambda *found: prove.require_safe_once(schedule, dtypes, *found)
    )
    assert found.code.object == made
    assert len([*(tmp_path / "cache" / "kernels").iterdir()]) == 1


FEW = [Candidate("Gemm", (64, 64), (1, 1)), Candidate("Gemm", (64, 128), (1, 1)), Candidate("Gemm", (128, 128), (1, 1))]


def compiled(folder, epilogue):
    fused = tp.epilogue.Epilogue(epilogue)
    return ended(lambda: compile_all(FEW, folder, 2, epilogue=fused))


def test_an_epilogue_that_cannot_go_along(tmp_path):
    lock = threading.Lock()

    def locked(acc):
        with lock:
            return acc

    with pytest.raises(tp.InputError, match="cannot be pickled") as info:
        compiled(tmp_path, locked)
    assert info.value.argument == "epilogue" and info.value.value is locked


def test_a_process_that_cannot_start(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    errors = compiled(tmp_path, tp.math.relu)
    assert set(errors) == set(FEW) and all("FileNotFoundError" in error for error in errors.values())


def test_a_process_that_ends_early(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    errors = compiled(tmp_path, tp.math.relu)
    assert set(errors) == set(FEW) and all("ended: without a word" in error for error in errors.values())


def test_bodies_may_print_much(tmp_path):
    """More than a pipe holds."""

    def loud(acc):
        print("x" * 1_000_000)
        sys.stderr.write("y" * 1_000_000)
        raise RuntimeError("heard")

    fused = tp.epilogue.Epilogue(loud)
    errors = ended(lambda: compile_all(FEW[:2], tmp_path, 1, epilogue=fused))
    assert list(errors) == FEW[:2] and all("heard" in error for error in errors.values())


def contexts():
    """How many compilations are remembered with their IR."""
    gc.collect()
    return sum(type(each).__name__ == "Context" and "cutlass" in type(each).__module__ for each in gc.get_objects())


def test_a_compilation_leaves_no_ir():
    """Some 2 MiB each: what CuTe DSL caches is emptied."""
    assert callable(tp.schedules.Copy().compile().function)  # which is compiled when it is asked for
    before = contexts()
    for _ in range(3):
        tp.schedules.Copy().compile()
    assert contexts() <= before


TYPED_IN = """
import numpy as np
import tmapipe as tp

class Rows(tp.Schedule):
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)

x = np.ones((8, 64), np.float16)
assert (Rows()(x) == x).all() and Rows().check().ok
"""


def test_a_body_without_source():
    """As it is read from standard input: it runs on the model, and compiling it says what is missing."""
    typed_in = {"__name__": "__main__"}
    exec(compile(TYPED_IN, "<stdin>", "exec"), typed_in)
    with pytest.raises(tp.InputError, match=r"body Rows\.fill = '<stdin>': has source in a file"):
        typed_in["Rows"]().compile()


class Slip(tp.Schedule):
    """In a loop and a branch that both are run-time control flow."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.TmaLoadStage("s m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage("m n", source=x)

    @load.jit
    def fill(self, k, tile):
        for s in range(k.steps("x", "s")):
            if s >= tile.m:
                with k.ring.produce() as slot:
                    slot.x.load(tile, q=s)  # <- here

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


def test_an_error_while_compiling_names_the_line_of_the_body():
    lines = pathlib.Path(__file__).read_text().splitlines()
    here = next(number for number, line in enumerate(lines, 1) if line.endswith("# <- here"))
    for call in (Slip().check, Slip().compile):
        with pytest.raises(tp.InputError, match=rf"has dimensions s, m, n.*test_compiling\.py:{here}\.$"):
            call()


def test_kernels_that_another_process_compiles_depend_on_their_values():
    """A value may change between the compilation and a call, which then makes another kernel."""
    factors = [2.0]

    def job():
        gemm = tp.schedules.Gemm((64, 64, 64), (1, 1), epilogue=lambda acc: acc * factors[0])
        return gemm, {}, dict.fromkeys("abd", 2)

    made, errors = compiling.compiled([job], 1)
    assert not errors and vars(made[0])["_compiled"]
    some = torch.zeros(64, 64, dtype=torch.bfloat16)
    made[0].bind(some, some)
    assert vars(made[0])["_compiled"]
    factors[0] = 3.0
    made[0].bind(some, some)
    assert "_compiled" not in vars(made[0])
