"""Random copy kernels printed as MLIR and run on the CPU, equal to NumPy bit for bit; fifty in one lowering."""

import numpy as np
import pytest

from backends.random_copies import random_copy
from tileweave.backends import mlir
from tileweave.index import symbol
from tileweave.layout.lego import template

BATCH = 50
# A row of tiles by each block, the tiles of a row in a loop, the elements of a tile in loops inside.
TEXT = """{{ layouts }}
module {
  gpu.module @kernels {
    gpu.func @copy(%y: {{ memref }}, %x: {{ memref }}{{ arguments }}) kernel {
      %pid = gpu.block_id x
      {{ define("pid") }}
      %first = arith.constant 0 : index
      %next = arith.constant 1 : index
      %none = arith.constant -1 : i32
      scf.for %k = %first to {{ steps }} step %next {
        {{ loop("k") }}
        {{ b.open }}
        %value = {{ a.load("%x : " ~ memref, "%none") }}
        {{ b.store("%y : " ~ memref, "%value") }}
        {{ b.close }}
      }
      gpu.return
    }
  }
}
"""


def filled(copy):
    a, b, steps = copy.slices()
    memref = f"memref<{copy.shape[0] * copy.shape[1] if copy.known else '?'}xi32>"
    return template(TEXT, a=a, b=b, steps=symbol("zero", 0, 1) * 0 + steps, memref=memref).fill("mlir")


@pytest.mark.parametrize("batches", [1, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_random_copies_equal_numpy(batches):
    rng = np.random.default_rng(2028)
    print("seed 2028")
    for batch in range(batches):
        launches, results, texts = [], [], {}
        for k in range(BATCH):
            copy = random_copy(rng, batch * BATCH + k)
            kernel = filled(copy)
            texts[f"copy{copy.number}"] = kernel.text
            sizes = {name: n for name, n in copy.sizes().items() if name in kernel.arguments}
            x = rng.permutation(copy.shape[0] * copy.shape[1]).astype(np.int32)
            y = np.full_like(x, -7)
            launches.append(mlir.Launch(copy.grid[0], 1, {"y": y, "x": x, **sizes}, f"copy{copy.number}"))
            results.append((copy, x, y))
        mlir.run_all(mlir.merged(texts), launches)
        for copy, x, y in results:
            assert np.array_equal(y, copy.answer(x)), (copy, texts[f"copy{copy.number}"])
