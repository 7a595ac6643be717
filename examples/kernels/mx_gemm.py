"""An FP8 product with a scale (e8m0) for every 32 terms of a row, in tensor memory (sm_100a): ``kind::mxf8f6f4``.

One warp loads tiles and their scales, one multiplies, four write back. The scales of a stage lie in shared memory as
tensor memory takes them, four of 128 rows in 512 bytes; each product copies them there before it begins.
"""

import ml_dtypes
import numpy as np

from tileweave import kernel as tk


@tk.kernel
def mx_gemm(k, A, B, scale_a, scale_b, C, bm=128, bn=128, bk=128, stages=3, part=32):
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
    sa = k.shared((stages, bm, bk), like=A, swizzle=128)
    sb = k.shared((stages, bn, bk), like=B, swizzle=128)
    fa = k.shared((stages, bm, bk // 32), like=scale_a, layout="scales")
    fb = k.shared((stages, bn, bk // 32), like=scale_b, layout="scales")
    acc = k.tensor_memory(bn)
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
                load.copy_async(fa[s], scale_a.tile(bm, bk // 32)[m, i])
                load.copy_async(fb[s], scale_b.tile(bn, bk // 32)[n, i])
    with k.warp[5]() as mma:
        for i in mma.range(A.blocks(1, bk)):
            with ring.use(i) as s:
                mma.gemm(acc, sa[s], sb[s], keep=i > 0, scales=(fa[s], fb[s]))
        mma.commit("tcgen05", done)


@tk.kernel
def mx_gemm_anywhere(k, A, B, scale_a, scale_b, C, bm=64, bn=64, bk=128):
    """The same by dispatch: in tensor memory with tiles of 128 (sm_100a), else scaled in registers."""
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
    with k.cta(warpgroups=1) as cta:
        acc = cta.zeros((bm, bn))
        for i in cta.range(A.blocks(1, bk)):
            scales = scale_a.tile(bm, bk // 32)[m, i], scale_b.tile(bn, bk // 32)[n, i]
            cta.gemm(acc, A.tile(bm, bk)[m, i], B.tile(bn, bk)[n, i], scales=scales)
        cta.store(C.tile(bm, bn)[m, n], acc)


def expected(A: np.ndarray, B: np.ndarray, scale_a: np.ndarray, scale_b: np.ndarray) -> np.ndarray:
    wide = [
        x.astype(float) * np.repeat(s.astype(float), 32, axis=1)[:, : x.shape[1]]
        for x, s in ((A, scale_a), (B, scale_b))
    ]
    return wide[0] @ wide[1].T


def arguments(m: int, n: int, depth: int, kinds=(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fn)) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    A, B = (random.standard_normal((rows, depth)).astype(kind) for rows, kind in zip((m, n), kinds, strict=True))
    shapes = ((rows, -(-depth // 32)) for rows in (m, n))
    scale_a, scale_b = ((2.0 ** random.integers(-3, 4, shape)).astype(ml_dtypes.float8_e8m0fnu) for shape in shapes)
    return [A, B, scale_a, scale_b, np.zeros((m, n), np.float32)]


def main() -> None:
    arrays = arguments(200, 150, 272)
    for kernel in (mx_gemm, mx_gemm_anywhere):
        kernel.run(*arrays)
        print(kernel, "largest difference", np.abs(arrays[-1] - expected(*arrays[:-1])).max())


if __name__ == "__main__":
    main()
