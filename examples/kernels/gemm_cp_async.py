"""A product with `cp.async`, three stages written out: copies two steps ahead, Python functions as macros."""

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def gemm_cp_async(k, A, B, C, bm=64, bn=64, bk=32, stages=3):
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
    sa = k.shared((stages, bm, bk), like=A, swizzle=64)
    sb = k.shared((stages, bn, bk), like=B, swizzle=64)
    steps, ahead = A.blocks(1, bk), stages - 1
    with k.cta(warps=4) as cta:

        def fetch(step):
            cta.copy_async(sa[step % stages], A.tile(bm, bk)[m, step])
            cta.copy_async(sb[step % stages], B.tile(bn, bk)[n, step])

        for step in range(ahead):
            if step < steps:
                fetch(step)
            cta.commit()
        acc = cta.zeros((bm, bn))
        for i in cta.range(steps):
            cta.wait_group(ahead - 1)
            cta.sync()  # the stage is full for all threads, and the one before it is free
            with k.when(i + ahead < steps):
                fetch(i + ahead)
            cta.commit()
            cta.gemm(acc, sa[i % stages], sb[i % stages])
        cta.store(C.tile(bm, bn)[m, n], acc)


def main() -> None:
    random = np.random.default_rng(0)
    A, B = (random.standard_normal(s).astype(np.float16) for s in ((100, 200), (90, 200)))
    C = np.zeros((100, 90), np.float32)
    print(gemm_cp_async.check(A, B, C))
    gemm_cp_async.run(A, B, C)
    print("largest difference", np.abs(C - A.astype(float) @ B.T.astype(float)).max())


if __name__ == "__main__":
    main()
