"""One HTML page that draws Chrome trace events. It needs nothing but itself: no network, no other file."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

__all__ = ["page"]

_TEMPLATE = Path(__file__).with_name("page.html")


def page(document: dict[str, Any]) -> str:
    """The page that draws a timeline's *document*."""
    title = html.escape(str(document["otherData"]["title"]))
    data = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")  # no tag ends inside it
    template = _TEMPLATE.read_text(encoding="utf-8")
    head, _, tail = template.replace("@TITLE@", title).partition("@DATA@")
    return f"{head}{data}{tail}"
