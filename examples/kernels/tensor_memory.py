"""Products into tensor memory (sm_100a): by one block, and by two blocks of a cluster with a role for each step."""

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def matmul_tensor(k, A, B, C, bm=128, bn=128, bk=64, stages=3, part=32, precision=None):
    """``C = A B^T``: one warp loads, one multiplies, four write back."""
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
    sa = k.shared((stages, bm, bk), like=A, swizzle=128)
    sb = k.shared((stages, bn, bk), like=B, swizzle=128)
    acc = k.tensor_memory(bn, rows=bm)
    ring = k.pipeline(stages, products=True)
    done = k.barrier(1)
    with k.warpgroup[0] as wg:
        wg.wait(done, parity=0)
        wg.fence("tcgen05.after")
        for c in range(0, bn, part):
            values = wg.load(acc[:, c : c + part])
            wg.copy(C.tile(bm, part)[m, n * (bn // part) + c // part], values)
    with k.warp[4]() as load:
        for i in load.range(A.blocks(1, bk)):
            with ring.fill(i) as s:
                load.copy_async(sa[s], A.tile(bm, bk)[m, i])
                load.copy_async(sb[s], B.tile(bn, bk)[n, i])
    with k.warp[5]() as mma:
        for i in mma.range(A.blocks(1, bk)):
            with ring.use(i) as s:
                mma.gemm(acc, sa[s], sb[s], keep=i > 0, precision=precision)
        mma.commit("tcgen05", done)


@tk.kernel
def matmul_pair(k, A, B, C, bm=256, bn=256, bk=64, stages=4, part=32):
    """The same by two blocks: each loads half of the rows of both tiles, the first one multiplies for both."""
    m, n, _ = k.grid(A.blocks(0, bm), B.blocks(0, bn), 2, cluster=2)
    rows, columns = bm // 2, bn // 2
    sa = k.shared((stages, rows, bk), like=A, swizzle=128)
    sb = k.shared((stages, columns, bk), like=B, swizzle=128)
    acc = k.tensor_memory(bn)  # this block's rows of the product
    done = k.barrier(1)
    ring = k.pipeline(stages, pair=True)
    with k.warpgroup[0] as wg:
        wg.wait(done, parity=0)
        wg.fence("tcgen05.after")
        for c in range(0, bn, part):
            values = wg.load(acc[:, c : c + part])
            wg.copy(C.tile(rows, part)[m * 2 + k.rank, n * (bn // part) + c // part], values)
    with k.warp[4]() as load:
        for i in load.range(A.blocks(1, bk)):
            with ring.fill(i) as s:
                load.copy_async(sa[s], A.tile(rows, bk)[m * 2 + k.rank, i])
                load.copy_async(sb[s], B.tile(columns, bk)[n * 2 + k.rank, i])
    with k.warp[5]() as mma, k.when(k.rank < 1):
        for i in mma.range(A.blocks(1, bk)):
            with ring.use(i) as s:
                mma.gemm(acc, sa[s], sb[s], keep=i > 0, pair=True)
        mma.commit("tcgen05", done, blocks=(0, 1))


def main() -> None:
    random = np.random.default_rng(0)
    A, B = (random.standard_normal(s).astype(np.float16) for s in ((300, 136), (270, 136)))
    for kernel in (matmul_tensor, matmul_pair):
        C = np.zeros((300, 270), np.float16)
        print(kernel.check(A, B, C))
        kernel.run(A, B, C)
        print("largest difference", np.abs(C - A.astype(float) @ B.T.astype(float)).max())


if __name__ == "__main__":
    main()
