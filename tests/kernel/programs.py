"""The programs of the page about kernels, as a user writes them."""

from tileweave import kernel as tk
from tileweave.kernel import grouped


@tk.kernel
def softmax(k, x, y):
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=256) as cta:
        r = cta.load(x[row])
        e = cta.exp(r - cta.max(r))
        cta.store(y[row], e / cta.sum(e))


@tk.kernel
def transpose(k, x, y, t=32):
    i, j = k.grid(x.blocks(0, t), x.blocks(1, t))
    with k.cta(threads=256) as cta:
        s = k.shared((t, t), like=x, layout="conflict_free")
        cta.copy(s, x.tile(t, t)[i, j])
        cta.sync()
        cta.copy(y.tile(t, t)[j, i], s.T)


@tk.kernel
def matmul(k, A, B, C, bm=128, bn=256, bk=64, stages=4):
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn), order=grouped(8))
    with k.cta(warpgroups=3) as cta:
        acc = cta.zeros((bm, bn), dtype="f32")
        for i in cta.range(A.blocks(1, bk), stages=stages):
            cta.gemm(acc, A.tile(bm, bk)[m, i], B.tile(bn, bk)[n, i])
        cta.copy(C.tile(bm, bn)[m, n], acc)


@tk.kernel
def matmul_roles(k, A, B, C, bm=128, bn=256, bk=64, stages=4):
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn), order=grouped(8))
    sa = k.shared((stages, bm, bk), like=A, swizzle=128)
    sb = k.shared((stages, bn, bk), like=B, swizzle=128)
    ring = k.pipeline(stages, fills=1, uses=2)
    with k.warpgroup[0](registers=40) as load:
        for i in load.range(A.blocks(1, bk)):
            with ring.fill(i) as s:
                load.copy_async(sa[s], A.tile(bm, bk)[m, i])
                load.copy_async(sb[s], B.tile(bn, bk)[n, i])
    with k.warpgroup[1:3](registers=232) as wg:
        acc = wg.zeros((bm, bn), dtype="f32")
        for i in wg.range(A.blocks(1, bk)):
            with ring.use(i) as s:
                wg.gemm(acc, sa[s], sb[s])
        wg.copy(C.tile(bm, bn)[m, n], acc)


@tk.kernel(mesh={"gpu": 4})
def gemm_rs(k, A, B, C, bm=128, bn=256, bk=64):
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn), order="owner_last")
    P = k.symmetric((4, A.shape[0], B.shape[0]), dtype="f32", layout="4:1@gpu, ..")
    with k.cta(warpgroups=3) as cta:
        acc = cta.zeros((bm, bn), dtype="f32")
        for i in cta.range(A.blocks(1, bk), stages=4):
            cta.gemm(acc, A.tile(bm, bk)[m, i], B.tile(bn, bk)[n, i])
        cta.copy(P[k.gpu].tile(bm, bn)[m, n], acc)
        cta.signal(P, m, n)
        with k.when(k.owns(C.tile(bm, bn)[m, n])) as mine:
            mine.wait(P, m, n)
            mine.sum(C.tile(bm, bn)[m, n], P, axis=0)
