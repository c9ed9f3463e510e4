"""The site: each public name has a page of the reference, each page is in the menu, and what both name is there.

`make docs` builds it strictly, which needs the extra `docs`. These tests need nothing but the pages.
"""

import importlib
import inspect
import pathlib
import re

import pytest

import tmapipe

ROOT = pathlib.Path(__file__).parents[2]
PUBLIC = (
    "tmapipe",
    "tmapipe.schedules",
    "tmapipe.tiles",
    "tmapipe.math",
    "tmapipe.epilogue",
    "tmapipe.tuning",
    "tmapipe.torch",
    "tmapipe.testing",
)
MENU = re.findall(r"^\s+- (?:\w+: )?([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
TOP = {"index.md": "README.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}


def directives():
    """What pages of the reference show, and their first columns."""
    text = "".join(path.read_text() for path in sorted((ROOT / "docs/reference").glob("*.md")))
    return re.findall(r"^::: (\S+)$", text, re.M), set(re.findall(r"^\| `(tmapipe\.dtypes\.\w+)` \|", text, re.M))


SHOWN, LISTED = directives()


def found(name):
    """The object that a directive names: a module, or an attribute of one."""
    module, rest = name, []
    while True:
        try:
            made = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
    for part in rest:
        made = getattr(made, part)
    return made


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_page(module):
    made = importlib.import_module(module)
    names = [name for name in made.__all__ if not inspect.ismodule(getattr(made, name))]
    shown = {*SHOWN, *LISTED}
    same = [name for name in names if getattr(importlib.import_module("tmapipe"), name, None) is getattr(made, name)]
    shown |= {f"{module}.{name}" for name in same if f"tmapipe.{name}" in shown}
    missing = [name for name in names if f"{module}.{name}" not in shown and module not in shown]
    assert names and not missing, f"docs/reference has no ::: {module}. followed by {', '.join(missing)}"


def test_what_the_reference_shows_is_there_and_described():
    assert len(SHOWN) == len({*SHOWN}) > 100
    silent = [name for name in SHOWN if not inspect.getdoc(found(name))]
    assert not silent, ", ".join(silent)


def test_every_element_type_is_in_the_table_of_types():
    made = {name for name, value in vars(tmapipe.dtypes).items() if isinstance(value, tmapipe.DType)}
    assert {f"tmapipe.dtypes.{name}" for name in made} == LISTED


def test_every_page_is_in_the_menu_once_and_there():
    pages = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}
    assert len(MENU) == len({*MENU})
    assert {*MENU} == pages | {*TOP}, f"in one only: {sorted({*MENU} ^ (pages | {*TOP}))}"
    assert all((ROOT / path).exists() for path in TOP.values())
