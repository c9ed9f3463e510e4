"""A mypy plugin: bodies of roles have types, and names that a schedule does not declare are errors.

    [tool.mypy]
    plugins = ["mypy_tmapipe"]

A method under ``@role.jit`` without annotations is checked as ``(self, k: KernelContext, tile: Tile) -> None``. In it,
`k.ring` and `slot.x` must be names that the class or one of its bases assigns, and have the type of what stands for them. Of a
class that sets attributes by `setattr`, any name is taken.

It is a package of its own since mypy imports plugins: tmapipe, and NumPy with it, is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy.errorcodes import ATTR_DEFINED
from mypy.nodes import Decorator, Expression, FuncDef, MemberExpr, TypeInfo, Var
from mypy.plugin import AttributeContext, ClassDefContext, Plugin
from mypy.types import AnyType, CallableType, Instance, NoneType, Type, TypeOfAny, get_proper_type

SCHEDULE = "tmapipe.schedule.Schedule"
CONTEXT, TILE = "tmapipe.kernel.KernelContext", "tmapipe.protocol.tile.Tile"
SLOT, CARRIED = "tmapipe.protocol.ring.Slot", "tmapipe.isa.fragment.Carried"
_PROTOCOL = "tmapipe.protocol"
_IN_SLOT = f"{_PROTOCOL}.slots.PartInSlot"
#: What stands for a declared part, by its class: in a role's context, and in a slot. Others can have any attribute.
STANDS_FOR: dict[str, dict[str, str]] = {
    CONTEXT: {
        "tmapipe.barrier.BarrierRing": f"{_PROTOCOL}.ring.RingEnd",
        "tmapipe.parts.Wgmma": f"{_PROTOCOL}.matmuls.BoundMatmul",
        "tmapipe.store_pipeline.TmaStoreStage": f"{_PROTOCOL}.stores.BoundStore",
    },
    SLOT: {
        "tmapipe.stage.TmaLoadStage": _IN_SLOT,
        "tmapipe.store_pipeline.TmaStoreStage": f"{_PROTOCOL}.stores.StoreOfSlot",
    },
}
_NAMED = "tmapipe"  # of a class, whether it sets parts by names that only a run has
WHAT = {CONTEXT: "a role's context", SLOT: "a slot"}


class TmapipePlugin(Plugin):
    """What mypy asks."""

    def get_base_class_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        """Of a schedule's class: gives its bodies types."""
        found = self.lookup_fully_qualified(fullname)
        node = found.node if found is not None else None
        return _type_bodies if isinstance(node, TypeInfo) and node.has_base(SCHEDULE) else None

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """Of an attribute of `k` or of a slot: that it is declared, and its type."""
        owner, _, name = fullname.rpartition(".")
        if owner not in (*STANDS_FOR, CARRIED):
            return None
        return lambda context: self._attribute(context, owner, name)

    def _attribute(self, context: AttributeContext, owner: str, name: str) -> Type:
        stack: list[Any] = getattr(getattr(context.api, "scope", None), "stack", [])
        info = next((each for each in reversed(stack) if isinstance(each, TypeInfo)), None)
        if info is None or not info.has_base(SCHEDULE) or info.fallback_to_any or name.startswith("_"):
            return context.default_attr_type
        if owner == CARRIED:  # whose __getattr__ says in its error what there is
            what = context.type.type.name if isinstance(context.type, Instance) else "this"
            if what == "RingEnd" and info.get(name) is not None:
                return context.default_attr_type  # a tile of a slot that is held
            context.api.fail(f'"{what}" has no attribute "{name}"', context.context, code=ATTR_DEFINED)
            return context.default_attr_type
        node = found.node if (found := info.get(name)) is not None else None
        if self._has(owner, name) or (node is None and any(base.metadata.get(_NAMED) for base in info.mro)):
            return context.default_attr_type
        if node is None or isinstance(node, (FuncDef, Decorator)):
            text = f'"{info.name}" declares no part "{name}", so {WHAT[owner]} has none'
            context.api.fail(text, context.context, code=ATTR_DEFINED)
            return context.default_attr_type
        declared = get_proper_type(node.type) if isinstance(node, Var) else None
        known = STANDS_FOR[owner].get(declared.type.fullname) if isinstance(declared, Instance) else None
        made = self.lookup_fully_qualified(known) if known else None
        return Instance(made.node, []) if made and isinstance(made.node, TypeInfo) else context.default_attr_type

    def _has(self, owner: str, name: str) -> bool:
        """Whether a class has an attribute, also if mypy has not inferred its type yet."""
        found = self.lookup_fully_qualified(owner)
        return found is not None and isinstance(found.node, TypeInfo) and found.node.get(name) is not None


def _type_bodies(context: ClassDefContext) -> None:
    named = "NameExpr(setattr" in str(context.cls.defs)  # as mypy prints its tree: its visitors cannot be subclassed
    context.cls.info.metadata[_NAMED] = {"setattr": True} if named else {}
    takes = [context.api.named_type_or_none(name) for name in (CONTEXT, TILE)]
    for statement in context.cls.defs.body:
        if isinstance(statement, Decorator) and statement.func.type is None:
            body = statement.func
            if any(map(_is_jit, statement.original_decorators)) and 1 < len(body.arguments) <= 3:
                types = [AnyType(TypeOfAny.special_form), *(each or AnyType(TypeOfAny.special_form) for each in takes)]
                body.type = body.unanalyzed_type = CallableType(
                    types[: len(body.arguments)],
                    body.arg_kinds,
                    body.arg_names,
                    NoneType(),
                    context.api.named_type("builtins.function"),
                    name=body.name,
                    definition=body,
                )


def _is_jit(decorator: Expression) -> bool:
    """Whether it is ``role.jit`` or ``role.before.jit``."""
    return isinstance(decorator, MemberExpr) and decorator.name == "jit"


def plugin(version: str) -> type[Plugin]:
    """The entry point. *version*: of mypy."""
    return TmapipePlugin
