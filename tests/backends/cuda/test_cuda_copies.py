"""Random copy kernels printed as CUDA and run on the CPU, equal to NumPy bit for bit; fifty in one compilation."""

import numpy as np
import pytest

from backends.random_copies import random_copy
from tileweave.backends.cuda import Launch, run_all
from tileweave.layout.lego import template

BATCH = 50
# The rows of a tile by the threads of a block, or a whole tile by one thread; the columns of tiles in a loop.
TEXT = """{{ layouts }}
__global__ void copy{{ number }}(int *y, const int *x{{ arguments }}) {
  const int pid = blockIdx.x;
  {{ define("pid") }}
  for (int k = 0; k < {{ steps }}; ++k) {
    {{ loop("k") }}
    {{ b.open }}
    {{ b.store("y", a.load("x", -1)) }};
    {{ b.close }}
  }
}
"""


def helpers():
    """Every helper function, once for all kernels of a file."""
    from tileweave.index import c_prelude

    return c_prelude("int64_t", cuda=True)


def filled(copy):
    a, b, steps = copy.slices()
    return template(TEXT, a=a, b=b, steps=steps, number=copy.number).fill("cuda")


@pytest.mark.parametrize("batches", [1, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_random_copies_equal_numpy(batches):
    rng = np.random.default_rng(2027)
    print("seed 2027")
    for batch in range(batches):
        copies = [random_copy(rng, batch * BATCH + k) for k in range(BATCH)]
        launches, results, texts = [], [], [helpers()]
        for copy in copies:
            kernel = filled(copy)
            texts.append(kernel.text)
            sizes = {name: n for name, n in copy.sizes().items() if name in kernel.arguments}
            x = rng.permutation(copy.shape[0] * copy.shape[1]).astype(np.int32)
            y = np.full_like(x, -7)
            launches.append(Launch(copy.grid[0], 1, {"y": y, "x": x, **sizes}, f"copy{copy.number}"))
            results.append((copy, x, y))
        run_all("\n".join(texts), launches)
        for copy, x, y in results:
            assert np.array_equal(y, copy.answer(x)), copy
