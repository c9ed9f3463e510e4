"""``python docs/manual.py``: the manual page of the instruction set, docs/instructions.md, made from the table."""

from __future__ import annotations

import attrs

from tmapipe.isa import (
    TABLE,
    Declared,
    Effect,
    Kind,
    declared,
    ops,  # noqa: F401 - declares them
)

HEAD = """# The instruction set

Every ring, stage, store and order of tiles is written over these operations. This page is made from the table in
`tmapipe/isa` (`python docs/manual.py > docs/instructions.md`): the recorder, the proof's vector clocks, reports and mutants
read the same declarations. The words are those of the [glossary](glossary.md).

"""


def manual() -> str:
    """The page, in Markdown."""
    kinds = "".join(f"| {kind.name} | {kind.value} |\n" for kind in Kind)
    rows = "".join(_row(declared(op)) for op in TABLE)
    return (
        f"{HEAD}## Operations\n\n| operation | PTX | operands | effects | may block |\n| --- | --- | --- | --- | --- |\n{rows}"
        f"\n## Kinds of operands\n\n| kind | what it is |\n| --- | --- |\n{kinds}"
        f"\n## Effects\n\n| effect | what it does |\n| --- | --- |\n{_effects()}"
    )


def _row(of: Declared) -> str:
    operands = ", ".join(f"{name}: {kind.name}" for name, kind in of.operands.items() if kind is not Kind.WHERE)
    ptx = f"`{of.ptx}`" if of.ptx else ""
    effects = "; ".join(_effect(effect) for effect in of.effects) or "none"
    return f"| `{of.op.__name__}` | {ptx} | {operands} | {effects} | {'yes' if of.blocks else ''} |\n"


def _effect(effect: Effect) -> str:
    """E.g. ``Arrive(bar, lanes, scope CTA)``."""
    terms = []
    for field in attrs.fields(type(effect)):
        value = getattr(effect, field.name)
        if field.name == "until":
            value = (
                f"until {value.group.name} group"
                if value.group
                else f"until {value.nbytes or value.lanes} on {value.bar}"
            )
        elif hasattr(value, "name"):
            value = f"{field.name} {value.name}"
        elif isinstance(value, bool):
            value = field.name if value else ""
        if value:
            terms.append(str(value))
    return f"{type(effect).__name__}({', '.join(terms)})"


def _effects() -> str:
    rows = {}
    for of in TABLE.values():
        for effect in of.effects:
            text = " ".join((type(effect).__doc__ or "").split())
            rows[type(effect).__name__] = f"| `{type(effect).__name__}` | {text} |\n"
    return "".join(rows[name] for name in sorted(rows))


if __name__ == "__main__":
    print(manual(), end="")
