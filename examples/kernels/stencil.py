"""A five-point stencil: a block loads its tile with a halo of one element, then reads it shifted five ways."""

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def stencil(k, x, y, t=16):
    """``y[i, j]`` from ``x[i, j]`` and its four neighbours; outside x are zeros, and no line says where it ends."""
    i, j = k.grid(y.blocks(0, t), y.blocks(1, t))
    with k.cta(threads=128) as cta:
        s = k.shared((t + 2, t + 2), like=x)
        cta.copy(s, x.tile(t, t, halo=1)[i, j])
        cta.sync()
        around = [cta.load(s[1 + a : 1 + a + t, 1 + b : 1 + b + t]) for a, b in ((-1, 0), (1, 0), (0, -1), (0, 1))]
        centre = cta.load(s[1 : 1 + t, 1 : 1 + t])
        total = around[0] + around[1] + around[2] + around[3]
        cta.store(y.tile(t, t)[i, j], centre + (total - centre * 4) * 0.25)


def expected(x: np.ndarray) -> np.ndarray:
    wide = np.pad(x.astype(np.float64), 1)
    total = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
    return wide[1:-1, 1:-1] + (total - 4 * wide[1:-1, 1:-1]) * 0.25


def main() -> None:
    x = np.random.default_rng(0).standard_normal((50, 70)).astype(np.float32)
    y = np.zeros_like(x)
    stencil.run(x, y)
    print("largest difference", np.abs(y - expected(x)).max())


if __name__ == "__main__":
    main()
