"""The form of the results: one JSON file per suite, and tables on the terminal.

    {"suite", "date", "gpu", "versions", "commit", "method",
     "fields": ["problem", "dtype", "peer", "variant", "us", "tflops" or "gbps", "rel_err", ...],
     "rows": [[the fields of one result, null where it has none, as far as it has any], ...]}

`read` gives each row as a dictionary.

"peer" is "tmapipe" for ours. us: microseconds per launch. tflops: 1e12 floating-point operations per second. gbps: 1e9 bytes
read and written per second. rel_err: ||out - ref|| / ||ref||, see each suite. Rows may have more fields (spread, mode,
fraction_of_peak, fraction_of_best_peer, ...), and a reader ignores those that it does not know.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

__all__ = ["OURS", "Results", "best", "commit", "print_table", "read", "text_of", "versions"]

OURS = "tmapipe"
_HERE = Path(__file__).resolve().parent


def folder_of(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder of result files: *given*, or benchmarks/results."""
    return Path(given) if given is not None else _HERE / "results"


_REQUIRED = ("problem", "dtype", "peer", "variant")
_PACKAGES = ("nvidia-cutlass-dsl", "apache-tvm-ffi", "torch", "triton", "quack-kernels")


@attrs.define
class Results:
    """One suite's rows, and where they were measured. gpu: the device's name, or "none" for a suite that needs none."""

    suite: str
    gpu: str
    method: dict[str, Any] = attrs.field(factory=dict)
    rows: list[dict[str, Any]] = attrs.field(factory=list)
    date: str = attrs.field(factory=lambda: datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"))
    versions: dict[str, str] = attrs.field(factory=lambda: versions())
    commit: str = attrs.field(factory=lambda: commit())

    def add(self, **row: Any) -> dict[str, Any]:
        """Appends a row; fields that are None are left out. Raises `ValueError` if a field that every row has is missing."""
        missing = [name for name in _REQUIRED if row.get(name) is None]
        if missing:
            raise ValueError(f"a row of suite {self.suite!r} lacks {', '.join(missing)}: {row}")
        kept = {name: _rounded(value, name) for name, value in row.items() if value is not None}
        self.rows.append(kept)
        return kept

    def write(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Writes ``<suite>.json`` into *folder* (benchmarks/results by default) under a temporary name first, so that a
        run cut short leaves the last whole file. Returns the path."""
        path = folder_of(folder)
        path.mkdir(parents=True, exist_ok=True)
        target = path / f"{self.suite}.json"
        partial = target.with_suffix(".json.tmp")
        names = ("suite", "date", "gpu", "versions", "commit", "method", "rows")
        partial.write_text(text_of({name: getattr(self, name) for name in names}))
        partial.replace(target)
        return target

    def resume(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Takes over the rows of an earlier file of this suite, if it has the same gpu, versions, commit and method. Raises
        `ValueError` if it has others: numbers of different software are not put into one table."""
        path = folder_of(folder) / f"{self.suite}.json"
        if not path.exists():
            return
        old = read(path)
        for name in ("gpu", "versions", "commit", "method"):
            if old.get(name) != getattr(self, name):
                raise ValueError(
                    f"{path} has {name} {old.get(name)!r}, this run {getattr(self, name)!r}: not appended."
                )
        self.rows = old["rows"] + self.rows

    def drop(self, **match: Any) -> None:
        """Forgets the rows whose fields equal all of *match*: those about to be measured again."""
        self.rows = [row for row in self.rows if any(row.get(name) != value for name, value in match.items())]


def text_of(data: dict[str, Any]) -> str:
    """The text of a file of results, whose rows are dictionaries: a row a line, without the names of its fields."""
    counts = Counter(name for row in data["rows"] for name in row)
    fields = sorted(counts, key=counts.__getitem__, reverse=True)  # those last that few rows have
    head = json.dumps({**{name: data[name] for name in data if name != "rows"}, "fields": fields}, indent=1)
    cells = ([row.get(name) for name in fields[: _last(row, fields)]] for row in data["rows"])
    rows = (json.dumps(row, separators=(",", ":")) for row in cells)
    return head.removesuffix("\n}") + ',\n "rows": [\n' + ",\n".join(rows) + "\n ]\n}\n"


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file of results has, each row as a dictionary of the fields that it has."""
    data: dict[str, Any] = json.loads(Path(path).read_text())
    fields = data.pop("fields")
    data["rows"] = [
        {name: value for name, value in zip(fields, row, strict=False) if value is not None} for row in data["rows"]
    ]
    return data


def _last(row: dict[str, Any], fields: list[str]) -> int:
    return 1 + max(fields.index(name) for name in row)


def best(rows: Iterable[dict[str, Any]], measure: str = "tflops", **match: Any) -> dict[str, Any] | None:
    """The row with the highest *measure* among those whose fields equal *match*; None if there is none."""
    found = [r for r in rows if r.get(measure) is not None and all(r.get(n) == v for n, v in match.items())]
    return max(found, key=lambda r: r[measure], default=None)


def versions() -> dict[str, str]:
    """Versions of what takes part, those that are installed; "driver" where nvidia-smi answers."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            module = {"nvidia-cutlass-dsl": "cutlass", "quack-kernels": "quack"}.get(name, name.replace("-", "_"))
            try:
                found[name] = str(getattr(importlib.import_module(module), "__version__", "unknown"))
            except ImportError:
                continue
    try:
        found[OURS] = str(importlib.import_module(OURS).__version__)
        import torch

        if torch.version.cuda:
            found["cuda"] = torch.version.cuda
    except ImportError:
        pass
    driver = _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    if driver:
        found["driver"] = driver.splitlines()[0]
    return found


def commit() -> str:
    """The commit measured: TMAPIPE_COMMIT, else what git says ("-dirty" if tracked files differ), else "unknown"."""
    given = os.environ.get("TMAPIPE_COMMIT")
    if given:
        return given
    head = _said("git", "-C", str(_HERE), "rev-parse", "HEAD")
    if not head:
        return "unknown"
    return head + ("-dirty" if _said("git", "-C", str(_HERE), "status", "--porcelain", "--untracked-files=no") else "")


def print_table(rows: Sequence[Sequence[Any]], headers: Sequence[str], title: str = "") -> None:
    """Prints a table: with tabulate if it is installed, else in aligned columns."""
    if title:
        print(f"\n{title}")
    text = [["" if cell is None else str(cell) for cell in row] for row in rows]
    try:
        from tabulate import tabulate
    except ImportError:
        widths = [max(len(line[i]) for line in [list(headers), *text]) for i in range(len(headers))]
        for line in [list(headers), ["-" * w for w in widths], *text]:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    else:
        print(tabulate(text, headers=list(headers), disable_numparse=True))


def _rounded(value: Any, name: str) -> Any:
    """Six digits; three of what nobody reads more of."""
    return float(f"{value:.{3 if name in ('spread', 'rel_err') else 6}g}") if isinstance(value, float) else value


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
