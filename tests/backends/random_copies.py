"""Random copies between random layouts: plain values that any target prints and runs, and NumPy's answer."""

from dataclasses import dataclass

import numpy as np

from tileweave.index import symbol
from tileweave.layout import lego
from tileweave.layout.lego import Col, GroupBy, OrderBy, PartialTiles, RegP, Row


@dataclass(frozen=True)
class Copy:
    """A tile-wise copy of a matrix from one order in memory to another.

    Args:
        number: names the kernel.
        shape: rows and columns.
        tile: of rows and columns; need not divide.
        orders: of the source and of the target, for the real shape.
        known: whether the shape is a constant of the kernel, not two arguments n and m.
        kinds: of the orders, for messages.
    """

    number: int
    shape: tuple[int, int]
    tile: tuple[int, int]
    orders: tuple[OrderBy, OrderBy]
    known: bool
    kinds: tuple[str, str]

    @property
    def grid(self):
        """Tiles along rows and columns."""
        return tuple(-(-n // t) for n, t in zip(self.shape, self.tile, strict=True))

    def slices(self):
        """Source and target slices over symbols pid (rows of tiles) and k (columns of tiles), and the steps of k."""
        dims = self.shape if self.known else (symbol("n", 1, 1 << 20), symbol("m", 1, 1 << 20))
        orders = self.orders if self.known else tuple(order_of(kind, dims) for kind in self.kinds)
        source, target = (PartialTiles(dims, self.tile, chain=order) for order in orders)
        pid, k = symbol("pid", 0, source.grid[0]), symbol("k", 0, source.grid[1])
        return source[pid, k, :, :], target[pid, k, :, :], source.grid[1]

    def sizes(self):
        """The kernel's arguments."""
        return {} if self.known else dict(zip(("n", "m"), self.shape, strict=True))

    def answer(self, x):
        """The target's memory."""
        places = [GroupBy(self.shape, order).table() for order in self.orders]
        y = np.full_like(x, -7)
        y[places[1]] = x[places[0]]
        return y


SYMBOLIC = ("row", "column", "reversed", "mirrored")
KINDS = (*SYMBOLIC, "bricks", "blocked", "swizzled", "morton", "diagonal", "hilbert", "permuted")


def order_of(kind, dims, rng=None):
    """An order for a shape; None where the kind has none for it."""
    rows, columns = dims
    power = all(isinstance(n, int) and n & (n - 1) == 0 for n in dims)
    match kind:
        case "row":
            return OrderBy(Row(*dims))
        case "column":
            return OrderBy(Col(*dims))
        case "reversed":
            return OrderBy(lego.reversal(dims, (0,)))
        case "mirrored":
            return OrderBy(lego.reversal(dims, (0, 1)))
        case "bricks":
            return lego.bricks(dims, (4, 2)).orders[0] if rows % 4 == 0 and columns % 2 == 0 else None
        case "blocked":
            if rows % 3 or columns % 4:
                return None
            return OrderBy(RegP((rows // 3, 3, columns // 4, 4), (3, 1, 4, 2)))
        case "swizzled":
            return OrderBy(lego.xor_swizzle(rows, columns)) if columns & (columns - 1) == 0 else None
        case "morton":
            return OrderBy(lego.morton(*dims)) if power else None
        case "diagonal":
            return OrderBy(lego.antidiagonal(rows)) if rows == columns else None
        case "hilbert":
            return OrderBy(lego.hilbert(rows)) if rows == columns and power else None
        case "permuted":
            size = rows * columns
            if size % 6 or rng is None:
                return None
            sigma = tuple(int(s) + 1 for s in rng.permutation(3))
            return OrderBy(RegP((2, size // 6, 3), sigma))
    raise ValueError(kind)


def random_copy(rng, number, *, powers=False):
    """The copy of a number; with `powers` tiles are powers of two."""
    shape = tuple(int(rng.choice([1, 3, 4, 8, 12, 16, int(rng.integers(1, 40))])) for _ in range(2))
    if rng.random() < 0.3:
        shape = (shape[0], shape[0])
    tile = tuple(int(t) for t in (rng.choice([1, 2, 4, 8, 16], 2) if powers else rng.integers(1, 10, 2)))
    known = bool(rng.random() < 0.6)
    kinds, orders = [], []
    while len(orders) < 2:
        kind = str(rng.choice(KINDS if known else SYMBOLIC))
        order = order_of(kind, shape, rng)
        if order is not None:
            kinds.append(kind)
            orders.append(order)
    return Copy(number, shape, tile, tuple(orders), known, tuple(kinds))
