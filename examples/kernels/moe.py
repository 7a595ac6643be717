"""A mixture of experts in one kernel: a tile of the second product starts when what it reads of the first is done.

Rows are sorted by expert; ``starts[e]`` is the first row of expert e. The first product gives gate and up, their
gated product goes to a workspace, and a counter per tile of rows tells the second product when its rows are there.
Blocks take tickets, so a block waits only for blocks that have started.
"""

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def moe(k, x, starts, w_gate, w_up, w_down, y, bm=32, bn=32, bk=32):
    experts, tiles = w_gate.shape[0], x.blocks(0, bm)
    inner, outer = w_gate.blocks(1, bn), w_down.blocks(1, bn)
    first_work = experts * tiles * inner
    k.grid(first_work + experts * tiles * outer)
    hidden = k.workspace((x.shape[0], w_gate.shape[1]), x.dtype)
    done = k.flags((experts, tiles))
    tickets = k.workspace((1,), "u32")

    def rows(cta, tensor, begin, count):
        return tensor[begin : begin + bm].limit(0, count)

    def product(cta, a, b, n):
        acc = cta.zeros((bm, bn))
        for i in cta.range(a.blocks(1, bk)):
            cta.gemm(acc, a.tile(bm, bk)[0, i], b.tile(bn, bk)[n, i])
        return acc

    with k.cta(threads=128) as cta:
        work = cta.atomic_add(tickets[0])
        for phase, columns in ((0, inner), (1, outer)):
            own = work - phase * first_work
            tile = own // columns
            e, t, n = tile // tiles, tile % tiles, own % columns
            with k.when((work < first_work) if phase == 0 else (work >= first_work)):
                begin = cta.read(starts[e]) + t * bm
                end = cta.read(starts[e + 1])
                with k.when(begin < end):
                    count = end - begin
                    if phase == 0:
                        here = rows(cta, x, begin, count)
                        gate, up = product(cta, here, w_gate[e], n), product(cta, here, w_up[e], n)
                        gated = gate / (cta.exp(-gate) + 1) * up
                        cta.store(rows(cta, hidden, begin, count).tile(bm, bn)[0, n], gated)
                        cta.signal(done[e, t])
                    else:
                        cta.wait(done[e, t], at_least=inner)
                        acc = product(cta, rows(cta, hidden, begin, count), w_down[e], n)
                        cta.store(rows(cta, y, begin, count).tile(bm, bn)[0, n], acc)


def expected(x: np.ndarray, starts: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    y = np.zeros((x.shape[0], weights[2].shape[1]))
    for e in np.flatnonzero(np.diff(starts)):
        here = slice(starts[e], starts[e + 1])
        w_gate, w_up, w_down = (w[e].astype(np.float64) for w in weights)
        gate, up = x[here].astype(float) @ w_gate.T, x[here].astype(float) @ w_up.T
        y[here] = (gate / (1 + np.exp(-gate)) * up) @ w_down.T
    return y


def arguments(tokens: int, width: int, inner: int, experts: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    starts = np.concatenate([[0], np.sort(random.integers(0, tokens + 1, experts - 1)), [tokens]]).astype(np.int32)
    shapes = (experts, inner, width), (experts, inner, width), (experts, width, inner)
    weights = [(random.standard_normal(s) * s[-1] ** -0.5).astype(np.float16) for s in shapes]
    x = random.standard_normal((tokens, width)).astype(np.float16)
    return [x, starts, *weights, np.zeros((tokens, width), np.float32)]


def routed(tokens: int, top: int, width: int, inner: int, experts: int) -> list[np.ndarray]:
    """Rows of tokens that each go to `top` experts, sorted by expert; Qwen3-30B-A3B: top 8, 2048, 768, 128."""
    random = np.random.default_rng(0)
    chosen = np.sort(np.concatenate([random.choice(experts, top, replace=False) for _ in range(tokens)]))
    starts = np.searchsorted(chosen, np.arange(experts + 1)).astype(np.int32)
    shapes = (experts, inner, width), (experts, inner, width), (experts, width, inner)
    weights = [(random.integers(-9, 10, s, np.int8) * np.float16(s[-1] ** -0.5 / 6)).astype(np.float16) for s in shapes]
    x = random.standard_normal((tokens * top, width)).astype(np.float16)
    return [x, starts, *weights, np.zeros((tokens * top, width), np.float32)]


def main() -> None:
    arrays = arguments(100, 64, 48, 4)
    print(moe.check(*arrays))
    moe.run(*arrays)
    print("largest difference", np.abs(arrays[-1] - expected(*arrays[:-1])).max())


if __name__ == "__main__":
    main()
