"""Clusters: one load for several blocks, memory of other blocks, barriers across blocks; what goes wrong is named."""

import shutil
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda import compile as compile_text
from tileweave.backends.cuda import run
from tileweave.backends.cuda.printer import run as run_text
from tileweave.backends.cuda.printer import text
from tileweave.errors import BackendError, VerifyError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))
clusters = import_module("clusters")
RANDOM = np.random.default_rng(5)


def operands(m, n, k):
    a, b = (RANDOM.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (n, k)))
    return a, b, np.zeros((m, n), np.float16)


@pytest.mark.parametrize("order", ["reversed", pytest.param(3, marks=pytest.mark.slow)])
def test_a_product_of_two_blocks_that_share_their_tile_of_a(order):
    a, b, c = operands(130, 70, 136)
    want = a.astype(float) @ b.T.astype(float)
    options = {"bm": 128, "bn": 32, "stages": 2}
    kernel = clusters.matmul_cluster.trace(a, b, c, **options)
    assert (clusters.matmul_cluster.check(a, b, c, **options).outputs["C"] == want).all()
    if shutil.which("g++"):
        run_text(kernel, [a, b, c], order=order)
        assert (c == want).all()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(("rows", "width"), [(3, 1000), pytest.param(2, 7, marks=pytest.mark.slow)])
def test_sums_through_the_memory_of_other_blocks(rows, width):
    x, y = RANDOM.integers(-9, 9, (rows, width)).astype(np.float32), np.zeros((rows, 1), np.float32)
    run_text(clusters.row_sums.trace(x, y), [x, y], check=True)
    assert (y[:, 0] == x.sum(1)).all()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_text_compiles_without_spills_and_sends_boxes_to_both_blocks():
    kernel = clusters.matmul_cluster.trace(*operands(256, 256, 512))
    shown = text(kernel, "sm_90a")
    assert "__cluster_dims__(2)" in shown
    assert "tw_mbarrier_arrive_cluster(&ring_empty[" in shown
    assert "shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(&sa[" in shown
    assert compile_text(shown, "sm_90a").kernels["matmul_cluster"].spill_bytes == 0
    assert "1 box 64 x 64, swizzle 128, to 2 blocks of the cluster" in clusters.matmul_cluster.explain(
        *operands(256, 256, 512)
    )


def test_targets_without_clusters_say_so():
    with pytest.raises(BackendError, match="sm_80 has no clusters of blocks"):
        text(clusters.matmul_cluster.trace(*operands(128, 128, 64)), "sm_80")


@pytest.mark.parametrize(
    ("size", "cluster", "problem"),
    [(3, 2, "3 blocks are no clusters of 2"), (6, 3, "a power of two"), (32, 16, "clusters of 16 blocks")],
)
def test_a_grid_is_made_of_whole_clusters(size, cluster, problem):
    @tk.kernel
    def nothing(k, x):
        i = k.grid(size, cluster=cluster)
        with k.cta(threads=32) as cta:
            cta.copy(x[i], cta.load(x[i]))

    with pytest.raises(VerifyError, match=problem) as caught:
        nothing.trace(np.zeros((size, 32), np.float32))
    assert caught.value.rule == "cluster"


def neighbours(first=True, last=True):
    """Each block reads a number of its neighbour."""

    @tk.kernel
    def exchanged(k, x, y):
        i = k.grid(x.shape[0], cluster=2)
        s = k.shared((2, 32), like=x, cluster=True)
        with k.cta(threads=32) as cta:
            cta.copy(s[k.rank], x[i])
            cta.sync(cluster=True) if first else cta.sync()
            cta.copy(y[i], s[1 - k.rank])
            if last:
                cta.sync(cluster=True)

    return exchanged


def test_memory_of_a_block_that_may_not_run_is_refused():
    x = np.arange(128, dtype=np.float32).reshape(4, 32)
    y = np.zeros_like(x)
    neighbours().run(x, y)
    assert (y == x[[1, 0, 3, 2]]).all()
    for missing, problem in (
        ({"first": False}, "ended|started|never written"),
        ({"last": False}, "has ended|may come later"),
    ):
        with pytest.raises(VerifyError, match=problem) as caught:
            neighbours(**missing).check(x, y)
        assert caught.value.rule in ("cluster", "initialised")
        assert caught.value.line.number


def test_a_stage_that_others_fill_is_freed_by_all():
    @tk.kernel
    def alone(k, x, y):
        k.grid(2, cluster=2)
        s = k.shared((2, 8, 64), like=x, swizzle=128)
        ring = k.pipeline(2)
        with k.warp[0]() as load, ring.fill(0) as stage:
            load.copy_async(s[stage], x, multicast=True)
        with k.warp[1]() as use, ring.use(0) as stage:
            use.copy(y, s[stage])

    arrays = np.zeros((8, 64), np.float16), np.zeros((8, 64), np.float16)
    with pytest.raises(VerifyError, match=r"filled by 2 blocks of the cluster, and freed by one") as caught:
        alone.trace(*arrays)
    assert caught.value.rule == "ring"


REMOTE = """
__global__ void __cluster_dims__(2) remote(int* out) {
  __shared__ int s[32];
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (LEAVES) if (rank == 0) return;
  unsigned long long there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(s), "r"(RANK));
  ((int*)there)[threadIdx.x] = threadIdx.x + 100 * rank;
  asm volatile("barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  out[32 * rank + threadIdx.x] = s[threadIdx.x];
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("leaves", "rank", "rule"), [(0, "1 - rank", ""), (1, "1 - rank", "cluster-left"), (0, "2", "cluster-rank")]
)
def test_the_fibers_name_what_is_wrong_with_memory_of_another_block(leaves, rank, rule):
    out = np.zeros(64, np.int32)
    shown = REMOTE.replace("LEAVES", str(leaves)).replace("RANK", rank)
    if not rule:
        run(shown, 2, 32, {"out": out}, cluster=2)
        assert (out == np.concatenate([np.arange(32) + 100, np.arange(32)])).all()
        return
    with pytest.raises(BackendError) as caught:
        run(shown, 2, 32, {"out": out}, cluster=2, check=True)
    assert caught.value.facts["findings"][0].rule == rule
