"""How attention is cut into jobs, panels and blocks, where its parts lie in memory, and how its code finds elements."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from tileweave.backends.cpu.attention.match import Attention
from tileweave.backends.cpu.gemm.tile import choose_tile
from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, vector
from tileweave.backends.cpu.llvm.ir import Function, Module
from tileweave.backends.cpu.llvm.ir import Value as Number
from tileweave.backends.cpu.memory import rounded
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.merged.form import Mode

KEYS = 256
"""Of a block, at most: packed keys and values of 128 features are a quarter of a second cache of 1 MiB."""
QUERIES_BYTES = 384 * 1024
"""Of the queries and sums of a job, at most, beside keys and values in the second cache: a job of more queries packs
the keys less often; 1024 queries of 128 features take 46 ms with 384 of them, 48 with 192 (bench/attention.py)."""
MOST_QUERIES = 512
_LINE = 64


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """How attention is cut.

    Args:
        lanes: elements of a vector.
        rows: queries of a row panel.
        vectors: of a panel of keys, or of features.
        keys: of a block.
        queries: of a job.
        blocks: jobs per head.
    """

    lanes: int
    rows: int
    vectors: int
    keys: int
    queries: int
    blocks: int


def choose_sizes(a: Attention, target: Target, threads: int) -> AttentionSizes:
    """Blocks and panels that the caches hold, and jobs for all threads."""
    lanes = target.lanes(a.element.width_bytes)
    rows, panel = choose_tile(target.registers, a.queries, 64 * lanes, lanes, (2,), 1)
    width = panel * lanes
    parts = -(-a.keys.extent // KEYS)
    keys = rounded(-(-a.keys.extent // parts), width)
    each = (rounded(a.depth.extent, lanes) + rounded(a.features.extent, lanes)) * a.element.width_bytes
    most = max(rows, min(MOST_QUERIES, QUERIES_BYTES // each) // rows * rows)
    blocks = -(-a.queries // most)
    while a.batches * blocks < 4 * threads > 4 and a.queries > 4 * rows * blocks:
        blocks += 1
    queries = rounded(-(-a.queries // blocks), rows)
    return AttentionSizes(lanes, rows, panel, keys, queries, -(-a.queries // queries))


def with_sizes(a: Attention, s: AttentionSizes, size: Callable[[int], int]) -> tuple[Attention, AttentionSizes]:
    """The same with what differs between lengths and batches replaced by what a function makes of it.

    What code is written for stays: head sizes, tiles, and strides along which vectors are gathered.
    """

    def each(numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple([size(n) if n else 0 for n in numbers])

    walked = {a.tensors[2]}  # by a product with the number of a key; others are read in vectors
    if a.depth.strides[a.tensors[1]] == a.element.width_bytes and a.depth.extent > 1:
        walked.add(a.tensors[1])
    keys = tuple([size(n) if n and t in walked else n for t, n in enumerate(a.keys.strides)])
    outer, rows = (tuple(Mode(size(m.extent), each(m.strides)) for m in modes) for modes in (a.outer, a.rows))
    made = replace(a, offsets=each(a.offsets), outer=outer, rows=rows, keys=Mode(size(a.keys.extent), keys))
    return made, AttentionSizes(s.lanes, s.rows, s.vectors, size(s.keys), size(s.queries), size(s.blocks))


def numbers_of(a: Attention, s: AttentionSizes) -> tuple[Hashable, list[int]]:
    """What code is written for, and the numbers that it takes from a table, in the order of `with_sizes`."""
    found: list[int] = []

    def size(number: int) -> int:
        found.append(number)
        return -1

    return with_sizes(a, s, size), found


@dataclass
class Cut:
    """One attention as it is cut, for the functions that write its code."""

    module: Module
    target: Target
    name: str
    a: Attention
    sizes: AttentionSizes

    def __post_init__(self) -> None:
        a, s = self.a, self.sizes
        self.e = a.element
        self.width, self.lanes = self.e.width_bytes, s.lanes
        self.full = vector(self.e.memory, self.lanes)
        self.panel = s.vectors * s.lanes
        self.depth, self.features = rounded(a.depth.extent, s.lanes), rounded(a.features.extent, s.lanes)
        self.held = rounded(s.rows, s.lanes) * self.width  # bytes of a value per row of a panel, in whole vectors
        self.row = (
            rounded(KEYS, self.panel) + s.lanes
        ) * self.width  # of scores; rows do not begin in one set of the cache
        self.tensors = (*a.tensors, *(t for t in a.extras if t not in a.tensors))
        dense = a.keys.strides
        self.masks = [t for t in a.masks if dense[t] in (0, 1)]
        self.places: dict[str, int] = {}  # part of a thread's memory -> where it begins
        self.thread_bytes = 0
        for part, size in (
            ("q", s.queries * self.depth * self.width),
            ("k", s.keys * a.depth.extent * self.width),
            ("v", s.keys * self.features * self.width),
            ("scores", s.rows * self.row),
            ("sums", s.queries * self.features * self.width),
            ("state", s.queries // s.rows * 2 * self.held),
            ("work", 3 * self.held),
            ("hidden", self.features * self.width),
            ("live", s.queries // s.rows * 8),
        ):
            self.places[part] = self.thread_bytes
            self.thread_bytes += rounded(size) + _LINE

    def feature_panels(self) -> range:
        """The first vector of every panel of features."""
        return range(0, self.features // self.sizes.lanes, self.sizes.vectors)

    def moved(self, f: Function, modes: Sequence[Mode], index: Number, tensors: Sequence[int]) -> list[Number]:
        """How far tensors are moved by a flat index of some loops."""
        offsets: list[Number] = [0] * len(tensors)
        rest = index
        for number, mode in enumerate(reversed(modes)):
            last = number == len(modes) - 1
            digit = rest if last else f.rem(rest, mode.extent)
            rest = rest if last else f.div(rest, mode.extent)
            offsets = [f.add(o, f.mul(digit, mode.strides[t])) for o, t in zip(offsets, tensors, strict=True)]
        return offsets

    def along(self, f: Function, count: int, body: Callable[[Number, str | None], None]) -> None:
        """Vectors along so many elements: the whole ones, then what is left, under a mask."""
        f.loop(0, count // self.lanes, lambda k, _: body(f.mul(k, self.lanes), None))
        if count % self.lanes:
            body(count // self.lanes * self.lanes, vectors.mask_of(count % self.lanes, self.lanes))

    def read(
        self, f: Function, base: str, stride: int, index: Number, mask: str | None, of: Element | None = None
    ) -> str:
        """A vector of elements that lie so many bytes apart, from an index on."""
        one = of or self.e
        place = f.at(base, f.mul(index, stride))
        if stride == one.width_bytes:
            return vectors.load(f, one, self.lanes, place, mask)
        if stride == 0:
            return vectors.broadcast(f, one.memory, self.lanes, f.load(one.memory, place, one.width_bytes))
        return vectors.gather(f, one, self.lanes, place, stride, mask)
