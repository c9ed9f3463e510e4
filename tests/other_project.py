"""``python -m tests.other_project``: builds the wheel, and installs it with the package of examples/other_project, which needs
it, beside this environment's other packages; runs that package's tests, and mypy --strict on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
OTHER = ROOT / "examples" / "other_project"


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tmapipe-other-") as name:
        folder = Path(name)
        project = folder / "project"
        shutil.copytree(OTHER, project, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, ROOT, project], check=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = Path(subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip())
        subprocess.run([*pip, "install", "--no-deps", "--target", site, *sorted(folder.glob("*.whl"))], check=True)
        (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # torch, pytest, mypy, after the wheels
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        where = subprocess.run(
            [python, "-c", "import tmapipe, leaky; print(tmapipe.__file__, leaky.__file__)"],
            cwd=project,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        assert where.stdout.count(str(site)) == 2, where.stdout
        shutil.rmtree(project / "src")  # what is installed is tested
        tests = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"], cwd=project, env=environment
        )
        mypy = subprocess.run(
            [python, "-m", "mypy", "--strict", "--cache-dir", folder / "mypy", "-p", "leaky"],
            cwd=project,
            env=environment,
        )
        of_tests = subprocess.run(
            [python, "-m", "mypy", "--strict", "--cache-dir", folder / "mypy", "tests"], cwd=project, env=environment
        )
    failed = tests.returncode or mypy.returncode or of_tests.returncode
    print(f"the other project {'failed' if failed else 'passed'}, {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
