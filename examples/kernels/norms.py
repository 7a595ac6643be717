"""Layer norm and RMS norm: one block per row, statistics replicated over its threads."""

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def layernorm(k, x, weight, bias, y, eps=1e-5):
    row, length = k.grid(x.blocks(0, 1)), x.shape[1]
    with k.cta(threads=128) as cta:
        r = cta.load(x[row])
        centred = r - cta.sum(r) / length
        variance = cta.sum(cta.square(centred)) / length
        scaled = centred * cta.rsqrt(variance + eps)
        cta.store(y[row], scaled * cta.load(weight) + cta.load(bias))


@tk.kernel
def rmsnorm(k, x, weight, y, eps=1e-6):
    row, length = k.grid(x.blocks(0, 1)), x.shape[1]
    with k.cta(threads=128) as cta:
        r = cta.load(x[row])
        mean = cta.sum(cta.square(r)) / length
        cta.store(y[row], r * cta.rsqrt(mean + eps) * cta.load(weight))


def expected_layernorm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + eps) * weight.astype(float) + bias.astype(float)


def expected_rmsnorm(x: np.ndarray, weight: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(1, keepdims=True) + eps) * weight.astype(float)


def main() -> None:
    random = np.random.default_rng(0)
    x, weight, bias = (random.standard_normal(s).astype(np.float32) for s in ((3, 300), 300, 300))
    y = np.zeros_like(x)
    layernorm.run(x, weight, bias, y)
    print("layernorm, largest difference", np.abs(y - expected_layernorm(x, weight, bias)).max())
    rmsnorm.run(x, weight, y)
    print("rmsnorm, largest difference", np.abs(y - expected_rmsnorm(x, weight)).max())


if __name__ == "__main__":
    main()
