"""Transpose through shared memory, laid out so that rows and columns both meet every bank once."""

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def transpose(k, x, y, t=32):
    i, j = k.grid(x.blocks(0, t), x.blocks(1, t))
    with k.cta(threads=256) as cta:
        s = k.shared((t, t), like=x, layout="conflict_free")
        cta.copy(s, x.tile(t, t)[i, j])
        cta.sync()
        cta.copy(y.tile(t, t)[j, i], s.T)


def main() -> None:
    x = np.arange(70 * 45, dtype=np.float32).reshape(70, 45)
    y = np.zeros((45, 70), np.float32)
    transpose.run(x, y)
    print(transpose.text())
    print("exact:", bool((y == x.T).all()))


if __name__ == "__main__":
    main()
