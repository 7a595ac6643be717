"""``C = A B^T`` twice: as operators, with everything left to dispatch, and with every role and barrier written out."""

import numpy as np

from tileweave import kernel as tk
from tileweave.kernel import grouped


@tk.kernel
def matmul(k, A, B, C, bm=128, bn=256, bk=64, stages=4):
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn), order=grouped(8))
    with k.cta(warpgroups=3) as cta:
        acc = cta.zeros((bm, bn), dtype="f32")
        for i in cta.range(A.blocks(1, bk), stages=stages):
            cta.gemm(acc, A.tile(bm, bk)[m, i], B.tile(bn, bk)[n, i])
        cta.copy(C.tile(bm, bn)[m, n], acc)


@tk.kernel
def matmul_roles(k, A, B, C, bm=128, bn=256, bk=64, stages=4):
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn), order=grouped(8))
    sa = k.shared((stages, bm, bk), like=A, swizzle=128)
    sb = k.shared((stages, bn, bk), like=B, swizzle=128)
    ring = k.pipeline(stages, fills=1, uses=2)
    with k.warpgroup[0](registers=40) as load:
        for i in load.range(A.blocks(1, bk)):
            with ring.fill(i) as s:
                load.copy_async(sa[s], A.tile(bm, bk)[m, i])
                load.copy_async(sb[s], B.tile(bn, bk)[n, i])
    with k.warpgroup[1:3](registers=232) as wg:
        acc = wg.zeros((bm, bn), dtype="f32")
        for i in wg.range(A.blocks(1, bk)):
            with ring.use(i) as s:
                wg.gemm(acc, sa[s], sb[s])
        wg.copy(C.tile(bm, bn)[m, n], acc)


def main() -> None:
    random = np.random.default_rng(0)
    A, B = (random.standard_normal(s).astype(np.float16) for s in ((200, 130), (300, 130)))
    for kernel in (matmul, matmul_roles):
        C = np.zeros((200, 300), np.float16)
        print(kernel.check(A, B, C))
        kernel.run(A, B, C)
        print("largest difference", np.abs(C - A.astype(float) @ B.T.astype(float)).max())


if __name__ == "__main__":
    main()
