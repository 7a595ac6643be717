"""What is known while the explicit program of a kernel is written."""

from __future__ import annotations

from collections import Counter

from tileweave.kernel.ir import Alloc, Kernel, KernelTensor, Op, walk
from tileweave.kernel.ir.rewrite import free_symbols
from tileweave.kernel.ir.verify import scales_of, tensor_columns


class Draft:
    """Names that nothing else has, sums in tensor memory, and reasons.

    A value holds `sums`, the accumulators in tensor memory, which a block allocates when it begins; `columns`, how many
    of tensor memory are taken; `products`, how many add to each tensor; `pair`, whether the user's products are of two
    blocks; and `refused`, for operators of the explicit program why they have no better form.
    """

    def __init__(self, kernel: Kernel) -> None:
        made = [s.tensor for s in walk(kernel.body) if isinstance(s, Alloc)]
        self.taken = {t.name for t in made} | {p.name for p in kernel.params}
        self.taken |= {str(s) for s in free_symbols(kernel.grid)} | {axis for axis, _ in kernel.mesh}
        self.sums = list[KernelTensor]()
        self.columns = sum(tensor_columns(t) for t in (*(t for t in made if t.space == "tensor"), *scales_of(kernel)))
        products = [s for s in walk(kernel.body) if isinstance(s, Op) and s.name == "gemm"]
        self.products = Counter(s.outs[0].tensor for s in products)
        self.pair = any(s.option("pair") for s in products)
        self.refused: dict[Op, str] = {}

    def fresh(self, stem: str) -> str:
        """A stem, numbered where it is taken; taken from now on."""
        name, number = stem, 1
        while name in self.taken:
            name, number = f"{stem}_{number}", number + 1
        self.taken.add(name)
        return name
