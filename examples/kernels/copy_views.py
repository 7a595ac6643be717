"""One copy from two views: 128 threads bring a region of 16 x 64 elements into registers, 8 neighbours each.

In the view of a thread, loops and the thread's number say which elements; in the view of the block, one operator and a
register layout say the same.
"""

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def thread_view(k, c, out):
    with k.cta(threads=128) as cta, cta.thread.each() as thread:
        row, column = thread.index // 8, thread.index % 8 * 8
        for v in range(2):
            source = c[16 + row, 64 + column + 4 * v : 64 + column + 4 * v + 4]
            thread.store(out[row, column + 4 * v : column + 4 * v + 4], thread.load(source))


@tk.kernel
def block_view(k, c, out):
    with k.cta(threads=128) as cta:
        cta.store(out, cta.load(c[16:32, 64:128], layout="(4:1@warp, 4:8@lane, 8:1@lane, 8:1@reg)"))


def main() -> None:
    c = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
    for kernel in (thread_view, block_view):
        out = np.zeros((16, 64), np.float32)
        print(kernel.check(c, out))
        kernel.run(c, out)
        print(kernel.name, "exact:", bool((out == c[16:32, 64:128]).all()))


if __name__ == "__main__":
    main()
