"""The tool that changes the library's code."""

import os

import tmapipe as tp
from tests.mutation.__main__ import draw, swapped
from tests.mutation.changes import changed_code, changes_of

SOURCE = '''
"""Text."""
CONSTANT = 3

class Some:
    @property
    def size(self, n: int = 4):
        """Text."""
        if n > 2 and not self.off:
            self.note(f"{n + 1} of 5")
        raise ValueError(n * 2)

def plain():
    def inner(x):
        return x + 1
    return inner(2)
'''


def test_what_is_changed():
    found = [(change.line, change.what) for change in changes_of(SOURCE)]
    assert sorted(found) == [
        (9, "2 -> 3"), (9, "Gt -> GtE"), (9, "and -> or"), (9, "condition negated"), (9, "no not"), (10, "call left out"),
        (11, "raise left out"), (15, "1 -> 2"), (15, "Add -> Sub"), (15, "returns None"), (16, "2 -> 3"), (16, "returns None"),
    ]  # fmt: skip


def test_changed_code_is_that_of_the_outermost_function():
    results = {}
    for change in changes_of(SOURCE):
        if change.line >= 14:
            code = changed_code(SOURCE, "file", change)
            assert code.co_name == "plain" and code.co_firstlineno == change.function
            results[change.line, change.what] = eval(code)
    assert results == {
        (15, "Add -> Sub"): 1, (15, "1 -> 2"): 4, (15, "returns None"): None, (16, "2 -> 3"): 4, (16, "returns None"): None,
    }  # fmt: skip


def test_the_changed_function_takes_the_place_of_the_right_one():
    place = ("tmapipe/base/arithmetic.py", tp.base.arithmetic.ceil_div.__code__.co_firstlineno, "returns None")
    mutant = next(m for m in draw(0, 10**6) if (m.file, m.change.function, m.change.what) == place)
    pid = os.fork()
    if not pid:
        os._exit(0 if swapped(mutant) == 1 and tp.base.arithmetic.ceil_div(3, 2) is None else 1)
    assert os.waitpid(pid, 0)[1] == 0 and tp.base.arithmetic.ceil_div(3, 2) == 2


def test_draws_differ_by_seed_alone():
    assert draw(1, 5) == draw(1, 5) != draw(2, 5)
