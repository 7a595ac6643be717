"""Kernels as people write them, for tests that break them: a split sum, norms backward, a scan with a carry, a
convolution with halos, the first greatest element, a turned product in BF16, a product with quantised weights."""

from tileweave import kernel as tk


@tk.kernel
def split_k(k, A, B, P, bm=64, bn=64, bk=32, parts=4):
    """Each block sums a part of K; P is (parts, m, n) in f32."""
    m, n, s = k.grid(A.blocks(0, bm), B.blocks(0, bn), parts)
    steps = -(-A.blocks(1, bk) // parts)
    with k.cta(warps=4) as cta:
        acc = cta.zeros((bm, bn))
        for i in cta.range(steps):
            j = s * steps + i
            with k.when(j < A.blocks(1, bk)):
                cta.gemm(acc, A.tile(bm, bk)[m, j], B.tile(bn, bk)[n, j])
        cta.store(P[s].tile(bm, bn)[m, n], acc)


@tk.kernel
def add_parts(k, P, C, b=256):
    i, j = k.grid(C.shape[0], C.blocks(1, b))
    with k.cta(threads=128) as cta:
        total = cta.zeros((1, b))
        for s in cta.range(P.shape[0]):
            total += cta.load(P[s].tile(1, b)[i, j])
        cta.store(C.tile(1, b)[i, j], total)


@tk.kernel
def layernorm_backward(k, x, w, dy, dx, dw_parts, rows=4, eps=1e-5):
    """dx of rows; dw summed over the rows of a block."""
    b = k.grid(x.blocks(0, rows))
    n = x.shape[1]
    with k.cta(threads=128) as cta:
        weight = cta.load(w)
        dw = cta.zeros(like=weight)
        for r in cta.range(rows):
            with k.when(b * rows + r < x.shape[0]):
                row = cta.load(x.tile(rows, n)[b, 0][r : r + 1])
                g = cta.load(dy.tile(rows, n)[b, 0][r : r + 1])
                mean = cta.sum(row) / n
                centred = row - mean
                rstd = cta.rsqrt(cta.sum(centred * centred) / n + eps)
                xhat = centred * rstd
                wdy = g * weight
                c1 = cta.sum(xhat * wdy) / n
                c2 = cta.sum(wdy) / n
                cta.store(dx.tile(rows, n)[b, 0][r : r + 1], (wdy - (xhat * c1 + c2)) * rstd)
                dw += g * xhat
        cta.store(dw_parts.tile(1, n)[b, 0], dw)


@tk.kernel
def cumsum(k, x, y, b=128):
    """Along rows of any length, a tile after another, with a carry."""
    row = k.grid(x.shape[0])
    with k.cta(threads=128) as cta:
        carry = cta.zeros((1, 1))
        for j in cta.range(x.blocks(1, b)):
            part = cta.load(x.tile(1, b)[row, j])
            s = cta.scan("add", part) + carry
            cta.store(y.tile(1, b)[row, j], s)
            carry = carry + cta.sum(part)


@tk.kernel
def conv2d(k, x, w, y, t=16):
    """Valid 3x3 cross-correlation with zero padding, one channel, image tile with its halo in shared memory."""
    i, j = k.grid(x.blocks(0, t), x.blocks(1, t))
    with k.cta(threads=128) as cta:
        s = k.shared((t + 2, t + 2), like=x)
        cta.copy(s, x.tile(t, t, halo=1)[i, j])
        cta.sync()
        total = cta.zeros((t, t))
        for a in range(3):
            for b in range(3):
                total += cta.load(s[a : a + t, b : b + t]) * cta.load(w[a : a + 1, b : b + 1])
        cta.store(y.tile(t, t)[i, j], total)


@tk.kernel
def argmax(k, x, v, at):
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=128) as cta:
        r = cta.load(x[row])
        best = cta.max(r)
        index = cta.iota(r.shape, axis=0)
        first = cta.min(cta.where(r == best, index, 2**30))
        cta.store(v[row], best)
        cta.store(at[row], first)


@tk.kernel
def gemm_tn(k, At, B, C, bm=64, bn=64, bk=32, stages=3):
    """C = A^T^T B^T with At given as (k, m), bf16."""
    m, n = k.grid(At.blocks(1, bm), B.blocks(0, bn))
    with k.cta(warps=4) as cta:
        acc = cta.zeros((bm, bn))
        for i in cta.range(At.blocks(0, bk), stages=stages):
            cta.gemm(acc, At.tile(bk, bm)[i, m].T, B.tile(bn, bk)[n, i])
        cta.store(C.tile(bm, bn)[m, n], acc)


@tk.kernel
def dequant_gemm(k, A, Q, scale, C, bm=64, bn=64, bk=32):
    """A f16 (m, k); Q s8 (n, k) with a scale per row."""
    m, n = k.grid(A.blocks(0, bm), Q.blocks(0, bn))
    with k.cta(warps=4) as cta:
        acc = cta.zeros((bm, bn))
        factor = cta.load(scale.tile(bn, 1)[n, 0])
        sb = k.shared((bn, bk), dtype="f16")
        for i in cta.range(A.blocks(1, bk)):
            q = cta.load(Q.tile(bn, bk)[n, i])
            cta.store(sb, cta.cast(cta.cast(q, "f32") * factor, "f16"))
            cta.sync()
            cta.gemm(acc, A.tile(bm, bk)[m, i], sb)
            cta.sync()
        cta.store(C.tile(bm, bn)[m, n], acc)
