"""The same rings before TIRx's Synccheck and Racecheck and before this check: verdicts, and the best time of five.

python -m tests.oracle.tirx_rings ours
python -m tests.oracle.tirx_rings theirs     with tirx-harness installed, which needs Python 3.12 and a Rust compiler
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

SLIPS = {
    0: "right",
    1: "a slot is given back before its store has read it",
    2: "slots are not given back",
    3: "the first wait for a free slot has parity 0",
    4: "half of the bytes are armed",
    5: "the store does not wait for the load",
    6: "threads write the slot, without a fence before the store",
    7: "slots are not given back from the 14th tile on",
    8: "slots are given back to the own CTA only",
    9: "no wait for the peer's last arrivals",
    10: "a slot counts one CTA's arrival",
}
RUNS = ((6, 0), (32, 0), (6, 1), (6, 2), (6, 3), (6, 4), (6, 5), (6, 6), (12, 7), (17, 7))  # (tiles, slip)
MULTICAST = ((6, 0), (6, 8), (6, 9), (6, 10))


def program_of(tiles: int, slip: int, cluster: int) -> Any:
    """The ring as a program of the machine model."""
    from tests.check.corpus.parts import TILE, HandRing, Parts, program
    from tests.machine.slots import write_slot

    parts = Parts(cluster=cluster)
    parts.role("load", 1)
    use = parts.role("use", 1)
    ring = HandRing(parts, 3, free=1 if slip == 10 else cluster, peers=cluster)
    store = parts.store("y", ring.buffers["x"])
    mask = 0b11 if cluster > 1 else None

    def load(isa: Any) -> None:
        for turn in range(tiles):
            isa.mbarrier_wait(ring.free, turn % 3, (turn // 3 & 1) ^ (slip != 3))
            ring.arm(isa, turn, ring.nbytes // 2 if slip == 4 else None)
            ring.load(isa, turn, mask=mask)
        for turn in range(tiles, tiles + 3) if cluster > 1 and slip != 9 else ():
            ring.wait_free(isa, turn)

    def drain(isa: Any) -> None:
        for turn in range(tiles):
            if slip != 5:
                ring.wait_full(isa, turn)
            if slip == 6:
                write_slot(isa, ring.slot(turn), 1.0, use)
                isa.warp_sync()
            isa.tma_store(store, turn % 3, (turn * TILE[0], 0))
            isa.bulk_commit_group()
            if slip != 1:
                isa.bulk_wait_group(0, read=True)
            if slip != 2 and not (slip == 7 and turn >= 13):
                ring.release(isa, turn, None if slip == 8 else mask)
        isa.bulk_wait_group(0, read=False)

    return program(parts.plan(), {"load": load, "use": drain}, tiles)


def ours(tiles: int, slip: int, cluster: int) -> Callable[[], str]:
    from tests.oracle.one_run import check_program

    made = program_of(tiles, slip, cluster)

    def check() -> str:
        report = check_program(made.plan, made.entry, made.shapes)
        return ", ".join(sorted(kind.name for kind in report.kinds())) or "safe"

    return check


def theirs(name: str) -> Callable[[int, int, int], Callable[[], str]]:
    import numpy as np
    import tirx_harness

    from tests.oracle import tirx_kernels

    def of(tiles: int, slip: int, cluster: int) -> Callable[[], str]:
        kernel = tirx_kernels.multicast if cluster > 1 else tirx_kernels.ring
        x, y = np.arange(8192, dtype=np.float32), np.zeros(8192 * cluster, np.float32)

        def check() -> str:
            report = getattr(tirx_harness, name)(kernel, inputs={"tiles": tiles, "slip": slip, "x": x, "y": y})
            return ", ".join(finding.kind for finding in report.findings) or str(report.verdict)

        return check

    return of


def main() -> None:
    checks = {"check_program": ours} if sys.argv[1:] == ["ours"] else {n: theirs(n) for n in ("synccheck", "racecheck")}
    for name, of in checks.items():
        for cluster, runs in ((1, RUNS), (2, MULTICAST)):
            for tiles, slip in runs:
                check, seconds = of(tiles, slip, cluster), []
                for _ in range(5):
                    started = time.perf_counter()
                    verdict = check()
                    seconds.append(time.perf_counter() - started)
                print(
                    f"{name}: {SLIPS[slip]}, {tiles} tiles, {cluster} CTAs: {verdict}, {min(seconds):.4f} s", flush=True
                )


if __name__ == "__main__":
    main()
