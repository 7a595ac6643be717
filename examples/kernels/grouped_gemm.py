"""Products of groups of rows, each group with its own matrix, as in a mixture of experts; group sizes are data."""

from itertools import pairwise

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def grouped_gemm(k, A, B, starts, C, bm=32, bn=64, bk=64):
    groups, rows = B.shape[0], A.shape[0]
    g, t, n = k.grid(groups, A.blocks(0, bm), B.blocks(1, bn))
    with k.cta(threads=128) as cta:
        first = cta.read(starts[g], below=rows + 1)
        last = cta.read(starts[g + 1], below=rows + 1)
        with k.when(first + t * bm < last):
            here = A[first + t * bm : first + t * bm + bm].limit(0, last - first - t * bm)
            there = C[first + t * bm : first + t * bm + bm].limit(0, last - first - t * bm)
            acc = cta.zeros((bm, bn))
            for i in cta.range(A.blocks(1, bk)):
                cta.gemm(acc, here.tile(bm, bk)[0, i], B[g].tile(bn, bk)[n, i])
            cta.store(there.tile(bm, bn)[0, n], acc)


def expected(A: np.ndarray, B: np.ndarray, starts: np.ndarray) -> np.ndarray:
    parts = [A[a:b].astype(float) @ B[g].T.astype(float) for g, (a, b) in enumerate(pairwise(starts))]
    return np.concatenate(parts)


def main() -> None:
    random = np.random.default_rng(0)
    starts = np.array([0, 5, 5, 70, 100], np.int32)
    A, B = (random.standard_normal(s).astype(np.float16) for s in ((100, 70), (4, 90, 70)))
    C = np.zeros((100, 90), np.float16)
    grouped_gemm.run(A, B, starts, C)
    print("largest difference", np.abs(C - expected(A, B, starts)).max())


if __name__ == "__main__":
    main()
