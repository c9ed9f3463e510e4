"""The part of the suite that needs neither torch nor CuTe DSL, on the other versions of Python: ``python -m tests.versions``.

Versions that this machine does not have are named and left out. Each has an environment in ``.venv-3.N``, made once, with the
newest packages, or on the oldest version with the oldest that pyproject.toml allows."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

VERSIONS = ("3.10", "3.12", "3.13")
OLDEST = "3.10"  # has the oldest packages that pyproject.toml allows; the others have the newest
#: Of those that pyproject.toml asks for.
AT_RUN_TIME = ("attrs", "greenlet", "ml_dtypes", "numpy")
FOR_TESTS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
#: What a version may change: bodies that are traced, lines that are reported, numbers of the model.
MACHINE = (
    "arithmetic copy_ring dynamic endless expressions fp8 gated globals mbarrier registers syncs tma transitions wgmma"
)
CHECK = "corpus raw refused results values"
UNIT = "bare errors math slips"
ROOT = Path(__file__).parents[1]


def interpreter(version: str) -> str | None:
    """One on the path, or the newest that pyenv has."""
    on_path = shutil.which(f"python{version}")
    # pyenv puts a command of every version there, which fails unless it is chosen
    if on_path and subprocess.run([on_path, "-c", ""], capture_output=True).returncode == 0:
        return on_path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = sorted(pyenv.glob(f"versions/{version}.*/bin/python"), key=lambda path: int(path.parts[-3].split(".")[-1]))
    return str(found[-1]) if found else None


def environment(version: str, python: str) -> Path:
    """The Python of an environment with what is needed."""
    folder = ROOT / f".venv-{version}"
    asked = re.findall(r'"([\w-]+)([<>=][^"]*)"', (ROOT / "pyproject.toml").read_text())
    ranges = {name: range_ for name, range_ in asked if name in (*AT_RUN_TIME, *FOR_TESTS)}
    if version == OLDEST:
        ranges |= {name: "==" + ranges[name].partition(",")[0].removeprefix(">=") for name in AT_RUN_TIME}
    packages = [name + range_ for name, range_ in ranges.items()]
    stamp, wanted = folder / "installed", "\n".join(packages)
    made = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(made), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages], check=True)
        stamp.write_text(wanted)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    part = [
        f"tests/{folder}/test_{name}.py"
        for folder, names in (("machine", MACHINE), ("check", CHECK), ("unit", UNIT))
        for name in names.split()
    ]
    parser.add_argument("tests", nargs="*", default=part, help="files and folders, none of which imports torch")
    options = parser.parse_args()
    failed = []
    for version in VERSIONS:
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not on this machine")
            continue
        began = time.monotonic()
        command = [str(environment(version, python)), "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
        if subprocess.run([*command, *options.tests], cwd=ROOT).returncode:
            failed.append(version)
        print(
            f"Python {version}: {'failed' if version in failed else 'passed'}, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
