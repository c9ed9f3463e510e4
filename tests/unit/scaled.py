"""Functions that make schedules, for `test_autotune`: in a file of their own, since processes that compile import it, and need
no torch."""

import tmapipe as tp


def scaled_of(rows, stages=2, columns=64):
    class Scaled(tp.Schedule):
        """y = 2 x."""

        relations = (tp.Dim("n", size=columns),)
        load, work = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(stages, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(rows, columns), ring=ring)
        y = tp.TmaStoreStage("m n", tile=(rows, columns), role=work)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def scale(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
            k.y.store(tile, 2 * values)

    return Scaled()


def crowded_of(rows):
    """Reads a tile whose numbers do not fit into the registers of as many warps."""

    class Crowded(type(scaled_of(rows, stages=1))):
        idle = tp.Role(warps=6)
        tiles = tp.tiles.GridTiles(ctas=4)

        @idle.jit
        def nothing(self, k, tile):
            pass

    return Crowded()
