"""mbarriers by hand: parities, phases, counts and bytes."""

from tests.check.mistakes.form import Mistake
from tmapipe.check import Kind

MISTAKES = (
    Mistake(
        "waits for parity 0 of free slots at first",
        "copy",
        {
            """        with k.ring.produce() as slot:
            slot.x.load(tile)""": """        k.isa.mbarrier_wait(k.plan.barrier("ring.free"), 0, 0)  # <- here
        with k.ring.produce() as slot:
            slot.x.load(tile)""",
        },
        Kind.SLOT_ORDER,
        r"wait for ring\.free\[0\] with parity 1 there in the first lap",
    ),
    Mistake(
        "waits for the next phase of its own slot",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        with k.ring.consume() as slot:
            slot.y.store(tile)
            k.isa.mbarrier_wait(k.plan.barrier("ring.full"), slot.index, 1)  # <- here""",
        },
        Kind.SLOT_ORDER,
        r"ring\.full\[1\] with parity 0 there: the index goes around",
    ),
    Mistake(
        "a parity that never flips",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        barrier = k.plan.barrier("ring.full")
        k.isa.mbarrier_wait(barrier, tile.n % 3, 0)  # <- here
        slot = k.ring.wait()
        slot.y.store(tile)
        k.ring.release(slot)""",
        },
        Kind.SLOT_ORDER,
        r"ring\.full\[0\] with parity 1 there: .*the parity flips with each lap",
    ),
    Mistake(
        "a parity of 2",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        k.isa.mbarrier_wait(k.plan.barrier("ring.full"), 0, 2)  # <- here
        with k.ring.consume() as slot:
            slot.y.store(tile)""",
        },
        Kind.OUT_OF_RANGE,
        "laps & 1",
    ),
    Mistake(
        "a stage that the ring does not have",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        k.isa.mbarrier_wait(k.plan.barrier("ring.full"), 3, 0)  # <- here
        with k.ring.consume() as slot:
            slot.y.store(tile)""",
        },
        Kind.OUT_OF_RANGE,
        "stages - 1",
    ),
    Mistake(
        "the last role waits for the loads, not for the role before it",
        "doubled",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        slot = k.ring.wait()
        k.isa.mbarrier_wait(k.plan.barrier("ring.full"), slot.index, 0)  # <- here
        slot.y.store(tile)
        k.ring.release(slot)""",
        },
        Kind.TAIL_OWNER,
        "leave .* to work",
    ),
    Mistake(
        "hands a slot on and loads nothing",
        "copy",
        {
            """        with k.ring.produce() as slot:
            slot.x.load(tile)""": """        with k.ring.produce():  # <- here
            pass""",
        },
        Kind.DEADLOCK,
        "bytes armed that no load delivers: start the load of x in each slot",
    ),
    Mistake(
        "loads one of two parts",
        "parts",
        {
            """            for i in range(2):
                slot.x.load_part(i, tile)""": "            slot.x.load_part(0, tile)",
            "        with k.ring.produce() as slot:": "        with k.ring.produce() as slot:  # <- here",
        },
        Kind.DEADLOCK,
        "load all parts of each tile",
    ),
    Mistake(
        "loads one of two operands",
        "gemm",
        {
            """                slot.b.load(tile, k=step)
""": "",
            "            with k.ring.produce() as slot:": "            with k.ring.produce() as slot:  # <- here",
        },
        Kind.DEADLOCK,
        "start the load of b in each slot",
    ),
    Mistake(
        "loads the same part twice",
        "parts",
        {
            "                slot.x.load_part(i, tile)": "                slot.x.load_part(0, tile)  # <- here",
        },
        Kind.RACE,
        "each part of it once",
    ),
    Mistake(
        "loads twice into a slot",
        "copy",
        {
            """        with k.ring.produce() as slot:
            slot.x.load(tile)""": """        with k.ring.produce() as slot:
            slot.x.load(tile)
            slot.x.load(tile, n=0)  # <- here""",
        },
        Kind.RACE,
        "let load load x once a slot",
    ),
    Mistake(
        "arms more bytes",
        "copy",
        {
            """        with k.ring.produce() as slot:
            slot.x.load(tile)""": """        with k.ring.produce() as slot:
            slot.x.load(tile)
            k.isa.mbarrier_expect_tx(k.plan.barrier("ring.full"), slot.index, 1024)  # <- here""",
        },
        Kind.DEADLOCK,
        "arm 1024 bytes fewer",
    ),
    Mistake(
        "starts a load by hand that is not armed",
        "copy",
        {
            """        with k.ring.produce() as slot:
            slot.x.load(tile)""": """        with k.ring.produce() as slot:
            slot.x.load(tile)
            free = k.plan.load("x")
            k.isa.tma_load(free, (slot.index + 1) % 3, (0, 0), k.plan.barrier("ring.full"))  # <- here""",
        },
        Kind.TX_MISMATCH,
        "arm",
    ),
    Mistake(
        "32 lanes arrive",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        slot = k.ring.wait()
        slot.y.store(tile)
        k.isa.bulk_commit_group()
        k.isa.bulk_wait_group(0, read=True)
        k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), slot.index, lanes=32)  # <- here""",
        },
        Kind.SURPLUS_ARRIVAL,
        "one lane arrive",
    ),
    Mistake(
        "releases another slot",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        slot = k.ring.wait()
        slot.y.store(tile)
        k.isa.bulk_commit_group()
        k.isa.bulk_wait_group(0, read=True)
        k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), (slot.index + 1) % 3)  # <- here""",
        },
        Kind.SLOT_ORDER,
        r"let store arrive at the slot that it is in: .*slot\.index",
    ),
    Mistake(
        "releases before the store has read the slot",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        slot = k.ring.wait()
        slot.y.store(tile)  # <- here
        k.isa.bulk_commit_group()
        k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), slot.index)""",
        },
        Kind.STORE_SOURCE_REUSED,
        r"let store wait for the store's group \(bulk_wait_group\(..., read=True\)\) before it hands x on",
    ),
    Mistake(
        "waits for the store's read after the release",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        slot = k.ring.wait()
        slot.y.store(tile)  # <- here
        k.isa.bulk_commit_group()
        k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), slot.index)
        k.isa.bulk_wait_group(0, read=True)""",
        },
        Kind.STORE_SOURCE_REUSED,
        "before it hands x on",
    ),
    Mistake(
        "one CTA of a cluster waits for the other by itself",
        "gemm",
        {
            """        k.d.store(tile, acc)
""": """        k.d.store(tile, acc)
        k.isa.cluster_arrive()
        k.isa.cluster_wait()  # <- here
""",
        },
        Kind.DEADLOCK,
        "every warp of the cluster",
    ),
    Mistake(
        "a barrier of the CTA in one role",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        k.isa.cta_sync()  # <- here
        with k.ring.consume() as slot:
            slot.y.store(tile)""",
        },
        Kind.DEADLOCK,
        r"every warp of the CTA|k\.sync\(\)",
    ),
    Mistake(
        "the number of laps as a parity",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        full = k.plan.barrier("ring.full")
        k.isa.mbarrier_wait(full, tile.n % 3, tile.n // 3)  # <- here
        with k.ring.consume() as slot:
            slot.y.store(tile)""",
        },
        Kind.OUT_OF_RANGE,
        "laps & 1",
    ),
    Mistake(
        "a producer that waits for its consumer by hand",
        "copy",
        {
            """        with k.ring.produce() as slot:
            slot.x.load(tile)""": """        with k.ring.produce() as slot:
            slot.x.load(tile)
            k.isa.mbarrier_wait(k.plan.barrier("ring.free"), slot.index, 0)  # <- here""",
        },
        Kind.SLOT_ORDER,
        r"let load wait for ring\.free\[1\] with parity 1 there",
    ),
    Mistake(
        "two roles come to a sync and a slot in different orders",
        "doubled",
        {
            "            slot.x.write(slot.x.read() * 2)": """            k.sync(self.store)  # <- here
            slot.x.write(slot.x.read() * 2)""",
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        with k.ring.consume() as slot:  # <- here
            slot.y.store(tile)
        k.sync(self.work)""",
        },
        Kind.DEADLOCK,
        r"store for ring.ready1.* and work for work\+store.threads .* wait for each other: let one of them hand on",
    ),
    Mistake(
        "a barrier of the cluster in one role of it",
        "held",
        {
            "        k.y.store(tile, values)": """        k.isa.cluster_arrive()
        k.isa.cluster_wait()  # <- here
        k.y.store(tile, values)""",
        },
        Kind.DEADLOCK,
        "every warp of the cluster",
    ),
    Mistake(
        "comes to the cluster's barrier twice",
        "held",
        {
            "        k.y.store(tile, values)": """        k.isa.cluster_arrive()
        k.isa.cluster_arrive()  # <- here
        k.y.store(tile, values)""",
        },
        Kind.NAMED_BARRIER,
        "arrive and wait in turn",
    ),
    Mistake(
        "a role of one warp gives back registers",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        k.isa.setmaxnreg(40, increase=False)  # <- here
        with k.ring.consume() as slot:
            slot.y.store(tile)""",
        },
        Kind.REGISTERS,
        "warpgroup",
    ),
    Mistake(
        "one warp of four asks for registers",
        "raw",
        {
            """        with k.ring.consume() as slot:
            k.raw(""": """        k.isa.setmaxnreg(168, increase=False)
        if k.isa.warp % 4 == 1:
            k.isa.setmaxnreg(240, increase=True)  # <- here
        with k.ring.consume() as slot:
            k.raw(""",
        },
        Kind.REGISTERS,
        "four warps",
    ),
    Mistake(
        "a number of registers that is no multiple of 8",
        "turns",
        {
            """        with k.mma.accumulate() as acc:
""": """        k.isa.setmaxnreg(100, increase=False)  # <- here
        with k.mma.accumulate() as acc:
""",
        },
        Kind.REGISTERS,
        "steps of 8",
    ),
)
