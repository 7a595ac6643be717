"""Flash attention, forward, for tensor memory (sm_100a): weights are the left operand of a product where they lie."""

from math import inf

import numpy as np

from tileweave import kernel as tk
from tileweave.index import minimum


@tk.kernel
def attention_tensor(k, q, keys, values, out, bn=64, stages=2, causal=True):
    """One warp loads, one multiplies, and of a warpgroup each thread owns a row of the scores and of the result."""
    bm, width, blocks = 128, q.shape[2], keys.blocks(1, bn)
    head, row = k.grid(q.shape[0], q.blocks(1, bm))
    last = minimum((row * bm + bm + bn - 1) // bn, blocks) if causal else blocks
    queries = k.shared((bm, width), like=q, swizzle=128)
    k_tiles, v_tiles = (k.shared((stages, bn, width), like=x, swizzle=128) for x in (keys, values))
    scores, acc = k.tensor_memory(bn), k.tensor_memory(width)
    weights = k.tensor_memory(bn, q.dtype)
    ring, once = k.pipeline(stages, products=True), k.pipeline(1, products=True)
    scored, weighed = k.barrier(1), k.barrier(128)
    with k.warpgroup[0] as wg:
        m, l = wg.full((bm, 1), -inf), wg.zeros((bm, 1))
        wg.store(acc, wg.zeros((bm, width)))
        for j in wg.range(last):
            wg.wait(scored, parity=j % 2)
            wg.fence("tcgen05.after")
            s = wg.load(scores) * width**-0.5
            column = wg.iota((bm, bn), 1, j * bn)
            s = wg.where(column < keys.shape[1], s, -inf)
            if causal:
                s = wg.where(column <= wg.iota((bm, bn), 0, row * bm), s, -inf)
            new_m = wg.maximum(m, wg.max(s, axis=1))
            p, fade = wg.exp(s - new_m), wg.exp(m - new_m)
            l = l * fade + wg.sum(p, axis=1)
            wg.store(weights, wg.cast(p, q.dtype))
            wg.store(acc, wg.load(acc) * fade)
            wg.fence("tcgen05.before")
            wg.arrive(weighed)
            m = new_m
        wg.wait(scored, parity=last % 2)
        wg.fence("tcgen05.after")
        wg.store(out[head].tile(bm, width)[row, 0], wg.load(acc) / l)
    with k.warp[4]() as load:
        with once.fill(0) as _:
            load.copy_async(queries, q[head].tile(bm, width)[row, 0])
        for j in load.range(last):
            with ring.fill(j) as s:
                load.copy_async(k_tiles[s], keys[head].tile(bn, width)[j, 0])
                load.copy_async(v_tiles[s], values[head].tile(bn, width)[j, 0])
    with k.warp[5]() as mma:
        with once.use(0) as _:
            for j in mma.range(last):
                with ring.use(j) as s:
                    mma.gemm(scores, queries, k_tiles[s], keep=False)
                    mma.commit("tcgen05", scored)
                    mma.wait(weighed, parity=j % 2)
                    mma.fence("tcgen05.after")
                    mma.gemm(acc, weights, v_tiles[s].T)
        mma.commit("tcgen05", scored)


def main() -> None:
    from attention import expected

    random = np.random.default_rng(0)
    q, keys, values = (random.standard_normal((2, 200, 64)).astype(np.float16) for _ in range(3))
    out = np.zeros_like(q)
    print(attention_tensor.check(q, keys, values, out))
    attention_tensor.run(q, keys, values, out)
    print("largest difference", np.abs(out - expected(q, keys, values)).max())


if __name__ == "__main__":
    main()
