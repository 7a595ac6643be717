"""An FP8 product with a scale per block of 128 along K: each block's product is scaled before it is added, in f32.

A has a scale per row and block, B one per 128 rows and block; the scales are f32, or powers of two in 8 bits (e8m0).
"""

import ml_dtypes
import numpy as np

from tileweave import kernel as tk


@tk.kernel
def fp8_gemm(k, A, B, scale_a, scale_b, C, bm=64, bn=128, bk=128):
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
    with k.cta(warpgroups=1) as cta:
        acc = cta.zeros((bm, bn))
        for i in cta.range(A.blocks(1, bk)):
            part = cta.dot(A.tile(bm, bk)[m, i], B.tile(bn, bk)[n, i])
            acc += part * cta.load(scale_a.tile(bm, 1)[m, i]) * cta.load(scale_b.tile(1, 1)[n, i])
        cta.store(C.tile(bm, bn)[m, n], acc)


def expected(A: np.ndarray, B: np.ndarray, scale_a: np.ndarray, scale_b: np.ndarray) -> np.ndarray:
    wide_a, wide_b = A.astype(float), B.astype(float)
    columns = np.arange(A.shape[1]) // 128
    wide_a *= scale_a.astype(float)[:, columns]
    wide_b *= scale_b.astype(float)[np.arange(B.shape[0]) // 128][:, columns]
    return wide_a @ wide_b.T


def arguments(m: int, n: int, depth: int, scales: type = np.float32) -> list[np.ndarray]:
    random, blocks = np.random.default_rng(0), -(-depth // 128)
    A, B = (random.standard_normal((rows, depth)).astype(ml_dtypes.float8_e4m3fn) for rows in (m, n))
    shapes = (m, blocks), (-(-n // 128), blocks)
    scale_a, scale_b = ((2.0 ** random.integers(-3, 4, shape)).astype(scales) for shape in shapes)
    return [A, B, scale_a, scale_b, np.zeros((m, n), np.float32)]


def main() -> None:
    arrays = arguments(100, 200, 300)
    fp8_gemm.run(*arrays)
    print("largest difference", np.abs(arrays[-1] - expected(*arrays[:-1])).max())


if __name__ == "__main__":
    main()
