"""A page in headless Chromium: a picture of it, and what a script in it has said."""

import json
import pathlib
import shutil
import subprocess

import pytest

PATH = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
needed = pytest.mark.skipif(not PATH, reason="there is no Chromium: apt-get install chromium")


def said_by(page: pathlib.Path, size: tuple[int, int], *flags: str) -> tuple[object, pathlib.Path]:
    """What the page has put into `document.body.dataset.said`, as JSON, and the file of a picture of so many pixels."""
    shot = page.with_suffix(".png")
    given = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-extensions",
        "--no-first-run",
    ]
    given += [
        "--disable-sync",
        "--virtual-time-budget=3000",
        f"--window-size={size[0]},{size[1]}",
        "--dump-dom",
        *flags,
    ]
    given += [f"--user-data-dir={page.with_suffix('.profile')}", f"--screenshot={shot}"]
    done = subprocess.run([PATH, *given, page.as_uri()], capture_output=True, text=True, timeout=100, check=False)
    found = done.stdout.partition('data-said="')[2].partition('"')[0]
    assert found, done.stderr[-2000:]
    for name, sign in (("&quot;", '"'), ("&lt;", "<"), ("&amp;", "&")):
        found = found.replace(name, sign)
    return json.loads(found), shot
