"""The tracing instruction set has every instruction."""

import inspect

import pytest

from tmapipe.isa.fragments import Fragments
from tmapipe.program.isa import TracingFragments

ABSTRACT = [
    name
    for name, method in vars(Fragments).items()
    if inspect.isfunction(method) and "NotImplementedError" in method.__code__.co_names
]


@pytest.mark.parametrize("name", ABSTRACT)
def test_each_instruction_on_fragments_is_recorded(name):
    assert getattr(TracingFragments, name) is not getattr(Fragments, name)
