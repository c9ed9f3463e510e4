"""tmapipe's kernels beside their peers.

    python -m benchmarks.gemm --help      GEMM, suites `gemm` (bf16, fp16) and `gemm_fp8`
    python -m benchmarks.copy --help      device-to-device copies, suite `copy`
    python -m benchmarks.sass --help      instructions of the mainloop, suite `sass`; needs no GPU

Run from the repository's root. The packages of the extra ``bench`` make tables and plots prettier.
`tmapipe.tuning.compiling` has
the method, `results` the form of the results, `peers` the peers, and `ours` the variants of tmapipe.
"""
