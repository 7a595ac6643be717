"""GEMM and reduce-scatter in one kernel on a mesh: each device signals a tile, its owner sums it when all have.

A and B are sharded along K (a list of arrays, one per device), C along its rows. Each device works on the rows that it
owns last, so that the others find their tiles early.
"""

import numpy as np

from tileweave import kernel as tk


@tk.kernel(mesh={"gpu": 4})
def gemm_rs(k, A, B, C, bm=128, bn=256, bk=64):
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn), order="owner_last")
    P = k.symmetric((4, A.shape[0], B.shape[0]), dtype="f32", layout="4:1@gpu, ..")
    with k.cta(warpgroups=3) as cta:
        acc = cta.zeros((bm, bn), dtype="f32")
        for i in cta.range(A.blocks(1, bk), stages=4):
            cta.gemm(acc, A.tile(bm, bk)[m, i], B.tile(bn, bk)[n, i])
        cta.copy(P[k.gpu].tile(bm, bn)[m, n], acc)
        cta.signal(P, m, n)
        with k.when(k.owns(C.tile(bm, bn)[m, n])) as mine:
            mine.wait(P, m, n)
            mine.sum(C.tile(bm, bn)[m, n], P, axis=0)


def main() -> None:
    random = np.random.default_rng(0)
    A, B = ([random.standard_normal((rows, 70)).astype(np.float16) for _ in range(4)] for rows in (256, 130))
    C = np.zeros((256, 130), np.float32)
    gemm_rs.run(A, B, tk.sharded(C, "gpu", 0, 4), bm=64, bn=64)
    exact = sum(a.astype(float) @ b.T.astype(float) for a, b in zip(A, B, strict=True))
    print("largest difference", np.abs(C - exact).max())


if __name__ == "__main__":
    main()
