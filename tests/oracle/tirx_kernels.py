"""Two rings in TIRx's script, with one slip each if asked for: for `tests.oracle.tirx_rings`. Needs tirx-harness.

Three slots of 1 KiB. Warp 0 loads each tile, warp 1 stores it. In `multicast`, each of two CTAs loads half of it for both.
"""

from tvm.ir.type import PointerType, PrimType
from tvm.script import tirx as T


@T.prim_func
def ring(tiles: T.int32, slip: T.int32, x: T.Buffer((8192,), "float32"), y: T.Buffer((8192,), "float32")):
    """slip: a number of `tests.oracle.tirx_rings.SLIPS`; 0: none."""
    T.device_entry()
    _cta = T.cta_id([1])
    warp = T.warp_id([2])
    lane = T.lane_id([32])
    slots = T.alloc_buffer((3, 256), "float32", scope="shared")
    full = T.alloc_buffer((3,), "uint64", scope="shared")
    free = T.alloc_buffer((3,), "uint64", scope="shared")
    i = T.local_scalar("int32")
    if warp == 0:
        if lane == 0:
            i = 0
            while i < 3:
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([i]), 1)
                T.ptx.mbarrier.init.shared.b64(free.ptr_to([i]), 1)
                i = i + 1
            T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cta_sync()
    if lane == 0:
        i = 0
        if warp == 0:
            while i < tiles:
                if slip == 3:
                    T.cuda.mbarrier_wait(free.ptr_to([i % 3]), (i // 3) % 2)
                else:
                    T.cuda.mbarrier_wait(free.ptr_to([i % 3]), (i // 3 + 1) % 2)
                if slip == 4:
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([i % 3]), 512)
                else:
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([i % 3]), 1024)
                T.ptx["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"](
                    slots.ptr_to([i % 3, 0]), x.ptr_to([i * 256]), T.cast(1024, "uint32"), full.ptr_to([i % 3])
                )
                i = i + 1
        else:
            while i < tiles:
                if slip != 5:
                    T.cuda.mbarrier_wait(full.ptr_to([i % 3]), (i // 3) % 2)
                if slip == 6:
                    slots[i % 3, 0] = T.float32(1)
                T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
                    y.ptr_to([i * 256]), slots.ptr_to([i % 3, 0]), T.cast(1024, "uint32")
                )
                T.ptx.cp.async_.bulk.commit_group()
                if slip != 1:
                    T.ptx.cp.async_.bulk.wait_group.read(0)
                if slip != 2:
                    if slip == 7:
                        if i < 13:
                            T.ptx.mbarrier.arrive.shared.b64(free.ptr_to([i % 3]))
                    else:
                        T.ptx.mbarrier.arrive.shared.b64(free.ptr_to([i % 3]))
                i = i + 1
            T.ptx.cp.async_.bulk.wait_group(0)


@T.prim_func
def multicast(tiles: T.int32, slip: T.int32, x: T.Buffer((8192,), "float32"), y: T.Buffer((16384,), "float32")):
    """slip: 8, 9, 10 or 0, as above."""
    T.device_entry()
    _cluster = T.cluster_id([1])
    cta = T.cta_id_in_cluster([2])
    warp = T.warp_id([2])
    lane = T.lane_id([32])
    slots = T.alloc_buffer((3, 256), "float32", scope="shared")
    full = T.alloc_buffer((3,), "uint64", scope="shared")
    free = T.alloc_buffer((3,), "uint64", scope="shared")
    i = T.local_scalar("int32")
    bits = T.alloc_local((1,), "uint64")
    T.ptx.mapa.u64(bits[0], free.ptr_to([0]), T.uint32(1 - cta))
    peer: T.let[T.Var(name="peer", ty=PointerType(PrimType("uint64"), "shared"))] = T.reinterpret(
        PointerType(PrimType("uint64"), "shared"), bits[0]
    )
    remote = T.decl_buffer((3,), "uint64", scope="shared", data=peer)
    if warp == 0:
        if lane == 0:
            i = 0
            while i < 3:
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([i]), 1)
                if slip == 10:
                    T.ptx.mbarrier.init.shared.b64(free.ptr_to([i]), 1)
                else:
                    T.ptx.mbarrier.init.shared.b64(free.ptr_to([i]), 2)
                i = i + 1
            T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cluster_sync()
    if lane == 0:
        i = 0
        if warp == 0:
            while i < tiles:
                T.cuda.mbarrier_wait(free.ptr_to([i % 3]), (i // 3 + 1) % 2)
                T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([i % 3]), 1024)
                T.ptx["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"](
                    slots.ptr_to([i % 3, cta * 128]),
                    x.ptr_to([i * 256 + cta * 128]),
                    512,
                    full.ptr_to([i % 3]),
                    T.uint16(3),
                )
                i = i + 1
            if slip != 9:
                i = 0
                while i < 3:
                    T.cuda.mbarrier_wait(free.ptr_to([(tiles + i) % 3]), ((tiles + i) // 3 + 1) % 2)
                    i = i + 1
        else:
            while i < tiles:
                T.cuda.mbarrier_wait(full.ptr_to([i % 3]), (i // 3) % 2)
                T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](
                    y.ptr_to([cta * 8192 + i * 256]), slots.ptr_to([i % 3, 0]), T.cast(1024, "uint32")
                )
                T.ptx.cp.async_.bulk.commit_group()
                T.ptx.cp.async_.bulk.wait_group.read(0)
                T.ptx.mbarrier.arrive.shared.b64(free.ptr_to([i % 3]))
                if slip != 8:
                    T.ptx.mbarrier.arrive.release.cluster.shared__cluster.b64(remote.ptr_to([i % 3]))
                i = i + 1
            T.ptx.cp.async_.bulk.wait_group(0)
