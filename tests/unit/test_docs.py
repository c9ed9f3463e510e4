"""The user's pages: their Python runs as printed, what they print is what it prints, and their links lead somewhere.

A page's ```python blocks run in order, in one namespace, on the CPU. A ```text block right after one is its output; numbers
of events and seconds may differ. A ```python gpu block needs a GPU: where there is none, it must say so itself.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import io
import itertools
import pathlib
import re
import xml.etree.ElementTree

import attrs
import pytest

import tmapipe as tp
from tests.unit.test_imports import LAYERS

ROOT = pathlib.Path(__file__).parents[2]
TUTORIALS = tuple(sorted(f"docs/tutorials/{path.name}" for path in (ROOT / "docs/tutorials").glob("[0-9]*.md")))
PAGES = (
    "README.md",
    "docs/concepts.md",
    "docs/howto.md",
    "docs/stages.md",
    "docs/howto/practice.md",
    "docs/howto/signatures.md",
    "docs/howto/port-and-train.md",
    *TUTORIALS,
)
#: What the glossary replaces: state, operation, ready-made, distributed, transposed, backend.
REPLACED = (
    "moments?",
    "letters?",
    "shelf",
    "dealt|deals? out",
    "turned",
    "(CPU|GPU|one|two|three|either|both|every) readings?",
)
FOLDERS = ("tmapipe", "tests", "benchmarks", "examples")
EVERY_PAGE = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))


@attrs.frozen
class Block:
    """A fenced block of a page. info: what follows the opening fence; line: of that fence, from 1."""

    info: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.M | re.S)
    return [Block(each[1].strip(), each[2], text[: each.start()].count("\n") + 1) for each in found]


def steady(output: str) -> str:
    """Without what is of no account here: how many events a check took, how long, their numbers, and lines of other files."""
    for pattern, text in (
        (r"\d+ events, \d+\.\d+ s", "N events, T s"),
        (r"step \d+", "step N"),
        (r"[\w/.-]*mine\.py", "mine.py"),
        (r"(tmapipe/[\w/]+\.py):\d+", r"\1"),
    ):
        output = re.sub(pattern, text, output)
    return output.strip()


def run(block: Block, names: dict, folder: pathlib.Path) -> str:
    """What the block prints. Its source is the file mine.py in *folder*, so that reports show lines of the block."""
    path = folder / "mine.py"
    path.write_text(block.text)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, str(path), "exec"), names)
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_python_runs_as_printed(page, tmp_path, monkeypatch):
    names: dict = {"__name__": "docs"}
    found = blocks(page)
    ran = 0
    for block, following in itertools.pairwise([*found, Block("", "", 0)]):
        if not block.info.startswith("python"):
            continue
        assert block.info in ("python", "python gpu"), f"{page}:{block.line}: ```{block.info}"
        folder = tmp_path / str(block.line)
        folder.mkdir()
        monkeypatch.chdir(folder)
        try:
            printed = run(block, names, folder)
        except tp.errors.MissingGpuError:
            assert block.info == "python gpu", f"{page}:{block.line} needs a GPU, and does not say so"
            continue
        except Exception as error:
            raise AssertionError(f"{page}:{block.line}: {error}") from error
        ran += 1
        if following.info == "text":
            assert steady(printed) == steady(following.text), f"{page}:{following.line}"
        else:
            assert not printed.strip(), f"{page}:{block.line} prints what the page does not show: {printed}"
    assert ran > 3


def anchors(page: pathlib.Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page} links to {link}"
        assert not anchor or anchor in anchors(path), f"{page} links to {link}, a heading that is not there"


def test_pages_that_code_names_are_there():
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text()):
                assert (ROOT / page).exists(), f"{path.relative_to(ROOT)} names {page}"


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_files_and_programs_that_pages_name_are_there(page):
    text = (ROOT / page).read_text()
    for name in re.findall(r"[`( ]((?:[\w-]+/)*\w+\.py)\b", text):
        found = [folder / name for folder in (ROOT, ROOT / "tmapipe", ROOT / page / "..") if (folder / name).exists()]
        found += [] if "/" in name else [*ROOT.glob(f"tmapipe/**/{name}"), *ROOT.glob(f"examples/{name}")]
        assert found or name == "mine.py", f"{page} names {name}"
    for name in re.findall(r"python -m ([\w.]+)", text):
        assert importlib.util.find_spec(name), f"{page} runs {name}"


def test_tests_that_the_page_of_stages_names_are_there():
    folder, seen = "", 0
    for own, name in re.findall(
        r"`(?:(unit|emit|gpu|oracle)/)?(test_\w+|mutants|agreement)`", (ROOT / "docs/stages.md").read_text()
    ):
        folder = own or folder  # as that of the one before
        assert (ROOT / "tests" / folder / f"{name}.py").exists(), f"docs/stages.md names {folder}/{name}"
        seen += 1
    assert seen > 50


@pytest.mark.parametrize("page", TUTORIALS)
def test_tutorials_have_a_mistake_a_timeline_and_what_it_brings(page):
    """And a next page; what they bring is a table of the page's own program, and names the result files."""
    text = (ROOT / page).read_text()
    assert re.search(r"^## (A mistake|Two mistakes)$", text, re.M) and "\n## What it brings\n" in text
    (drawn,) = re.findall(r"^\$ tmapipe timeline mine\.py:(\w+) --shape", text, re.M)
    assert f"class {drawn}(" in text
    brings = text.partition("\n## What it brings\n")[2]
    files = re.findall(r"`(?:benchmarks/results/)?(\w+\.json)`", brings)
    assert files and all((ROOT / "benchmarks" / "results" / file).exists() for file in files)
    assert f"\n<!-- table tutorial-{int(pathlib.Path(page).name[:2])} -->\n| program |" in brings
    following = TUTORIALS[TUTORIALS.index(page) + 1 :]
    assert not following or ("\nNext: [" in text and f"]({pathlib.Path(following[0]).name})" in text)
    assert 60 <= len(text.splitlines()) <= 175


