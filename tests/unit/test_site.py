"""The site: each public name has a page of the reference, each page is in the menu, and what both name is there.

`make docs` builds it strictly, which needs the extra `docs`. Where it has, and there is a browser, that looks at the pages.
"""

import importlib
import inspect
import pathlib
import re
import urllib.parse

import pytest

import tmapipe
from tests import browser

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


SITE = ROOT / "build" / "site"
LOOKED_AT = ("index.html", "tutorials/03-rings-and-phases.html", "reference/stages.html")
WIDTHS = {"desk": (1280, 800), "phone": (390, 800)}
LOOKS = """
<body style="margin: 0; width: 2000px"><script>
const said = {}, looks = () => {
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, root = page.documentElement;
    said[frame.name] = {
      title: page.querySelector("h1").textContent, wide: root.scrollWidth, high: root.scrollHeight,
      words: page.querySelector("article").innerText.split(/\\s+/).length,
      images: [...page.images].map(image => image.complete && image.naturalWidth > 0 && image.width <= root.clientWidth),
      menu: page.querySelector(".md-sidebar--primary").getBoundingClientRect().right > 0,
      size: parseFloat(getComputedStyle(page.querySelector("article p")).fontSize),
    }; }
  document.body.dataset.said = JSON.stringify(said); };
addEventListener("load", () => setTimeout(looks, 300));
</script>FRAMES</body>
"""


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory):
    """By page and width, what a browser says of it; and a picture of all. The browser starts once."""
    folder = tmp_path_factory.mktemp("site")
    frames = "".join(
        f'<iframe name="{page} {kind}" src="{(SITE / page).as_uri()}" width={width} height={height} frameborder=0></iframe>'
        for page in LOOKED_AT
        for kind, (width, height) in WIDTHS.items()
    )
    path = folder / "looks.html"
    path.write_text(LOOKS.replace("FRAMES", frames))
    return browser.said_by(path, (1700, 2420), "--disable-web-security", "--allow-file-access-from-files")


@browser.needed
@pytest.mark.skipif(not SITE.exists(), reason="there is no build/site: make docs")
def test_a_browser_shows_the_site_at_a_desk_and_on_a_phone(looked_at):
    said, shot = looked_at
    for page in LOOKED_AT:
        for kind, (width, height) in WIDTHS.items():
            seen = said[f"{page} {kind}"]
            assert seen["wide"] <= width, (
                f"{page} is {seen['wide']} wide on a {kind}: tables and programs scroll by themselves"
            )
            assert seen["words"] > 500 and seen["high"] > height and all(seen["images"]) and seen["size"] >= 14, (
                page,
                kind,
                seen,
            )
            assert seen["menu"] == (kind == "desk"), f"the menu is behind a button on a phone: {page} {seen}"
    assert said["index.html desk"]["images"] and shot.stat().st_size > 100_000


@pytest.mark.skipif(not SITE.exists(), reason="there is no build/site: make docs")
def test_no_link_of_the_site_is_dead():
    """Of the built pages, to files and to headings; no page asks the network for anything."""
    pages = {path: path.read_text() for path in SITE.rglob("*.html") if path.name != "404.html"}
    names = {path: {*re.findall(r'\bid="?([^"\s>]+)', text)} for path, text in pages.items()}
    dead, asked = [], []
    for path, text in pages.items():
        asked += re.findall(r'<(?:script|img|link)\b[^>]*\b(?:src|href)="(https?://[^"]+)"', text)
        for link in {*re.findall(r'\b(?:href|src)="?([^"\s>]+)', text)}:
            if link.startswith(("http:", "https:", "mailto:", "data:", "#__")):
                continue
            target, _, name = urllib.parse.unquote(link).partition("#")
            file = (path.parent / target).resolve() if target else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists() or (name and file in names and name not in names[file]):
                dead.append(f"{path.relative_to(SITE)}: {link}")
    assert len(pages) > 40 and not dead, "\n".join(dead[:20])
    assert not asked, asked[:5]
