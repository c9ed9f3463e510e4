"""Epilogue: what becomes of a matmul's sums before they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tmapipe.dtypes import DType
from tmapipe.epilogue.operands import EpilogueOperand
from tmapipe.epilogue.outputs import EpilogueOutput, Output
from tmapipe.epilogue.reductions import Reduction
from tmapipe.errors import InputError
from tmapipe.fields import must, optional
from tmapipe.isa.fragment import applied
from tmapipe.plan.frozenmap import NOTHING, frozen
from tmapipe.stage import optional_hint

__all__ = ["Epilogue"]


def _check_function(epilogue: Any, attribute: Any, value: Any) -> None:
    if value is not None and (not callable(value) or value is Epilogue):
        raise InputError("epilogue", value, "is a function of the sums, or an Epilogue", "e.g. lambda acc: acc * 0.5")


def _frozen(items: Any) -> Any:
    """What can be hashed, of a dictionary."""
    return frozen(items) if isinstance(items, Mapping) else items


def _check_names(epilogue: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InputError(f"Epilogue({attribute.name})", value, "is a dictionary by name", 'e.g. {"bias": PerColumn()}')


def _check_outputs(epilogue: Any, attribute: Any, value: Any) -> None:
    _check_names(epilogue, attribute, value)
    for name, kind in value.items():
        if not isinstance(kind, EpilogueOutput):
            a_class = isinstance(kind, type) and issubclass(kind, EpilogueOutput)
            fix = f"{kind.__name__}()" if a_class else f"Output({kind!r})"
            raise InputError(f"outputs[{name!r}]", kind, "is an Output, RowSum or ColumnSum of tmapipe.epilogue", fix)
        if name == "d":
            rule = "is the first output, which is always there"
            raise InputError("outputs['d']", kind, rule, "say dtype= or stages=")


_check_columns = must(
    optional(lambda n: isinstance(n, int) and n in range(8, 65, 8)), "is a multiple of 8 up to 64", "e.g. 32"
)


@attrs.frozen
class Epilogue:
    """A function of each element of a matmul's sums, in fp32, with its operands and outputs.

    Args:
        function: Takes the accumulator (or each accumulator) and the operands by name, and works element by element. With
            further outputs it returns a dictionary of all of them, "d" among them. None: the sums themselves.
        operands: Name -> `Matrix`, `PerBatch`, `PerColumn`, `PerRow` or `Scalar`.
        outputs: Name -> `Output`, `RowSum` or `ColumnSum`, which a call returns after d.
        dtype: Of d; None: the tensor's, or if a call makes it that of a (bf16 for fp8 operands, int32 for int8).
        stages: Output buffers of each warpgroup.
        ahead: Slots of the ring that operands are loaded into: one per tile, or with a matrix one per piece of 64 rows a
            warpgroup and up to `columns`.
        columns: Of a piece, a multiple of 8 up to 64, in which operands are loaded and outputs stored; None: 64. Fewer leave
            more shared memory to the ring of a and b.
        l2_hint: Of whole outputs, "evict_first" (of outputs larger than L2), "evict_last" or "evict_normal".

    Raises:
        InputError: Operands or outputs of no known kind, or another hint.

    ::

        Epilogue(lambda acc, bias: tp.math.gelu(acc + bias), operands={"bias": PerColumn()})
        Epilogue(lambda acc: {"d": tp.math.relu(acc), "sums": acc}, outputs={"sums": Output("fp32")})
        Epilogue(lambda acc: {"d": acc, "squares": acc * acc}, outputs={"squares": RowSum()})
    """

    function: Callable[..., Any] | None = attrs.field(default=None, validator=_check_function)
    operands: Mapping[str, EpilogueOperand] = attrs.field(
        default=NOTHING, converter=_frozen, validator=_check_names, kw_only=True
    )
    outputs: Mapping[str, EpilogueOutput] = attrs.field(
        default=NOTHING, converter=_frozen, validator=_check_outputs, kw_only=True
    )
    dtype: DType | str | None = attrs.field(default=None, kw_only=True)
    stages: int = attrs.field(default=2, kw_only=True)
    ahead: int = attrs.field(default=2, kw_only=True)
    columns: int | None = attrs.field(default=None, kw_only=True, validator=_check_columns)
    l2_hint: str | None = attrs.field(default=None, kw_only=True, validator=optional_hint)

    @classmethod
    def of(cls, value: Epilogue | Callable[..., Any] | None) -> Epilogue:
        """*value*, or the epilogue of a plain function."""
        return value if isinstance(value, Epilogue) else cls(value)

    @property
    def plain(self) -> bool:
        """Whether it only stores the sums themselves."""
        return self.function is None and not self.operands and not self.outputs

    @property
    def whole_outputs(self) -> dict[str, EpilogueOutput]:
        """All outputs by name, d first."""
        return {"d": Output(self.dtype), **self.outputs}

    @property
    def reductions(self) -> dict[str, Reduction]:
        """The outputs that are sums of rows or columns."""
        return {name: kind for name, kind in self.outputs.items() if isinstance(kind, Reduction)}

    def values(self, sums: tuple[Any, ...], operands: Mapping[str, Any]) -> Any:
        """What the function makes of whole *sums* and *operands*, NumPy arrays in fp32: an array, or several by name."""
        return sums[0] if self.function is None else applied(self.function, sums, operands)
