"""These tests launch kernels. Without a CUDA device of the planned architecture they are skipped, and say why."""

import pytest

torch = pytest.importorskip("torch")


def _reason() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device here (torch.cuda.is_available() is False)"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) != (9, 0):
        return f"the device is sm_{major}{minor}, the shipped schedules with wgmma are for sm_90"
    return None


REASON = _reason()


class _Skipped(pytest.Module):
    """A file of tests that is not read, which takes seconds. `tests/unit/test_imports.py` imports it all the same."""

    def collect(self):
        pytest.skip(REASON, allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    return _Skipped.from_parent(parent, path=module_path) if REASON else None


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in str(item.path):
            item.add_marker(pytest.mark.gpu)
