"""What lies in shared memory: slots, scratch, buffers of stores, and who may access it when."""

from tests.check.mistakes.form import Mistake
from tmapipe.check import Kind

MISTAKES = (
    Mistake(
        "threads write, no fence before the store",
        "copy",
        {
            """            slot.y.store(tile)
""": """            k.isa.fragments.write(slot.x.ref, k.full('x', 0.0))  # <- here
            k.isa.warp_sync()
            slot.y.store(tile)
""",
        },
        Kind.PROXY,
        "let store execute fence_proxy_async after its access to x",
    ),
    Mistake(
        "threads write, neither fence nor warp_sync",
        "copy",
        {
            """            slot.y.store(tile)
""": """            k.isa.fragments.write(slot.x.ref, k.full('x', 0.0))  # <- here
            slot.y.store(tile)
""",
        },
        Kind.RACE,
        "let store execute fence_proxy_async, then warp_sync, after its access to x",
    ),
    Mistake(
        "threads write, a fence but no warp_sync",
        "copy",
        {
            """            slot.y.store(tile)
""": """            k.isa.fragments.write(slot.x.ref, k.full('x', 0.0))  # <- here
            k.isa.fence_proxy_async()
            slot.y.store(tile)
""",
        },
        Kind.RACE,
        "let store execute warp_sync between its access to x and",
    ),
    Mistake(
        "no fence before the slot is loaded again",
        "sums",
        {
            """            with k.ring.consume() as slot:
                total = total + slot.x.read()""": """            slot = k.ring.wait()
            total = total + k.isa.fragments.read(slot.x.ref, total.layout)  # <- here
            k.isa.warp_sync()
            k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), slot.index)""",
        },
        Kind.PROXY,
        "let add execute fence_proxy_async after its access to x",
    ),
    Mistake(
        "no sync between the write and the read",
        "scratch",
        {
            "        k.sums.write(tp.math.row_sum(values))": "        k.sums.write(tp.math.row_sum(values))  # <- here",
            """        k.sync()
        values = values - k.sums.read(rows_of=values)""": "        values = values - k.sums.read(rows_of=values)  # <- here",
        },
        Kind.RACE,
        r"let work call k\.sync\(\) between the two",
    ),
    Mistake(
        "no sync between the read and the next write",
        "scratch",
        {
            """        k.sync()
        k.y.store(tile, values)""": """        k.sums.write(tp.math.row_sum(values))  # <- here
        k.sync()
        k.y.store(tile, values - k.sums.read(rows_of=values))""",
            "= values - k.sums.read(rows_of=values)": "= values - k.sums.read(rows_of=values)  # <- here",
        },
        Kind.RACE,
        r"let work call k\.sync\(\) between the two",
    ),
    Mistake(
        "a sync in one warp only",
        "scratch",
        {
            """        k.sums.write(tp.math.row_sum(values))
        k.sync()
""": """        if k.isa.warp % 2 == 0:
            k.sync()  # <- here
""",
            """        values = values - k.sums.read(rows_of=values)
        k.sync()
        k.y.store(tile, values)""": "        k.y.store(tile, values)  # <- here",
        },
        Kind.DEADLOCK,
        "let every warp of work execute the same: no branch that some take around k.sync",
    ),
    Mistake(
        "a sync with a role that does not call it",
        "scratch",
        {
            """        k.sums.write(tp.math.row_sum(values))
        k.sync()""": """        k.sums.write(tp.math.row_sum(values))
        k.sync(self.load)  # <- here""",
        },
        Kind.DEADLOCK,
        r"let load come to load\+work.threads .* as often as work does \(k.sync by both\)",
    ),
    Mistake(
        "whole rows read while others write theirs",
        "raw",
        {
            "            k.raw(double, updates=(slot.x,))": """            k.raw(double, reads=(slot.x,))  # <- here
            k.raw(double, updates=(slot.x,))  # <- here""",
        },
        Kind.RACE,
        r"let work call k\.sync\(\) between the two",
    ),
    Mistake(
        "raw code on a slot that is gone",
        "raw",
        {
            "            k.raw(double, updates=(slot.x,))": """            x = slot.x
        k.raw(double, updates=(x,))  # <- here""",
        },
        None,
        "Move the use into the block",
    ),
    Mistake(
        "raw code without a fence before the store",
        "raw",
        {
            "k.raw(double, updates=(slot.x,))": """uses = [(slot.x.ref, 'update')]
            k.isa.fragments.raw(double, None, uses, k.role)  # <- here
            k.isa.warp_sync()""",
        },
        Kind.PROXY,
        "let work execute fence_proxy_async after its access to x",
    ),
    Mistake(
        "held weights that nobody loads",
        "held",
        {
            "            slot.w.load(i=0, n=0)": "            pass",
            "        with k.weights.produce() as slot:": "        with k.weights.produce() as slot:  # <- here",
        },
        Kind.DEADLOCK,
        "start the load of w",
    ),
    Mistake(
        "held weights loaded twice",
        "held",
        {
            "            slot.w.load(i=0, n=0)": """            slot.w.load(i=0, n=0)
            slot.w.load(i=4, n=0)  # <- here""",
        },
        Kind.RACE,
        "load w once",
    ),
    Mistake(
        "held weights taken as slots of a ring",
        "held",
        {
            "values = slot.x.read() * k.weights.w.read()": """with k.weights.consume() as other:  # <- here
                values = slot.x.read() * other.w.read()""",
        },
        None,
        "weights",
    ),
    Mistake(
        "an operand is used after its slot",
        "gemm",
        {
            "                    acc.add(slot.a, slot.b)": """                    a, b = slot.a, slot.b
                acc.add(a, b)  # <- here""",
        },
        None,
        "block",
    ),
    Mistake(
        "a matmul that is not awaited",
        "products",
        {
            """                two.wait()
""": "",
            "k.right.accumulate() as second:": "k.right.accumulate() as second:  # <- here",
        },
        None,
        "a matmul that was started in it was awaited",
    ),
    Mistake(
        "sums stored before they are awaited",
        "turns",
        {
            """                product.wait()
""": """                k.d.store(tile, acc)  # <- here
                product.wait()
""",
        },
        None,
        "wait",
    ),
    Mistake(
        "two started matmuls hold two slots of a ring of one",
        "products",
        {
            "    others = tp.BarrierRing(2,": "    others = tp.BarrierRing(1,",
            """            with k.others.produce() as slot:
                slot.b.load(tile, k=step)
                slot.c.load(tile, k=step)
""": """            with k.others.produce() as slot:
                slot.b.load(tile, k=step)
                slot.c.load(tile, k=step)
            with k.others.produce() as slot:
                slot.b.load(tile, k=step)
                slot.c.load(tile, k=step)
""",
            """                with k.of_a.consume() as slot, k.others.consume() as other:
                    one = first.start(slot.a, other.b)
                    two = second.start(slot.a, other.c)
""": """                with k.of_a.consume() as slot:
                    with k.others.consume() as other:
                        one = first.start(slot.a, other.b)
                    with k.others.consume() as other:  # <- here
                        two = second.start(slot.a, other.c)
""",
        },
        Kind.DEADLOCK,
        "math holds 1 of the 1 slot of others and waits for one more: .*stages=2",
    ),
    Mistake(
        "teams without the number of slots of a tile",
        "teams",
        {
            """    def tile_slots(self, k, tile):
        return k.steps("a", "k")

""": "",
            "with k.ring.consume() as slot:": "with k.ring.consume() as slot:  # <- here",
        },
        Kind.SLOT_ORDER,
        r"tile_slots\(k, tile\)",
    ),
    Mistake(
        "teams whose stores take no turns",
        "teams",
        {
            """        with k.stores.turn():
            k.d.store(tile, acc)""": "        k.d.store(tile, acc)  # <- here",
        },
        Kind.RACE,
        r"in turns: .*Turnstile\(math, stores=\(d,\)\)",
    ),
    Mistake(
        "a turn inside the same turn",
        "teams",
        {
            """            with k.order.turn():
""": """            with k.order.turn(), k.order.turn():  # <- here
""",
        },
        None,
        "Leave the first turn",
    ),
    Mistake(
        "turns at some tiles only",
        "teams",
        {
            """        with k.mma.accumulate() as acc:
            with k.order.turn():""": """        if tile.m == 0:
            with k.order.turn():  # <- here
                pass
        with k.mma.accumulate() as acc:
            with k.order.turn():""",
        },
        Kind.DEADLOCK,
        "let every team of math take a turn of order equally often: here",
    ),
    Mistake(
        "the first turn waits for parity 0",
        "teams",
        {
            """        with k.mma.accumulate() as acc:
""": """        k.isa.mbarrier_wait(k.plan.barrier("order.turn"), k.role.team(k.isa.warp), 0)  # <- here
        with k.mma.accumulate() as acc:
""",
        },
        Kind.DEADLOCK,
        "team 0 goes first and waits for nobody: its waits begin with parity 1",
    ),
    Mistake(
        "one warpgroup takes one turn more",
        "turns",
        {
            "        k.d.store(tile, acc)": """        if k.isa.warp // 4 == 1:
            with k.order.turn():  # <- here
                pass
        k.d.store(tile, acc)""",
        },
        Kind.DEADLOCK,
        r"let every warpgroup of work take a turn of order equally often: here warpgroup 0 \d+ times, warpgroup 1",
    ),
    Mistake(
        "a load that starts past the end",
        "sums",
        {
            "slot.x.load(tile, s=s)": "slot.x.load(tile, s=s + 1)  # <- here",
        },
        Kind.OUT_OF_RANGE,
        "end with the tensor, or guard the load",
    ),
    Mistake(
        "one warp of four gives back registers",
        "raw",
        {
            """        with k.ring.consume() as slot:
            k.raw(""": """        if k.isa.warp % 4 == 0:
            k.isa.setmaxnreg(168, increase=False)  # <- here
        with k.ring.consume() as slot:
            k.raw(""",
        },
        Kind.REGISTERS,
        "let all four warps of the warpgroup set the same number",
    ),
    Mistake(
        "more registers than there are",
        "turns",
        {
            """        with k.mma.accumulate() as acc:
""": """        k.isa.setmaxnreg(256, increase=True)  # <- here
        with k.mma.accumulate() as acc:
""",
        },
        Kind.REGISTERS,
        r"give back registers first, or ask for \d+ at most",
    ),
    Mistake(
        "rows in several warps without scratch",
        "softmax",
        {
            """    across = tp.ReductionScratch(work)
""": "",
            "tp.math.exp(values - tp.math.row_max(values))": "tp.math.exp(values - tp.math.row_max(values))  # <- here",
        },
        None,
        r"ReductionScratch\(role",
    ),
    Mistake(
        "a reduction in one warp only",
        "softmax",
        {
            "values / tp.math.row_sum(values))": "values / tp.math.row_sum(values))  # <- here",
            "        values = tp.math.exp(values - tp.math.row_max(values))": """        if k.isa.warp % 2 == 0:
            values = tp.math.exp(values - tp.math.row_max(values))  # <- here""",
        },
        Kind.DEADLOCK,
        "let every warp of work execute the same: no branch",
    ),
    Mistake(
        "the writer of an operand takes a step more",
        "written",
        {
            """        for _ in range(k.steps("x", "k")):
            with k.ring.consume() as slot:
                values""": """        for _ in range(k.steps("x", "k") + 1):
            with k.ring.consume() as slot:  # <- here
                values""",
        },
        Kind.TRIP_COUNTS,
        "let double enter as many slots of ring as load and math",
    ),
    Mistake(
        "another role reads scratch without a sync",
        "held",
        {
            "    y = tp.TmaStoreStage": """    own = tp.Scratch(load, tile=(4, 64), dtype="fp32")
    y = tp.TmaStoreStage""",
            "slot.x.read() * k.weights.w.read()": """slot.x.read() * k.weights.w.read()
            k.own.write(values)  # <- here""",
        },
        None,
        "own",
    ),
    Mistake(
        "a matmul on a slot that was left",
        "products",
        {
            """                    one = first.start(slot.a, other.b)
                    two = second.start(slot.a, other.c)""": """                    one = first.start(slot.a, other.b)
                    a, c = slot.a, other.c
                two = second.start(a, c)  # <- here""",
        },
        None,
        "block",
    ),
)
