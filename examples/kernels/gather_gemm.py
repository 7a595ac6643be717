"""All-gather and GEMM in one kernel on a mesh: the rows of A are spread over the devices, each has columns of B^T.

Every device offers its rows tile by tile and signals each; a tile of the product waits only for the tile of A that it
reads. A device begins with its own rows.
"""

import numpy as np

from tileweave import kernel as tk
from tileweave.index import equal
from tileweave.kernel import row_major


def on(devices: int) -> tk.KernelFunction:
    """The kernel for a mesh of so many devices."""

    @tk.kernel(mesh={"gpu": devices})
    def gather_gemm(k, A, B, C, bm=64, bn=64, bk=64):
        rows, depth, per_device = A.shape[0] * devices, A.shape[1], A.blocks(0, bm)

        def own_rows_first(block, extents):
            total = extents[0] * extents[1]
            return row_major((block + k.gpu * per_device * extents[1]) % total, extents)

        m, n = k.grid(per_device * devices, B.blocks(0, bn), order=own_rows_first)
        gathered = k.symmetric((devices, A.shape[0], depth), dtype=A.dtype)
        owner, tile = m // per_device, m % per_device
        with k.cta(warpgroups=1) as cta:
            with k.when(equal(owner, k.gpu) & equal(n, 0)):
                cta.copy(gathered[k.gpu].tile(bm, depth)[tile, 0], A.tile(bm, depth)[tile, 0])
                cta.signal(gathered, m, n)
            cta.wait(gathered, m, 0, device=owner)
            acc = cta.zeros((bm, bn))
            for i in cta.range(A.blocks(1, bk)):
                cta.gemm(acc, gathered[owner].tile(bm, bk)[tile, i], B.tile(bn, bk)[n, i])
            target = C.tile(A.shape[0], bn)[owner, n].tile(bm, bn)[tile, 0]
            cta.store(target, acc)
        assert C.shape[0] == rows

    return gather_gemm


def main() -> None:
    random = np.random.default_rng(0)
    for devices in (4, 8):
        A, B = ([random.standard_normal((n, 70)).astype(np.float16) for _ in range(devices)] for n in (100, 50))
        C = [np.zeros((100 * devices, 50), np.float32) for _ in range(devices)]
        on(devices).run(A, B, C)
        whole = np.concatenate(A).astype(float)
        off = max(np.abs(c - whole @ b.T.astype(float)).max() for b, c in zip(B, C, strict=True))
        print(devices, "devices, largest difference", off)


if __name__ == "__main__":
    main()
