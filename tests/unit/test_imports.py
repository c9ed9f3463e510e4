"""What each module imports: the order of the packages, and who may import cutlass and torch."""

import ast
import importlib
import pathlib
import pkgutil
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import tmapipe
from tmapipe.program.names import children

ROOT = pathlib.Path(tmapipe.__file__).parent
HEAVY = ("cutlass", "torch", "cuda", "tvm_ffi", "triton")


def modules():
    """Every module of the package outside those that are for the GPU, or operators of torch."""
    found = ["tmapipe"]
    for module in pkgutil.walk_packages([str(ROOT)], "tmapipe."):
        if not module.name.startswith(("tmapipe.gpu", "tmapipe.torch")):
            found.append(module.name)
    return found


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, timeout=100)


def test_protocol_imports_neither_cutlass_nor_torch():
    """One process imports them one by one, and says which was the first to bring in something heavy."""
    code = f"""
import importlib, sys
for name in {modules()!r}:
    importlib.import_module(name)
    heavy = sorted(set({HEAVY!r}) & set(sys.modules))
    if heavy:
        sys.exit(f"{{name}} imports {{', '.join(heavy)}}")
"""
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_importing_is_quick_and_planning_simulating_and_reading_need_no_cutlass():
    """Nothing is compiled, searched or downloaded at import. (Half a second of a core; the bound is for slow machines.)"""
    code = """
import sys
import time
import numpy as np
began = time.process_time()
import tmapipe as tp
took = time.process_time() - began
tp.schedules.Gemm().explain()
x = np.arange(64 * 256, dtype=np.float32).reshape(64, 256)
assert (tp.schedules.Copy()(x) == x).all()
assert not {"cutlass", "torch", "typer", "rich", "cloudpickle", "filelock", "tqdm"} & {*sys.modules}, "imported"
import tests.oracle.ptx
assert "cutlass" not in sys.modules, "imported"
print(took)
"""
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 3


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT.parent / "tests" / "gpu").glob("test_*.py"))])
def test_tests_of_the_gpu_can_be_imported(name):
    """Where there is none, they are skipped without being read."""
    importlib.import_module(f"tests.gpu.{name}")


#: Packages and modules from the lowest layer up. Each imports only from lines above its own, and from its own package.
LAYERS = (
    ("errors",),
    ("loaded",),
    ("base",),
    ("barrier",),
    ("stage",),
    ("parts",),
    ("store_pipeline",),
    ("plan",),
    ("bind",),
    ("isa",),
    ("protocol",),
    ("model", "tiles", "epilogue"),
    ("kernel",),
    ("program",),
    ("check", "gpu"),
    ("prove",),
    ("math",),
    ("calling",),
    ("timeline",),
    ("schedule",),
    ("schedules",),
    ("tuning", "testing"),
    ("torch",),
    ("",),  # tmapipe/__init__.py
    ("command",),
)


def imports(path):
    """Names below tmapipe that a file imports, wherever in the file, but for what only a type checker sees."""
    nodes = [ast.parse(path.read_text())]
    for node in nodes:
        typing = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for blocks in ("orelse",) if typing else ("body", "orelse", "finalbody", "handlers", "cases"):
            nodes += getattr(node, blocks, ())  # statements alone
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tmapipe":
            if node.module == "tmapipe":
                yield from (alias.name for alias in node.names)
            else:
                yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("tmapipe."))


def test_imports_go_one_way():
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        here = path.relative_to(ROOT).with_suffix("").parts[0]
        here = {"__init__": "", "__main__": "command"}.get(here, here)
        for name in imports(path):
            if name != here and level[name] >= level[here]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_files_are_short():
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert not {name: lines for name, lines in long.items() if lines > 500}


def test_files_are_few():
    """And the top level has what users and the layers name."""
    assert len([*ROOT.rglob("*.py")]) <= 137
    assert len([*ROOT.glob("*.py")]) <= 12


def test_public_names_are_few():
    """What users import first; tile schedulers, element types and the rarer errors have modules of their own."""
    assert len(tmapipe.__all__) <= 45


def test_names_that_an_open_slot_has_itself_are_reserved():
    from tmapipe.protocol.ring import Slot
    from tmapipe.stage import RESERVED

    end = SimpleNamespace(isa=SimpleNamespace(follow=lambda part: None), parts={})
    assert {name for name in (*dir(Slot), *vars(Slot(end))) if not name.startswith("_")} == set(RESERVED)


# ---- tests, benchmarks and examples -----------------------------------------------------------------------------------

OTHERS = [path for folder in ("tests", "benchmarks", "examples") for path in (ROOT.parent / folder).rglob("*.py")]
NO_SECRETS = (
    "_asdict",
    "_fields",
    "_replace",
    "_getframe",
    "_exit",
)  # public, by the documentation of collections.namedtuple, sys and os


def privates(tree):
    """Private names that a module imports, or takes from objects without defining them itself."""
    nodes = [tree]
    for node in nodes:
        nodes += children(node)
    own = {getattr(node, "name", "") for node in nodes}
    own |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name) and node.value.id == "self"}  # fmt: skip
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("tmapipe", "tests", "benchmarks"):
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "torch")
            if not of_self and node.attr not in own and node.attr not in NO_SECRETS:
                yield node.attr


#: What may take a private name: an attribute, or an import of one.
MAY = re.compile(r"\.\s*\\?\s*_|^\s*from\s[^#]*?\simport\s*(\([^)]*\W_|[^\n(]*\W_)", re.MULTILINE)


def test_nobody_outside_uses_what_is_private():
    texts = {path: text for path in OTHERS if MAY.search(text := path.read_text())}
    wrong = [f"{path.name}: {name}" for path, text in texts.items() for name in privates(ast.parse(text))]
    assert len(OTHERS) > 400 and len(texts) > 50 and not wrong, "\n".join(wrong)


def test_only_their_own_tests_use_the_benchmarks():
    users = {path.name for path in OTHERS if "from benchmarks" in path.read_text() and path.parent.name != "benchmarks"}
    own = {"test_benchmarks.py", "test_benchmark_commands.py", "test_sass.py", "test_random_problems.py"}
    assert users <= {*own, pathlib.Path(__file__).name}, users


def test_no_public_object_has_more_than_eight_parameters():
    import inspect

    many = {}
    names = ("", ".schedules", ".tiles", ".schedules.mainloop", ".epilogue", ".math", ".tuning", ".testing")
    for module in (importlib.import_module(f"tmapipe{name}") for name in names):
        for name in module.__all__:
            made = getattr(module, name)
            if inspect.isfunction(made) or (inspect.isclass(made) and not issubclass(made, BaseException)):
                count = len(inspect.signature(made).parameters)
                many |= {name: count} if count > 8 else {}
    assert not many
