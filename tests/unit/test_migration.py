"""docs/migration.md, run: what is said in another way raises an error that names it, and the new spelling works."""

import importlib
import inspect
import pathlib
import re

import pytest

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe.errors import moved
from tmapipe.schedules.mainloop import OLD_KEYWORDS
from tmapipe.tuning import Problem, choose, tune

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "migration.md").read_text()


def rows(section):
    """(before, now) of the tables below a heading: the code of each cell."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    found = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert found
    return [tuple(re.findall(r"`([^`]+)`", cell) for cell in row) for row in found]


def bias(acc, bias):
    return acc + bias


def sums(acc):
    return {"d": acc, "sums": acc}


def names(text):
    """What the page's code refers to, of which `f` takes what the text declares."""
    operands = "operands" in text or "=F" in text
    ring = tp.BarrierRing(2, producer=tp.Role(warps=1), consumer=tp.Role(warpgroups=2, teams=2))
    a = tp.TmaLoadStage("m k", tile=(64, 64), ring=ring)
    b = tp.TmaLoadStage("n k", tile=(64, 64), ring=ring)
    epilogue = tp.epilogue.Epilogue(bias, operands={"bias": tp.epilogue.PerColumn()})
    return {
        "tp": tp, "S": tp.schedules, "E": tp.epilogue, "f": bias if operands else tp.math.relu, "g": sums, "F": epilogue,
        "P": Problem(256, 256, 256), "choose": choose, "tune": tune, "mma": tp.Wgmma(a, b), "ring": ring,
        "math": ring.phases[1][0],
    }  # fmt: skip


def build(text):
    return eval(text, names(text))


@pytest.mark.parametrize("before, now", [pair for part in ("Schedules", "Stages and orders") for pair in rows(part)])
def test_schedules_and_stages(before, now):
    (before,), (now,) = before, now
    error = refused(lambda: build(before), argument="", rule="another spelling now")
    made = build(now)
    if isinstance(made, tp.Schedule):
        made.plan()
    words = re.findall(
        r"(?:Operand|Cooperative|Epilogue|Output|RowSum|Turnstile|SplitKTiles|DynamicTiles|GpcTiles)\b", now
    )
    assert not words or words[0] in error.fix or "derived" in error.fix, error.fix


@pytest.mark.parametrize("before, now", rows("Choosing"))
def test_choosing(before, now):
    (before,), (now,) = before, now
    assert "Epilogue(" in refused(lambda: build(before), argument="", rule="another spelling now").fix
    if now.startswith("choose"):
        build(now).plan()
    else:  # which needs a GPU
        assert inspect.signature(tune).bind(None, epilogue=None)


@pytest.mark.parametrize("before, now", rows("Modules"))
def test_modules(before, now):
    for name in now:
        importlib.import_module(name)


def test_every_word_is_on_the_page():
    told = " ".join(" ".join(before) for part in ("Schedules", "Choosing") for before, _ in rows(part))
    assert all(f"{word}=" in told for word in OLD_KEYWORDS)


def test_a_fix_has_the_value_that_was_given():
    fix = refused(
        lambda: tp.schedules.Gemm(majors=("k", "n")), argument="majors", value=("k", "n"), rule="another spelling now"
    ).fix
    assert fix == "b=tp.Operand(major='n')"
    fix = refused(
        lambda: tp.schedules.Gemm(majors="kn"), argument="majors", value="kn", rule="another spelling now"
    ).fix
    assert fix == "a=tp.Operand(major='...'), b=tp.Operand(major='...')"
    fix = refused(lambda: tp.schedules.Gemm(majors=("k", "k")), argument="majors", rule="another spelling now").fix
    assert fix == "leave it out"


def test_signatures_are_those_of_now():
    """Words of before are no parameters, and no schedule has more than eight."""

    @moved({"old": lambda value: "new"})
    def function(new=1):
        return new

    assert list(inspect.signature(function).parameters) == ["new"] and function(new=2) == 2
    for name in tp.schedules.__all__:
        thing = getattr(tp.schedules, name)
        if inspect.isclass(thing) and issubclass(thing, tp.Schedule):
            assert len(inspect.signature(thing).parameters) <= 8, name


@pytest.mark.parametrize("before, now", rows("Programs"))
def test_programs(before, now):
    root = pathlib.Path(__file__).parents[2]
    assert not (root / before[0]).exists() and "__main__" in (root / now[0]).read_text()
