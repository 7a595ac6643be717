"""Blocks of a cluster: one load for several of them, memory of the others, barriers across them."""

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def matmul_cluster(k, A, B, C, bm=128, bn=128, bk=64, stages=4):
    """``C = A B^T``: two blocks of neighbouring columns load half of A's tile each, for both of them."""
    columns = -(-B.blocks(0, bn) // 2) * 2  # whole clusters: a tile beyond B is empty
    m, n = k.grid(A.blocks(0, bm), columns, cluster=2)
    half = bm // 2
    sa = k.shared((stages, bm, bk), like=A, swizzle=128)
    sb = k.shared((stages, bn, bk), like=B, swizzle=128)
    ring = k.pipeline(stages, fills=1, uses=2, cluster=True)
    with k.warpgroup[0](registers=40) as load:
        for i in load.range(A.blocks(1, bk)):
            with ring.fill(i) as s:
                mine = A.tile(half, bk)[m * 2 + k.rank, i]
                load.copy_async(sa[s, k.rank * half : k.rank * half + half], mine, multicast=True)
                load.copy_async(sb[s], B.tile(bn, bk)[n, i])
    with k.warpgroup[1:3](registers=232) as wg:
        acc = wg.zeros((bm, bn), dtype="f32")
        for i in wg.range(A.blocks(1, bk)):
            with ring.use(i) as s:
                wg.gemm(acc, sa[s], sb[s])
        wg.copy(C.tile(bm, bn)[m, n], acc)
    k.sync(cluster=True)  # no block ends while another one may still arrive at its barriers


@tk.kernel
def row_sums(k, x, y, blocks=4):
    """``y = x.sum(1)``: each block of a cluster adds up a part of a row; the first one adds up the parts."""
    width = -(-x.shape[1] // blocks)
    row, part = k.grid(x.shape[0], blocks, cluster=blocks)
    sums = k.shared((blocks, 1), "f32", cluster=True)  # one number in the memory of each block
    with k.cta(threads=128) as cta:
        r = cta.load(x.tile(1, width)[row, part])
        cta.copy(sums[part], cta.sum(r)[0])
        cta.sync(cluster=True)
        with k.when(part < 1):
            cta.copy(y[row], cta.sum(cta.load(sums))[0])
        cta.sync(cluster=True)


def main() -> None:
    random = np.random.default_rng(0)
    A, B = (random.standard_normal(s).astype(np.float16) for s in ((200, 136), (300, 136)))
    C = np.zeros((200, 300), np.float16)
    print(matmul_cluster.check(A, B, C))
    matmul_cluster.run(A, B, C)
    print("largest difference", np.abs(C - A.astype(float) @ B.T.astype(float)).max())
    x, y = random.standard_normal((5, 1000)).astype(np.float32), np.zeros((5, 1), np.float32)
    print(row_sums.check(x, y))
    row_sums.run(x, y)
    print("largest difference", np.abs(y[:, 0] - x.sum(1, dtype=float)).max())


if __name__ == "__main__":
    main()
