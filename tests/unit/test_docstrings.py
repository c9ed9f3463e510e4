"""What users call says what it takes: each parameter of each public object is in its docstring, and each error it raises."""

import enum
import importlib
import inspect
import pkgutil
import re

import pytest

import tmapipe.protocol
from tests.unit import test_site
from tmapipe import errors
from tmapipe.schedule import Schedule

PUBLIC = ("", ".schedules", ".tiles", ".schedules.mainloop", ".epilogue", ".math", ".tuning", ".torch", ".testing")
AS_ANOTHER = re.compile(r"\b[Aa]s (of |in )?`|\barguments\s+(as\s+of|are\s+those\s+of)\s+`", re.I)


def exported(module):
    """(name, object) of what a module exports, except modules: what `__all__` names, or else what it defines."""
    own = [name for name, made in vars(module).items() if getattr(made, "__module__", "") == module.__name__]
    for name in getattr(module, "__all__", [name for name in own if not name.startswith("_")]):
        if not inspect.ismodule(getattr(module, name)):
            yield f"{module.__name__}.{name}", getattr(module, name)


def methods(name, cls):
    """Public methods that a class introduces. What overrides one is described there; bodies of roles, at `Role.jit`."""
    for key, value in vars(cls).items():
        static = isinstance(value, staticmethod)
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if (
            key.startswith("_")
            or not inspect.isfunction(function)
            or any(hasattr(base, key) for base in cls.__mro__[1:])
        ):
            continue
        parameters = list(inspect.signature(function).parameters)[0 if static else 1 :]
        if not (issubclass(cls, Schedule) and parameters == ["k", "tile"] and function.__doc__ is None):
            yield f"{name}.{key}", function.__doc__, parameters


def callables():
    """By name: the docstring and the parameters of all that users call, and of the methods of what bodies hold."""
    found = {}
    for module in (importlib.import_module(f"tmapipe{name}") for name in PUBLIC):
        for name, made in exported(module):
            if (inspect.isclass(made) and issubclass(made, (BaseException, enum.Enum))) or not callable(made):
                continue
            found[name] = inspect.getdoc(made), list(inspect.signature(made).parameters)
            if inspect.isclass(made):
                found |= {key: (text, parameters) for key, text, parameters in methods(name, made)}
    held = [info.name for info in pkgutil.iter_modules(tmapipe.protocol.__path__, "tmapipe.protocol.")]
    for module in ("tmapipe.kernel", "tmapipe.isa.fragment", "tmapipe.check", "tmapipe.plan.model", *held):
        for name, made in exported(importlib.import_module(module)):
            if inspect.isclass(made):
                found |= {key: (text, parameters) for key, text, parameters in methods(name, made)}
    return found


CALLABLES = callables()


def test_errors_that_are_raised_are_described():
    """Those of a function's own `raise` statements, or the docstring refers to another one."""
    checked, missing = 0, []
    for name, (text, _) in CALLABLES.items():
        made = test_site.found(name)
        made = vars(made).get("__init__") if inspect.isclass(made) else made
        used = {each for each in made.__code__.co_names if each in vars(errors)} if inspect.isfunction(made) else ()
        checked += len(used)
        missing += [f"{name}: {each}" for each in used if each not in text
                    and not AS_ANOTHER.search(text) and f"raise {each}(" in inspect.getsource(made)]  # fmt: skip
    assert checked > 50 and not missing, "\n".join(missing)


@pytest.mark.parametrize("kind", ["tmapipe.schedules", "tmapipe.protocol", "tmapipe."])
def test_every_parameter_is_described(kind):
    """By its name, or with those of another object that is named."""
    some = {name: each for name, each in CALLABLES.items() if name.startswith(kind)}
    silent = [name for name, (text, _) in some.items() if not text]
    missing = [
        f"{name}: {parameter}"
        for name, (text, parameters) in some.items()
        for parameter in parameters
        if text and not AS_ANOTHER.search(text) and not re.search(rf"\b{re.escape(parameter)}\b", text)
    ]
    assert len(some) > 10 and not silent and not missing, "\n".join([*silent, *missing])


@pytest.mark.parametrize("name", [name for name, (_, parameters) in CALLABLES.items() if "protocol" not in name and
                                  name.rpartition(".")[2][:1].isupper() and parameters])  # fmt: skip
def test_what_is_declared_has_a_line_for_each_argument(name):
    text, parameters = CALLABLES[name]
    for parameter in parameters:
        assert re.search(rf"^\s+([\w*]+, )*\*{{0,2}}{parameter}(, \w+)*:", text, re.M), (
            f"{name} has no line `{parameter}:`"
        )
