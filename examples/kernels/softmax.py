"""Softmax of each row: one block per row, any length; what a row leaves of the threads is masked."""

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def softmax(k, x, y):
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=256) as cta:
        r = cta.load(x[row])
        e = cta.exp(r - cta.max(r))
        cta.store(y[row], e / cta.sum(e))


def expected(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def main() -> None:
    x = np.random.default_rng(0).standard_normal((4, 1000)).astype(np.float32)
    y = np.zeros_like(x)
    print(softmax.check(x, y))
    softmax.run(x, y)
    print("largest difference", np.abs(y - expected(x)).max())


if __name__ == "__main__":
    main()
