"""Kernels for Trainium: tiles in SBUF and PSUM, products that contract partitions, attention of several heads."""

import numpy as np

from tileweave import kernel as tk


@tk.kernel
def matmul(k, At, B, C, bm=128, bn=512, bk=128):
    """``C = At^T B``: the contraction lies on the partitions of both operands and is added up in PSUM."""
    m, n = k.grid(C.blocks(0, bm), C.blocks(1, bn))
    a, b = k.sbuf((bk, bm), like=At), k.sbuf((bk, bn), like=B)
    acc = k.psum((bm, bn))
    with k.cta(threads=128) as cta:
        for i in cta.range(At.blocks(0, bk)):
            cta.copy(a, At.tile(bk, bm)[i, m])
            cta.copy(b, B.tile(bk, bn)[i, n])
            cta.gemm(acc, a.T, b.T, keep=i > 0)
        cta.copy(C.tile(bm, bn)[m, n], cta.load(acc))


@tk.kernel
def attention(k, Qt, Kt, V, O, rows=128):
    """One head and 128 queries a block; queries and keys come with their features on the partitions."""
    h, i = k.grid(Qt.shape[0], Qt.blocks(2, rows))
    features, length = Kt.shape[1:]
    q, keys = k.sbuf((features, rows), like=Qt), k.sbuf((features, length), like=Kt)
    scores, result = k.psum((rows, length)), k.psum((rows, features))
    weights, values = k.sbuf((128, rows), "f32"), k.sbuf((128, features), like=V)
    with k.cta(threads=128) as cta:
        cta.copy(q, Qt[h].tile(features, rows)[0, i])
        cta.copy(keys, Kt[h])
        cta.gemm(scores, q.T, keys.T, keep=False)
        s = cta.load(scores) * features**-0.5
        e = cta.exp(s - cta.max(s, axis=1))
        total = cta.sum(e, axis=1)
        for j in range(length // 128):
            cta.copy(weights, e[:, j * 128 : j * 128 + 128].T)
            cta.copy(values, V[h].tile(128, features)[j, 0])
            cta.gemm(result, weights.T, values.T, keep=j > 0)
        cta.copy(O[h].tile(rows, features)[i, 0], cta.load(result) / total)


def main() -> None:
    random = np.random.default_rng(0)
    At, B = (random.standard_normal(s).astype(np.float16) for s in ((256, 128), (256, 512)))
    C = np.zeros((128, 512), np.float32)
    matmul.run(At, B, C, on="nki")
    print("largest difference", np.abs(C - At.T.astype(float) @ B.astype(float)).max())
    Qt, Kt = (random.standard_normal((2, 64, 256)).astype(np.float32) for _ in range(2))
    V, O = random.standard_normal((2, 256, 64)).astype(np.float32), np.zeros((2, 256, 64), np.float32)
    attention.run(Qt, Kt, V, O, on="nki")
    s = np.einsum("hdq,hdk->hqk", Qt.astype(float), Kt) / 8
    e = np.exp(s - s.max(-1, keepdims=True))
    print("largest difference", np.abs(O - e / e.sum(-1, keepdims=True) @ V).max())
    print(matmul.text("nki", At, B, C))


if __name__ == "__main__":
    main()
