"""Old keywords of `Gemm` and `tmapipe.tuning`, and how each is spelled now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["OLD_KEYWORDS"]


def _pair(word: str, default: Any) -> Callable[[Any], str]:
    """For an old value of (a, b): the new spelling."""

    def fix(value: Any) -> str:
        both = value if isinstance(value, (tuple, list)) and len(value) == 2 else ("...", "...")
        said = [f"{side}=tp.Operand({word}={each!r})" for side, each in zip("ab", both, strict=True) if each != default]
        return ", ".join(said) or "leave it out"

    return fix


def _in_epilogue(word: str) -> Callable[[Any], str]:
    def fix(value: Any) -> str:
        said = "{...}" if isinstance(value, Mapping) else repr(value)
        return f"epilogue=tp.epilogue.Epilogue(..., {word}={said})"

    return fix


OLD_KEYWORDS: dict[str, Callable[[Any], str]] = {
    "majors": _pair("major", "k"),
    "l2_hints": _pair("l2_hint", None),
    "outside": _pair("outside", "zeros"),
    "tf32": lambda value: 'a=tp.Operand(dtype="tf32"), b=tp.Operand(dtype="tf32")',
    "order": lambda value: f"tiles={value!r}",
    "promote": lambda value: f"mainloop=tp.mainloop.Cooperative(promote={value!r})",
    "dtype": _in_epilogue("dtype"),
    "store_stages": _in_epilogue("stages"),
    "operands": _in_epilogue("operands"),
    "operand_stages": _in_epilogue("ahead"),
    "outputs": lambda value: (
        'epilogue=tp.epilogue.Epilogue(..., outputs={...}), where a type is an Output, e.g. tp.epilogue.Output("fp32")'
    ),
}