def code_lines(path: str, name: str) -> int:
    """Lines of a class in a page or a program, without blank ones, comments and its docstring."""
    text = (ROOT / path).read_text()
    for source in [block.text for block in blocks(path) if block.info == "python"] or [text]:
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                first, rest = node.body[0], [node.lineno, *range(node.body[0].end_lineno + 1, node.end_lineno + 1)]
                assert isinstance(first, ast.Expr), "no docstring"
                return sum(bool(re.match(r"\s*[^\s#]", lines[i - 1])) for i in rest)
    raise AssertionError(f"{path} has no {name}")


@pytest.mark.parametrize(
    "path, name, most",
    [("README.md", "Copy", 13), ("README.md", "Gemm", 23), ("examples/gemm_epilogue.py", "GeluGemm", 29)],
)
def test_programs_of_users_are_short(path, name, most):
    assert code_lines(path, name) <= most


def test_the_ring_in_motion_has_both_slots_and_both_warps():
    """docs/img/ring.svg, which `python -m docs.ring` writes from the timeline of tutorial 3."""
    drawn = xml.etree.ElementTree.parse(ROOT / "docs/img/ring.svg").getroot()
    text = " ".join("".join(each.itertext()) for each in drawn.iter("{http://www.w3.org/2000/svg}text"))
    waits = {
        f"waits for {barrier}[{slot}],parity {parity}"
        for barrier in ("free", "full")
        for slot in "01"
        for parity in "01"
    }
    assert all(each in text for each in (*waits, "tile 5in use", "full: phase 3, free: phase 2"))
    assert len(drawn.findall(".//{*}animate")) > 30


def test_internals_are_short():
    """Their words, without appendices, numbers, and tables that are written from result files."""
    pages = [path for path in (ROOT / "docs/internals").glob("*.md") if not path.name.startswith("appendix")]
    texts = {path.name: re.sub(r"<!-- table.*?<!-- end -->", "", path.read_text(), flags=re.S) for path in pages}
    words = {name: len(re.findall(r"\S*[A-Za-z]\S*", text)) for name, text in texts.items()}
    assert sum(words.values()) <= 6000, words


def test_layers_are_those_that_imports_keep_to():
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs/internals/layers.md").read_text().partition("## How")[0], re.M)
    named = [tuple(re.findall(r"`(\w+)/?`", row)) for row in rows]
    kept = [names for names in LAYERS if names != ("",)]
    assert [set(names) for names in named] == [set(names) for names in kept]


@functools.cache
def text_of(path: pathlib.Path) -> str:
    return path.read_text()


@pytest.mark.parametrize("word", REPLACED)
def test_code_and_docs_use_the_words_of_the_glossary(word):
    """Words that this project once had for what the field has a word for."""
    found = []
    code = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != pathlib.Path(__file__))
    for path in (*code, *(ROOT / page for page in EVERY_PAGE)):
        text = text_of(path)
        for each in re.finditer(rf"\b({word})\b", text):
            number = text.count("\n", 0, each.start())
            found.append(f"{path.relative_to(ROOT)}:{number + 1}: {text.splitlines()[number].strip()}")
    assert not found, "\n".join(found)
