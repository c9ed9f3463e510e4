"""Raw CuTe DSL in a role compiles into the kernel, between the fences that the ring derives."""

from tests.raw_rows import Doubled


def test_raw_code_is_in_the_kernel():
    compiled = Doubled().compile({"x": "bf16", "y": "bf16"})
    assert "ld.shared" in compiled.ptx and "st.shared" in compiled.ptx
    assert "fence.proxy.async.shared::cta" in compiled.ptx
    assert compiled.resources.spill_bytes == 0
