"""One mistake in a right program: what is changed, and what a reader wants to be told."""

from __future__ import annotations

import importlib.util
import inspect
import pathlib
import re

import attrs

import tmapipe as tp
from examples.ragged import RaggedSums
from tests.matmul_schedules import Written
from tests.oracle.peer_forms import Rotated
from tests.unit.test_held import Multicast, Scaled
from tmapipe.check import Kind

__all__ = ["HERE", "PROGRAMS", "Mistake", "make"]


def _text(*classes: type) -> str:
    """A program of these classes, the last of which is its schedule."""
    parts = ["import tmapipe as tp\n", *map(inspect.getsource, classes), f"Program = {classes[-1].__name__}\n"]
    return "\n\n".join(parts)


#: name -> text
PROGRAMS = {path.stem: path.read_text() for path in (pathlib.Path(__file__).parent / "programs").glob("*.py")} | {
    "groups": _text(RaggedSums),
    "held": _text(Scaled, Multicast),
    "rotated": _text(Rotated).replace("import tmapipe", "from typing import ClassVar\n\nimport tmapipe", 1),
    "written": _text(Written),
}
HERE = "# <- here"


@attrs.frozen
class Mistake:
    """A mistake that people make.

    name: what they did; program: of PROGRAMS, which is right; change: parts of its text, each of which it has once, and what
    stands there instead; in that, `HERE` marks the line that the report must begin with; kind: of the first finding (None:
    the library refuses the body by an error); fix: a pattern that the fix must match.
    """

    name: str
    program: str
    change: dict[str, str]
    kind: Kind | None
    fix: str

    def text(self) -> str:
        """The wrong program."""
        found = PROGRAMS[self.program]
        for old, new in self.change.items():
            assert found.count(old) == 1, f"{self.program} has {found.count(old)} times {old!r}"
            found = found.replace(old, new)
        return found

    def lines(self) -> list[int]:
        """The numbers of the lines of which one is wrong: of several if the program does not say which."""
        return [i for i, line in enumerate(self.text().splitlines(), 1) if line.endswith(HERE)]


def make(text: str, path: pathlib.Path) -> tp.Schedule:
    """The schedule of a program with this text, in a file of its own."""
    path.write_text(text)
    name = re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Program()
