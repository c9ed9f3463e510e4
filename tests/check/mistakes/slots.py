"""How often roles enter the slots of rings, leave them, and in which order."""

from tests.check.mistakes.form import Mistake
from tmapipe.check import Kind

MISTAKES = (
    Mistake(
        "consumes twice a tile",
        "copy",
        {
            """            slot.y.store(tile)
""": """            slot.y.store(tile)
        with k.ring.consume() as slot:  # <- here
            slot.y.store(tile)
""",
        },
        Kind.TRIP_COUNTS,
        "let load and store enter as many slots of ring for each tile",
    ),
    Mistake(
        "loops in one role only",
        "copy",
        {
            """            slot.x.load(tile)
""": """            slot.x.load(tile)

        for n in range(1, k.steps("x", "n")):
            with k.ring.produce() as slot:  # <- here
                slot.x.load(tile, n=n)
""",
        },
        Kind.TRIP_COUNTS,
        "enter as many slots of ring for each tile, in loops of the same count",
    ),
    Mistake(
        "a loop that begins at 1",
        "sums",
        {
            "with k.ring.produce() as slot:": "with k.ring.produce() as slot:  # <- here",
            """        for _ in range(k.steps("x", "s")):
            with k.ring.consume() as slot:""": """        for _ in range(1, k.steps("x", "s")):
            with k.ring.consume() as slot:  # <- here""",
        },
        Kind.TRIP_COUNTS,
        "let load and add enter as many slots of ring",
    ),
    Mistake(
        "a constant in place of the number of steps",
        "sums",
        {
            """        for _ in range(k.steps("x", "s")):
            with k.ring.consume() as slot:""": """        for _ in range(4):
            with k.ring.consume() as slot:  # <- here""",
        },
        Kind.TRIP_COUNTS,
        "let load and add enter as many slots of ring",
    ),
    Mistake(
        "the middle role leaves out a tile",
        "doubled",
        {
            """    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:""": """    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:  # <- here""",
            """        with k.ring.consume() as slot:
            slot.x.write(slot.x.read() * 2)""": """
        if tile.m > 0:
            with k.ring.consume() as slot:
                slot.x.write(slot.x.read() * 2)""",
        },
        Kind.TRIP_COUNTS,
        "let work enter as many slots of ring as load and store for each tile",
    ),
    Mistake(
        "one role goes to the diagonal, the other before it",
        "causal",
        {
            "with k.ring.produce() as slot:": "with k.ring.produce() as slot:  # <- here",
            """        for _ in range(tile.m + 1):
            with k.ring.consume() as slot:""": """        for _ in range(tile.m):
            with k.ring.consume() as slot:  # <- here""",
        },
        Kind.TRIP_COUNTS,
        "let load and add enter as many slots of ring",
    ),
    Mistake(
        "the wrong entry of a table",
        "groups",
        {
            """        for _ in range(k.begins.entry(tile.g + 1) - k.begins.entry(tile.g)):
            with k.ring.consume() as slot:""": """        for _ in range(k.begins.entry(tile.g + 1)):
            with k.ring.consume() as slot:  # <- here""",
        },
        Kind.TRIP_COUNTS,
        "let load and work enter as many slots of ring",
    ),
    Mistake(
        "CTAs of a cluster load different numbers of steps",
        "gemm",
        {
            "with k.ring.consume() as slot:": "with k.ring.consume() as slot:  # <- here",
            """        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:""": """        for step in range(k.steps("a", "k") - k.isa.cta_rank):
            with k.ring.produce() as slot:  # <- here""",
        },
        Kind.TRIP_COUNTS,
        "let load and math enter as many slots of ring",
    ),
    Mistake(
        "one of two rings is left out",
        "feedback",
        {
            """        with k.back.consume() as slot:
            k.y.store(tile, values + slot.b.read())""": "        k.y.store(tile, values)",
            "    def ask(self, k, tile):": "    def ask(self, k, tile):  # <- here",
        },
        Kind.TRIP_COUNTS,
        "let right and left enter as many slots of back",
    ),
    Mistake(
        "never releases",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        slot = k.ring.wait()  # <- here
        slot.y.store(tile)""",
        },
        Kind.MISSING_ARRIVAL,
        "let store leave each slot: .*`release` after `wait`",
    ),
    Mistake(
        "the middle role never releases",
        "doubled",
        {
            """        with k.ring.consume() as slot:
            slot.x.write(slot.x.read() * 2)""": """        slot = k.ring.wait()  # <- here
        slot.x.write(slot.x.read() * 2)""",
        },
        Kind.MISSING_ARRIVAL,
        "let work leave each slot",
    ),
    Mistake(
        "releases in one branch only",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        slot = k.ring.wait()  # <- here
        slot.y.store(tile)
        if tile.n == 0:
            k.ring.release(slot)""",
        },
        Kind.MISSING_ARRIVAL,
        "let store leave each slot",
    ),
    Mistake(
        "acquires and never commits what threads wrote",
        "feedback",
        {
            """        with k.there.produce() as slot:
            slot.a.write(values)""": """        slot = k.there.acquire()  # <- here
        slot.a.write(values)""",
        },
        Kind.MISSING_ARRIVAL,
        "let left leave each slot: .*produce.*`commit` after `acquire`",
    ),
    Mistake(
        "signals once more by hand",
        "copy",
        {
            """            slot.y.store(tile)
""": """            slot.y.store(tile)
            k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), slot.index)  # <- here
""",
        },
        Kind.SURPLUS_ARRIVAL,
        "once a slot: leaving the slot does it",
    ),
    Mistake(
        "rings in another order",
        "pairs",
        {
            "with k.left.produce() as slot:": "with k.left.produce() as slot:  # <- here",
            """        for _ in range(2):
            with k.left.consume() as slot:
                total = total + slot.a.read()
            with k.right.consume() as slot:
                total = total + slot.b.read()
""": """        for _ in range(2):
            with k.right.consume() as slot:  # <- here
                total = total + slot.b.read()
        for _ in range(2):
            with k.left.consume() as slot:
                total = total + slot.a.read()
""",
        },
        Kind.DEADLOCK,
        "wait for each other: let both take the slots of left and right in one order",
    ),
    Mistake(
        "two slots held of a ring of one",
        "pairs",
        {
            """        for _ in range(2):
            with k.left.consume() as slot:
                total = total + slot.a.read()
            with k.right.consume() as slot:
                total = total + slot.b.read()
""": """        with k.left.consume() as one, k.left.consume() as two:  # <- here
            total = one.a.read() + two.a.read()
        for _ in range(2):
            with k.right.consume() as slot:
                total = total + slot.b.read()
""",
        },
        Kind.DEADLOCK,
        "add holds 1 of the 1 slot of left and waits for one more: .*stages=2",
    ),
    Mistake(
        "waits for the answer before it asks",
        "feedback",
        {
            "with k.there.consume() as slot:": "with k.there.consume() as slot:  # <- here",
            """        with k.there.produce() as slot:
            slot.a.write(values)
        with k.back.consume() as slot:
            k.y.store(tile, values + slot.b.read())
""": """        with k.back.consume() as slot:  # <- here
            k.y.store(tile, values + slot.b.read())
        with k.there.produce() as slot:
            slot.a.write(values)
""",
        },
        Kind.DEADLOCK,
        "left for back.* and right for there.* wait for each other: let one of them hand on",
    ),
    Mistake(
        "the wrong end of the ring",
        "copy",
        {
            "with k.ring.consume() as slot:": "with k.ring.produce() as slot:  # <- here",
        },
        None,
        r"Use consume\(\)",
    ),
    Mistake(
        "stores after the slot",
        "copy",
        {
            """            slot.y.store(tile)
""": """            pass
        slot.y.store(tile)  # <- here
""",
        },
        None,
        "Move the use into the block",
    ),
    Mistake(
        "releases twice",
        "copy",
        {
            """        with k.ring.consume() as slot:
            slot.y.store(tile)""": """        slot = k.ring.wait()
        slot.y.store(tile)
        k.ring.release(slot)
        k.ring.release(slot)  # <- here""",
        },
        None,
        "Leave each slot once",
    ),
    Mistake(
        "a counter in the schedule",
        "causal",
        {
            """        total = k.full("y", 0.0)
""": """        self.seen = getattr(self, "seen", 0) + 1  # <- here
        total = k.full("y", 0.0)
""",
        },
        None,
        "`.seen` of an object of Program is set",
    ),
    Mistake(
        "more stores pending than there are slots",
        "copy",
        {
            "TmaStoreStage(source=x)": "TmaStoreStage(source=x, stages=4)",
        },
        None,
        "holds back 4 slots while it reads the next, so 5 or more are needed.*use more stages",
    ),
    Mistake(
        "acquires four slots of three before it loads",
        "copy",
        {
            """        with k.ring.produce() as slot:
            slot.x.load(tile)
""": """        slots = [k.ring.acquire() for _ in range(4)]  # <- here
        for slot in slots:
            slot.x.load(tile)
        for slot in slots:
            k.ring.commit(slot)
""",
            """        with k.ring.consume() as slot:
            slot.y.store(tile)
""": """        for _ in range(4):
            with k.ring.consume() as slot:
                slot.y.store(tile)
""",
        },
        Kind.DEADLOCK,
        "load has acquired all 3 slots of ring and waits for one more .* stages=4",
    ),
    Mistake(
        "a CTA that sends nothing",
        "rotated",
        {
            "            slot.z.send(": "            if slot.z.rank == 0:\n                slot.z.send(",
            "with k.ring.consume() as slot:\n            if": "with k.ring.consume() as slot:  # <- here\n            if",
        },
        Kind.DEADLOCK,
        "no CTA of the cluster sends: let send of every CTA send z once for each slot",
    ),
    Mistake(
        "a team that takes no turn",
        "teams",
        {
            """            with k.order.turn():
                for _ in range(k.steps("a", "k")):
                    with k.ring.consume() as slot:
                        acc.add(slot.a, slot.b)
""": """            for _ in range(k.steps("a", "k")):
                with k.ring.consume() as slot:  # <- here
                    acc.add(slot.a, slot.b)
""",
        },
        Kind.LAPPED_WAIT,
        r"let each team of math take its turn before it waits, as `with k\.order\.turn",
    ),
)
