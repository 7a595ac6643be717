"""Sums of columns: a block walks down its columns and keeps one running sum per element of its tile."""

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def column_sums(k, x, y, rows=16, columns=128):
    j = k.grid(x.blocks(1, columns))
    with k.cta(threads=128) as cta:
        total = cta.zeros((rows, columns))
        for i in cta.range(x.blocks(0, rows)):
            total += cta.load(x.tile(rows, columns)[i, j])
        cta.store(y.tile(1, columns)[0, j], cta.sum(total, axis=0))


@tk.kernel
def running_maximum(k, x, y):
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=128) as cta:
        cta.store(y[row], cta.scan("max", cta.load(x[row])))


def main() -> None:
    x = np.random.default_rng(0).standard_normal((100, 300)).astype(np.float32)
    sums, maxima = np.zeros((1, 300), np.float32), np.zeros_like(x)
    column_sums.run(x, sums)
    running_maximum.run(x, maxima)
    print("sums, largest difference", np.abs(sums - x.sum(0, dtype=np.float64)).max())
    print("maxima exact:", bool((maxima == np.maximum.accumulate(x, 1)).all()))


if __name__ == "__main__":
    main()
