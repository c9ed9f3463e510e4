"""How pytest-xdist shares the tests out: all tests of one compiled kernel to one process, so that each is compiled once; and
all cases of one unit test, which are quick, since each portion costs the process that hands them out some milliseconds.

Each process computes with one thread, as there are as many processes as cores: on small tiles, further threads mostly wait."""

import gc
import os
import re

import pytest

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before NumPy and PyTorch are imported
    os.environ.setdefault(name, "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getoption("dist") != "load":  # another way was asked for
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByKernel(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            kernel = re.fullmatch(r"tests/emit/.*\[([^\]]*)\]", nodeid)
            if kernel:
                return "kernel " + kernel[1].split("-")[0]
            return nodeid.partition("[")[0] if nodeid.startswith("tests/unit/") else nodeid

    return ByKernel(config, log)


def pytest_collection_finish():
    """What the imports made stays: the garbage collector need not go over it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
