"""How pytest-xdist shares the tests out: all tests of one compiled kernel to one process, so that each is compiled once, and
all cases of any other test, since each portion costs the process that hands them out some milliseconds. In the order of
folders: those of `tests/unit` come last, which are quick, so that the processes end together. On a GPU each case is shared out
alone: it compiles a kernel of its own, for seconds.

Each process computes with one thread, as there are as many processes as cores: on small tiles, further threads mostly wait.
What is kept on disk lies in a folder of the run's."""

import atexit
import gc
import os
import re
import shutil
import tempfile

import pytest
from hypothesis import settings

from tests.sweeps import examples

gc.disable()  # what is imported and collected stays
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before NumPy and PyTorch are imported
    os.environ.setdefault(name, "1")
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["TMAPIPE_CACHE_DIR"] = tempfile.mkdtemp(prefix="tmapipe-tests-")
    atexit.register(shutil.rmtree, os.environ["TMAPIPE_CACHE_DIR"], ignore_errors=True)
settings.register_profile("sample", max_examples=examples(100), deadline=None)  # of tests that say no number
settings.load_profile("sample")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getoption("dist") != "load":  # another way was asked for
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByKernel(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            if nodeid.startswith("tests/gpu/"):
                return nodeid
            kernel = re.fullmatch(r"tests/emit/.*\[([^\]]*)\]", nodeid)
            return "kernel " + kernel[1].split("-")[0] if kernel else nodeid.partition("[")[0]

        def _pending_of(self, workload):
            """Forgets what is done: it would be counted again after each test."""
            for scope in [scope for scope, tests in workload.items() if all(tests.values())]:
                del workload[scope]
            return super()._pending_of(workload)

    config.option.loadscopereorder = False
    return ByKernel(config, log)


def pytest_collection_finish():
    """The garbage collector never goes over what the imports made, and seldom over what caches keep."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
    gc.enable()
