"""Flash attention, forward: scores of one block of keys at a time, a running maximum and sum per query."""

from math import inf

import numpy as np

from tileweave import kernel as tk
from tileweave.index import minimum


@tk.kernel
def attention(k, q, keys, values, out, bm=64, bn=64, causal=True):
    head, row = k.grid(q.shape[0], q.blocks(1, bm))
    width, blocks = q.shape[2], keys.blocks(1, bn)
    last = minimum((row * bm + bm + bn - 1) // bn, blocks) if causal else blocks
    with k.cta(warpgroups=1) as cta:
        query = cta.load(q[head].tile(bm, width)[row, 0])
        m, l = cta.full((bm, 1), -inf), cta.zeros((bm, 1))
        acc = cta.zeros((bm, width))
        for j in cta.range(last):
            s = cta.dot(query, keys[head].tile(bn, width)[j, 0]) * width**-0.5
            if causal:
                seen = cta.iota((bm, bn), 1, j * bn) <= cta.iota((bm, bn), 0, row * bm)
                s = cta.where(seen, s, -inf)
            new_m = cta.maximum(m, cta.max(s, axis=1))
            p, fade = cta.exp(s - new_m), cta.exp(m - new_m)
            l = l * fade + cta.sum(p, axis=1)
            acc *= fade
            cta.gemm(acc, cta.cast(p, q.dtype), values[head].tile(bn, width)[j, 0].T)
            m = new_m
        cta.store(out[head].tile(bm, width)[row, 0], acc / l)


def expected(q: np.ndarray, keys: np.ndarray, values: np.ndarray, causal: bool = True) -> np.ndarray:
    q, keys, values = (x.astype(np.float64) for x in (q, keys, values))
    s = q @ keys.transpose(0, 2, 1) * q.shape[2] ** -0.5
    if causal:
        s = np.where(np.tri(*s.shape[1:], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(2, keepdims=True))
    return p / p.sum(2, keepdims=True) @ values


def main() -> None:
    random = np.random.default_rng(0)
    q, keys, values = (random.standard_normal((2, 100, 64)).astype(np.float16) for _ in range(3))
    out = np.zeros_like(q)
    print(attention.check(q, keys, values, out))
    attention.run(q, keys, values, out)
    print("largest difference", np.abs(out - expected(q, keys, values)).max())


if __name__ == "__main__":
    main()
