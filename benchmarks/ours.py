"""tmapipe's own variants: the only file of the GEMM and copy benchmarks that knows the library's API."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from tmapipe.tuning import Candidate, Problem, ranked

# At the tile, cluster and stages of CUTLASS's example: to compare on equal terms.
SAME_AS_CUTLASS = Candidate("Gemm", (128, 256), (2, 1), (("stages", 4),))
PINNED = (str(SAME_AS_CUTLASS), f"fast {SAME_AS_CUTLASS}")
ONE_ROW = ("l2_hints", ("evict_last", "evict_first"))  # of tiles along m
PROMOTED = tuple(
    Candidate("Gemm", tile, cluster, (("promote", True), *hints))
    for tile, clusters, hints in (
        ((128, 128), ((2, 1), (1, 2)), ()),
        ((128, 176), ((2, 1),), ()),
        ((128, 192), ((2, 1),), ()),
        ((128, 208), ((2, 1),), ()),
        ((192, 128), ((2, 1), (1, 2)), ()),
        ((64, 128), ((2, 1),), (ONE_ROW,)),
        ((128, 64), ((1, 1),), (ONE_ROW,)),
    )
    for cluster in clusters
)
FEW, MANY = 16, 24  # of the candidates that `tmapipe.tuning` likes best

_built: dict[tuple[Candidate, str, str], Any] = {}


def prepare(a: Any, b: Any, out: Any, every: bool) -> dict[str, Callable[[], object]]:
    variants = gemm_variants(a, b, out, every=every)
    if a.element_size() == 1:
        problem = _problem(a, b, out)
        promoted = {f"promoted {c}": _launcher(made, a, b, out) for c, made in _build(problem, list(PROMOTED)).items()}
        return {f"fast {name}": run for name, run in variants.items()} | promoted
    return variants


def warm(problems: Iterable[tuple[Any, ...]], every: bool) -> None:
    """Compiles for *problems* (the arguments of `Problem`) all at once, which takes a fraction of the time."""
    by_types: dict[tuple[str, str], list[Problem]] = {}
    for problem in (Problem(*arguments) for arguments in problems):
        by_types.setdefault((problem.dtype.name, problem.out.name), []).append(problem)
    for alike in by_types.values():
        promoted = PROMOTED if alike[0].dtype.bytes == 1 else ()
        _build(alike[0], [*(c for problem in alike for c in candidates(problem, every)), *promoted])


def gemm_variants(
    a: Any, b: Any, out: Any, only: Iterable[str] | None = None, *, every: bool = False
) -> dict[str, Callable[[], object]]:
    """Name -> launch of ``out = a @ b.t()``. only: names to keep; every: many candidates rather than a few."""
    problem = _problem(a, b, out)
    wanted = [c for c in candidates(problem, every) if only is None or str(c) in set(only)]
    return {str(c): _launcher(found, a, b, out) for c, found in _build(problem, wanted).items()}


def copy_variants(x: Any, y: Any) -> dict[str, Callable[[], object]]:
    """Name -> launch of ``y = x`` for matrices with contiguous rows."""
    from torch import int32 as words

    from examples.stream_copy import vector_copy
    from tmapipe.schedules import Copy

    variants: dict[str, Callable[[], object]] = {}
    for hint in (None, "evict_last"):
        read = f", reads {hint}" if hint else ""
        for rows, width, ctas in ((4, 256, 10), (1, 1024, 10), (8, 256, 5), (2, 1024, 5)):
            copy = _made(Copy, (rows, width), 1, None, ctas, hint)
            variants[f"Copy {rows}x{width} words, {ctas} CTAs{read}"] = functools.partial(copy, x, out=y)
        if x.is_contiguous() and y.is_contiguous():
            pieces = [tensor.view(-1).view(words) for tensor in (x, y)]
            name = f"vector_copy 1024 words, 10 CTAs{read}"
            variants[name] = functools.partial(_made(vector_copy, 1024, 10, hint), pieces[0], out=pieces[1])
    return variants


def gemm_cubin(tile: tuple[int, int, int], cluster: tuple[int, int], stages: int | None) -> bytes:
    """The cubin of the bf16 GEMM at this tile; needs no GPU."""
    from tmapipe.schedules import Gemm

    return Gemm(tile=tile, cluster=cluster, stages=stages).compile({"a": "bf16", "b": "bf16", "d": "bf16"}).cubin


def _problem(a: Any, b: Any, out: Any) -> Problem:
    return Problem.of(a, b, str(out.dtype).removeprefix("torch."))


def candidates(problem: Problem, every: bool) -> list[Candidate]:
    best = [candidate for candidate, _ in ranked(problem, most=MANY if every else FEW)]
    return list(dict.fromkeys([*best, SAME_AS_CUTLASS]))


def _build(problem: Problem, candidates: list[Candidate]) -> dict[Candidate, Any]:
    """A schedule of each candidate, compiled once a process; or what went wrong."""
    from tmapipe.tuning.compiling import build_all

    types = problem.dtype.name, problem.out.name
    new = [c for c in dict.fromkeys(candidates) if (c, *types) not in _built]
    if new:
        schedules, errors = build_all(problem, new)
        _built.update({(c, *types): schedules.get(c) or RuntimeError(errors[c]) for c in new})
    return {c: _built[(c, *types)] for c in candidates}


@functools.cache
def _made(make: Any, *arguments: Any) -> Any:
    return make(*arguments)


def _launcher(schedule: Any, a: Any, b: Any, out: Any) -> Callable[[], object]:
    if not isinstance(schedule, Exception):
        return functools.partial(schedule, a, b, out=out)

    def fail() -> None:
        raise schedule

    return fail
