"""One check for every refusal of bad input: the error names the argument, its value, the rule and a fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tmapipe.errors import InputError, PipelineError

ANY = object()


def refused(
    call: Callable[..., Any], *arguments: Any, argument: str, rule: str, value: Any = ANY, **named: Any
) -> InputError:
    """Calls *call* and returns its `InputError`, whose argument contains *argument* and whose rule matches *rule*."""
    with pytest.raises(InputError) as info:
        call(*arguments, **named)
    error = info.value
    assert isinstance(error, PipelineError) and isinstance(error, ValueError)
    assert argument in error.argument, error
    assert re.search(rule, error.rule), error
    if value is not ANY:
        assert error.value == value, error
    text = str(error)
    assert text.startswith(f"{error.argument} = {error.value!r}: {error.rule}. Fix: {error.fix}."), text
    for part, least in ((error.rule, 8), (error.fix, 3)):  # a sentence's worth, without its full stop
        assert len(part) >= least and part == part.strip() and not re.search(r"[^.]\.$", part), text
    return error
