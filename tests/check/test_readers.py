"""Effects name every operand that is read: by the check and the machine's state, operation by operation, and by name in all
code that reads operations. What is done to data (`performs`, `moves`) and what GPU code is emitted needs more of them.
"""

from __future__ import annotations

import ast
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

import tmapipe
from tests.check.test_table import by_hand, found_by_hand
from tests.oracle.conformance import EXAMPLES, observed
from tmapipe import isa as effects
from tmapipe.isa import TABLE, Declared, declared, ops

LIBRARY = pathlib.Path(tmapipe.__file__).parent
READERS = ("check", "prove", "timeline", "model")
OF_DATA = ("model/memory.py", "model/elements.py", "model/__init__.py")


def named(of: Declared) -> set[str]:
    """The operands that the effects of an operation name."""
    found = {"where"}
    for effect in of.effects:
        for part in (effect, effect.until) if isinstance(effect, effects.Start) else (effect,):
            found |= {getattr(part, field.name) for field in attrs.fields(type(part)) if field.metadata.get("kind")}
    return {name for name in found if isinstance(name, str)}


def unnamed(source: str) -> list[str]:
    """Operands that code reads as ``op.operand``, or of another object's ``op``, and that no effect names."""
    known = set().union(*map(named, TABLE.values()))
    operands = {name for of in TABLE.values() for name in of.operands}
    found = []
    todo: list[Any] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", ())]
        if any(each.startswith(("performs(", "moves(")) for each in decorators):
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Attribute) and node.attr in operands - known:
            of = node.value
            if (of.id if isinstance(of, ast.Name) else getattr(of, "attr", "")) == "op":
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def readers() -> Iterator[pathlib.Path]:
    for package in READERS:
        yield from (path for path in (LIBRARY / package).glob("*.py") if f"{package}/{path.name}" not in OF_DATA)


@pytest.mark.parametrize("path", list(readers()), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_code_reads_an_operand_that_no_effect_names(path):
    assert unnamed(path.read_text()) == []


def test_a_reader_of_another_operand_is_noticed():
    assert unnamed("def seen(step):\n    return step.op.rows, step.op.slot") == ["line 2: step.op.rows"]
    assert unnamed("@moves(TmaStore)\ndef _put(memory, op):\n    return op.rows") == []


def spied(patch: pytest.MonkeyPatch) -> set[tuple[type, str, str]]:
    """What is read from here on: (operation, operand, file of the check or of the model)."""
    seen: set[tuple[type, str, str]] = set()

    def spy(kind: type, name: str, index: int) -> property:
        def read(op: Any) -> Any:
            file = pathlib.Path(sys._getframe(1).f_code.co_filename)
            if file.parent.name in ("check", "model"):
                seen.add((kind, name, file.name))
            return tuple.__getitem__(op, index)

        return property(read)

    for kind in TABLE:
        for index, name in enumerate(kind._fields):  # type: ignore[attr-defined]
            patch.setattr(kind, name, spy(kind, name, index))
    return seen


def test_operations_are_read_as_their_effects_say(monkeypatch):
    seen = spied(monkeypatch)
    for op in EXAMPLES:
        observed(op)
    for name in by_hand():
        found_by_hand(name)
    wrong = {f"{kind.__name__}.{name}, by {file}" for kind, name, file in seen if name not in named(declared(kind))}
    assert wrong == set()
    assert {(ops.SlotRead, "split", "slots.py"), (ops.TmaStore, "lanes", "copies.py")} <= seen
