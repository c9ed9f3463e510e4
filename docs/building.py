"""What `mkdocs build` needs besides mkdocs.yml: pages of files outside docs/, their links, and signatures of attrs classes.

README.md becomes index.md. CHANGELOG.md and CONTRIBUTING.md keep their names. Every other file that a page links to, such as a
program of examples/, becomes a page with its text.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
TOP = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCED = re.compile(r"(^```.*?^```$)", re.M | re.S)
LANGUAGES = {".py": "python", ".json": "json", ".c": "c", ".html": "html"}


def page_of(path: str) -> str:
    """The page, from docs/, of a file, from the root of the repository."""
    return TOP.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}.md")


def linked(text: str, path: str) -> list[str]:
    """Files outside docs/ that *text* links to. *path*: of the text's own file, from the root of the repository."""
    found = [at(path, link) for _, link, _ in LINK.findall(FENCED.sub("", text)) if ":" not in link]
    return [file for file in found if not file.startswith("docs/") and file not in TOP and (ROOT / file).is_file()]


def at(path: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def with_links_of_pages(text: str, path: str) -> str:
    """*text* of the file *path*, with links from page to page."""

    def page(match: re.Match[str]) -> str:
        link = match[2]
        target = at(path, link)
        if ":" in link or not (ROOT / target).exists():
            return match[0]
        if (ROOT / target).is_dir():
            return match[0]
        return f"{match[1]}{posixpath.relpath(page_of(target), posixpath.dirname(page_of(path)) or '.')}{match[3]}"

    return "".join(part if part.startswith("```") else LINK.sub(page, part) for part in FENCED.split(text))


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of files outside docs/."""
    own = [f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md")]
    texts = {path: (ROOT / path).read_text() for path in (*TOP, *own)}
    for path in TOP:
        files.append(File.generated(config, page_of(path), content=with_links_of_pages(texts[path], path)))
    for path in sorted({file for page, text in texts.items() for file in linked(text, page)}):
        language = LANGUAGES.get(os.path.splitext(path)[1], "text")
        text = (ROOT / path).read_text()
        content = f"# {path}\n\n````{language}\n{text}````\n"
        made = File.generated(config, page_of(path), content=content)
        made.inclusion = type(made.inclusion).NOT_IN_NAV
        files.append(made)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of pages of docs/ that lead out of it."""
    path = f"docs/{page.file.src_uri}"
    return with_links_of_pages(markdown, path) if (ROOT / path).is_file() else markdown


class Attrs(griffe.Extension):
    """Gives an attrs class the parameters that attrs makes of its fields."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """When all modules are read, so that base classes are known."""
        self._module(pkg)

    def _module(self, module: griffe.Module) -> None:
        for member in module.members.values():
            if isinstance(member, griffe.Module):
                self._module(member)
            elif isinstance(member, griffe.Class) and _attrs(member) and "__init__" not in member.members:
                init = griffe.Function("__init__", parameters=_parameters(member), parent=member)
                member.set_member("__init__", init)


def _attrs(made: griffe.Class) -> bool:
    return any("attrs." in str(each.value) or "define" in str(each.value) for each in made.decorators)


def _parameters(made: griffe.Class) -> griffe.Parameters:
    """`self` and a parameter for each line of the docstring's arguments, as its field says: keyword-only ones last."""
    fields: dict[str, tuple[str, bool]] = {}
    for base in (*reversed(made.mro()), made):
        by_name = any("kw_only=True" in str(each.value) for each in base.decorators)
        for name, field in base.members.items():
            if isinstance(field, griffe.Attribute) and field.annotation is not None:
                value = str(field.value) if field.value is not None else ""
                fields[name] = value, "kw_only=True" in value or (by_name and "kw_only=False" not in value)
    positional, named = griffe.ParameterKind.positional_or_keyword, griffe.ParameterKind.keyword_only
    found = []
    for section in made.docstring.parse("google", warnings=False) if made.docstring else ():
        if section.kind is griffe.DocstringSectionKind.parameters:
            for name in (name for line in section.value for name in line.name.split(", ") if name in fields):
                value, by_name = fields[name]
                found.append(griffe.Parameter(name, kind=named if by_name else positional, default=_default(value)))
    found.sort(key=lambda each: each.kind is named)
    return griffe.Parameters(griffe.Parameter("self", kind=positional), *found)


def _default(value: str) -> str | None:
    """Of a parameter, from the text of what its field is set to; None if it has none."""
    if not value.startswith(("attrs.field(", "field(")):
        return value or None
    given = re.search(r"\bdefault=((?:[^,()]|\([^()]*\))+)", value)
    return given[1] if given else "..." if "factory=" in value else None
