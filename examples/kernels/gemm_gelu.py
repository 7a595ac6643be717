"""A product with its epilogue: bias and GELU on the accumulator, before anything is written."""

from math import erf, sqrt

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def gemm_gelu(k, A, B, bias, C, bm=64, bn=128, bk=64, stages=3):
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
    with k.cta(warpgroups=2) as cta:
        acc = cta.zeros((bm, bn))
        for i in cta.range(A.blocks(1, bk), stages=stages):
            cta.gemm(acc, A.tile(bm, bk)[m, i], B.tile(bn, bk)[n, i])
        h = acc + cta.load(bias.tile(1, bn)[0, n])
        cta.store(C.tile(bm, bn)[m, n], h * 0.5 * (cta.erf(h * sqrt(0.5)) + 1))


def expected(A: np.ndarray, B: np.ndarray, bias: np.ndarray) -> np.ndarray:
    h = A.astype(float) @ B.T.astype(float) + bias.astype(float)
    return h * 0.5 * (1 + np.vectorize(erf)(h * sqrt(0.5)))


def main() -> None:
    random = np.random.default_rng(0)
    A, B, bias = (random.standard_normal(s).astype(np.float16) for s in ((100, 70), (150, 70), (1, 150)))
    C = np.zeros((100, 150), np.float16)
    gemm_gelu.run(A, B, bias, C)
    print("largest difference", np.abs(C - expected(A, B, bias)).max())


if __name__ == "__main__":
    main()
