"""Side by side with its peers: what tmapipe's kernels cost, and how that was measured.

    python -m benchmarks.gemm --help      GEMM, suites `gemm` (bf16, fp16) and `gemm_fp8`
    python -m benchmarks.copy --help      device-to-device copies, suite `copy`
    python -m benchmarks.sass --help      instructions of the mainloop, suite `sass`; needs no GPU

Run from the repository's root; the packages of the extra ``bench`` make tables and plots prettier. `measure` is the
method, `results` the common form of the results, `peers` whom tmapipe is measured against, `ours` what of tmapipe is
measured.
"""
