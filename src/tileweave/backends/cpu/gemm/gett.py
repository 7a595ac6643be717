"""How a contraction is blocked: which axes are m, n, k or batch; register tile, blocks, tasks; what is packed.

The columns (n) are the free axes whose first is dense in the output: vectors run along it. All is decided before code
is written, from extents, strides, the processor and the number of threads; `ProductBlocking.explain` prints it.

Source: own; the method is known as GETT (transpose-free contraction by packing), on the loop order of blocked GEMM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tileweave.backends.cpu.gemm.blocking import PARALLEL_WORK, ProductBlocking, ReadFrom, lies_in_panels, work_of
from tileweave.backends.cpu.gemm.dots import cut_dots
from tileweave.backends.cpu.gemm.packing.turning import turns
from tileweave.backends.cpu.gemm.panels import Contracted, Panels
from tileweave.backends.cpu.gemm.sides import ACROSS_PRODUCTS, VECTORS, dense_in, lanes_of, runs_across, side_dims
from tileweave.backends.cpu.gemm.tile import (
    BLOCK_BYTES,
    FEW_ROWS,
    PLACES,
    balanced,
    choose_tile,
    cut_for_threads,
    halves,
    holds_rows,
    paired_in_place,
    share,
    spreads,
    vector_registers,
)
from tileweave.backends.cpu.llvm.elements import Element
from tileweave.backends.cpu.llvm.vectors import short_row
from tileweave.backends.cpu.target.settings import DEFAULT, Settings, wished
from tileweave.backends.cpu.target.target import Target
from tileweave.layout.core.symbolic import divisors
from tileweave.teir.merged.form import MergedOp, Mode, fuse, injective, points


def block_product(
    op: MergedOp, elements: tuple[Element, ...], target: Target, threads: int, settings: Settings = DEFAULT
) -> ProductBlocking:
    """Decide how a contraction is computed.

    Args:
        op: a Contraction that does not read its output other than to accumulate.
        elements: of in0, in1, out.
        target: the processor.
        threads: how many will share the work; 1 inside a parallel region.
        settings: wishes of the caller.
    """
    return cut_product(op.modes, op.offsets, op.init == (), elements, target, threads, settings)


def cut_product(
    modes: Sequence[Mode],
    offsets: tuple[int, ...],
    stores: bool,
    elements: tuple[Element, ...],
    target: Target,
    threads: int,
    settings: Settings = DEFAULT,
) -> ProductBlocking:
    """As `block_product`, of a Contraction with these modes and offsets; ``stores``: it accumulates nothing."""
    out = elements[2]
    dims, offsets = _upright([dim for dim in modes if dim.extent > 1], offsets)
    summed = [dim for dim in dims if dim.strides[2] == 0]
    free, outer = _peeled([dim for dim in dims if dim.strides[2] != 0], out.width_bytes)
    batch: list[Mode] = []
    side0: list[Mode] = []
    side1: list[Mode] = []
    for dim in free:
        a, b, _ = dim.strides
        (batch if (a == 0) == (b == 0) else side0 if a else side1).append(dim)
    swapped = dense_in(side0, out.width_bytes, side1)
    sides = (side0, side1) if swapped else (side1, side0)
    unwished = settings is DEFAULT or settings == DEFAULT
    plain = elements[0] == elements[1] == out and unwished
    across = plain and runs_across(sides, int(not swapped), summed, out, target)
    swapped ^= across
    if swapped:
        side0, side1 = side1, side0
        outer, batch, summed = [_swap(d) for d in outer], [_swap(d) for d in batch], [_swap(d) for d in summed]
        offsets = (offsets[1], offsets[0], offsets[2])
    r, v = (1, 0) if swapped else (0, 1)
    row_element, column_element = elements[r], elements[v]
    row_dims = side_dims(side0, r)
    column_dims = side_dims(side1, v)
    n_rows, n_columns = points(row_dims), points(column_dims)
    widths = row_element.width_bytes, column_element.width_bytes
    contracted = Contracted(_contracted_dims(summed, widths, 8 * n_rows < n_columns))
    lanes = lanes_of(target, out, n_columns)
    contracted = _paired(contracted, (row_dims, column_dims), elements, target, lanes)
    contracted, interleaved_k = _interleaved(contracted, widths, target, n_rows, n_columns)
    stored = stores and not batch and column_element == out and not settings.pack_b
    transposed = _transposed(target, column_dims, lanes, out, n_rows, contracted) if stored else None
    choices: tuple[int, ...]
    paired_k = paired_in_place(target, (row_dims, column_dims), contracted, row_element, out)
    if transposed:
        column_dims, choices, most_k = transposed[0], (transposed[1],), contracted.total
    else:
        column_dims, choices, most_k = _arranged(target, column_dims, lanes, column_element, out, n_rows, contracted)
        most_k = interleaved_k or most_k
        choices = _whole_runs(column_dims, lanes, choices)
        panel = lies_in_panels(column_dims, contracted, column_element, out)
        choices = (panel // lanes,) if panel in (lanes, 2 * lanes, 3 * lanes, 4 * lanes) else choices
    most_k = ACROSS_PRODUCTS if across else most_k
    dense = bool(column_dims) and column_dims[0].strides[0] == column_element.width_bytes
    if n_rows == 1 and choices is VECTORS and dense:
        # the matrix is read once, from memory: 1 x 512 x 2048 takes 168 us in panels of 64 columns, 88 in those of 256
        wide = (v for v in (target.registers // 2, target.registers // 4) if n_columns % (v * lanes) == 0)
        choices = next(((v,) for v in wide if v > max(choices) and n_columns >= threads * v * lanes), choices)
    total = contracted.total
    work = 2 * n_rows * n_columns * total
    # the tile is chosen for the threads only where no sum depends on it: results must not differ with their number
    few = not batch and n_rows <= FEW_ROWS and PARALLEL_WORK < work < _SWEPT_FLOPS
    # all columns in one panel, or products so few that a row is better written in long runs; where masks cost nothing
    three = n_columns <= 3 * lanes or total <= _FEW_PRODUCTS
    three = (three and target.masks_stores) or n_columns == 3 * lanes
    some = (3,) if choices is VECTORS and n_columns > 2 * lanes and three else choices
    held = holds_rows(row_dims, contracted, row_element, same=row_element == column_element == out)
    chosen = choose_tile(
        vector_registers(target, contracted), n_rows, n_columns, lanes, some, threads if few else 1, held=held
    )
    mr, nv = settings.tile(chosen, choices, target.registers, lanes)
    mr = min(mr, n_rows)
    row_lanes = min(1 << (mr - 1).bit_length(), target.lanes(out.width_bytes), 16)
    rows = Panels(row_dims, row_element, out, out.width_bytes, mr, row_lanes)
    columns = Panels(column_dims, column_element, out, out.width_bytes, nv * lanes, lanes)
    c = _blocked(
        target, threads, tuple(outer), tuple(batch), rows, columns, contracted, swapped, offsets, most_k, paired_k
    )
    dots = cut_dots(c, target, threads) if unwished else None
    if dots is not None:
        return replace(dots, last=0)  # which a tile is cut by
    if not transposed:
        return wished(c, settings)
    unit = transposed[2]
    return replace(
        c,
        kc=contracted.total,
        row_panels=rows.panels,
        column_panels=-(-balanced(columns.panels, 4 * unit, threads) // unit) * unit,
        a=ReadFrom.SHARED,
        b=ReadFrom.IN_PLACE,
        keep_a=True,
        transposed_panels=unit,
    )


def _upright(dims: list[Mode], offsets: tuple[int, ...]) -> tuple[list[Mode], tuple[int, int, int]]:
    """Axes turned so that the output, or else an operand, is walked upwards."""
    if not dims or min([min(dim.strides) for dim in dims]) >= 0:
        return dims, (offsets[0], offsets[1], offsets[2])
    turned = []
    moved = list(offsets)
    for dim in dims:
        leading = dim.strides[2] or dim.strides[1] or dim.strides[0]
        if leading < 0:
            moved = [o + s * (dim.extent - 1) for o, s in zip(moved, dim.strides, strict=True)]
            dim = Mode(dim.extent, tuple(-s for s in dim.strides))
        turned.append(dim)
    return turned, (moved[0], moved[1], moved[2])


def _peeled(free: list[Mode], width_bytes: int) -> tuple[list[Mode], list[Mode]]:
    """Axes along which the output's elements are all different, and those that must stay outside as loops."""
    kept: list[Mode] = []
    peeled: list[Mode] = []
    if injective(tuple(free), 2, width_bytes):
        return free, []
    for dim in sorted(free, key=lambda d: abs(d.strides[2])):
        if injective((*kept, dim), 2, width_bytes):
            kept.append(dim)
        else:
            peeled.append(dim)
    return kept, peeled


def _swap(dim: Mode) -> Mode:
    a, b, c = dim.strides
    return Mode(dim.extent, (b, a, c))


def _contracted_dims(dims: list[Mode], widths: tuple[int, int], few_rows: bool) -> tuple[Mode, ...]:
    """The summed axes with strides (row operand, vector operand), fused, fastest first.

    An axis that is dense in the vector operand comes first, else one that is dense in the row operand: packing needs
    it. With few rows the row operand is small, and what is near in the vector operand comes first instead.
    """
    pairs = [Mode(dim.extent, dim.strides[:2]) for dim in dims]
    if len(pairs) == 1:
        return (pairs[0],)

    def rank(dim: Mode) -> tuple[int, int]:
        row, column = abs(dim.strides[0]), abs(dim.strides[1])
        if column == widths[1]:
            return 0, column
        return (1, row) if row == widths[0] and not few_rows else (2, column + (0 if few_rows else row))

    ordered = sorted(pairs, key=rank, reverse=True)
    return tuple(reversed(fuse(ordered)))


_PAIRED: dict[tuple[tuple[str, ...], int], tuple[tuple[str, int], ...]] = {
    (("BF16", "BF16", "FP32"), 16): (("avx512bf16", 2),),
    (("INT16", "INT16", "INT32"), 16): (("avx512vnni", 2), ("avx512bw", 2)),
    (("INT16", "INT16", "INT32"), 8): (("avx2", 2),),
    (("INT8", "INT8", "INT32"), 16): (("avx512vnni", 4), ("avx512bw", 2)),
    (("INT8", "INT8", "INT32"), 8): (("avx2", 2),),
}
"""Operands and sums, lanes -> the features of processors that multiply and add them together, the best first, and how
many at a time."""
_PAIRED_BYTES = 2
"""Of an element of theirs, at most."""


def _paired(
    contracted: Contracted,
    free_dims: tuple[tuple[Mode, ...], tuple[Mode, ...]],
    elements: tuple[Element, ...],
    target: Target,
    lanes: int,
) -> Contracted:
    """Products of few bits formed together, where the processor can and both operands pack well."""
    if elements[0].width_bytes > _PAIRED_BYTES:
        return contracted
    features = _PAIRED.get((tuple(element.name for element in elements), lanes), ())
    feature, together = next((one for one in features if target.has(one[0])), ("", 1))
    if not feature:
        return contracted
    if not contracted.dims or (contracted.tabled and contracted.dims[0].extent % together):
        return contracted
    width = elements[0].width_bytes
    for operand, dims in enumerate(free_dims):
        dense = [dim.strides[0] == width for dim in dims]
        if not contracted.dense(operand, width) and not (dense and dense[0]):
            return contracted
    return replace(contracted, paired=feature, together=together)


def _interleaved(
    contracted: Contracted, widths: tuple[int, int], target: Target, rows: int, columns: int
) -> tuple[Contracted, int]:
    """Two large operands that are dense in two different axes of K: blocks of K hold whole tiles of both.

    So every cache line that is read for a block serves several of its products. Returns the axes and the products per
    block; 0 where nothing is interleaved.
    """
    dims = contracted.dims
    if len(dims) < 2:
        return contracted, 0
    total = contracted.total
    large = not contracted.paired and min(rows * total * widths[0], columns * total * widths[1]) > target.l2_bytes
    other = next((k for k, dim in enumerate(dims) if k and dim.strides[0] == widths[0]), None)
    if not large or other is None or dims[0].strides[1] != widths[1]:
        return contracted, 0
    q = 16 // min(widths)
    pairs = [
        (a, b)
        for a in divisors(dims[0].extent)
        for b in divisors(dims[other].extent)
        if a % q == 0 and b % q == 0 and 128 <= a * b <= 400
    ]
    if not pairs:
        return contracted, 0

    def lines(pair: tuple[int, int]) -> float:
        a, b = pair
        per_column, per_row = b * max(1.0, a * widths[1] / 64), a * max(1.0, b * widths[0] / 64)
        return (columns * per_column + rows * per_row) / (a * b)

    a, b = min(pairs, key=lines)
    first, first_far = _halves(dims[0], a)
    second, second_far = _halves(dims[other], b)
    rest = [dim for k, dim in enumerate(dims) if k not in (0, other)]
    far = [dim for dim in (first_far, second_far, *rest) if dim.extent > 1]
    return Contracted((first, second, *far), interleaved=True), a * b


def _arranged(
    target: Target,
    dims: tuple[Mode, ...],
    lanes: int,
    operand: Element,
    out: Element,
    rows: int,
    contracted: Contracted,
) -> tuple[tuple[Mode, ...], tuple[int, ...], int]:
    """Columns in an order that suits the operand's memory as well as the output's.

    Returns the axes, the choices of vectors per panel, and the most products per block. Three cases: the operand is
    dense in the same axis as the output, and nothing changes; it is dense in another column axis, see `_grouped`, or
    else this one comes second, see `turning`; it is dense in K, and then neighbours in memory follow after one run of
    the output's dense axis.
    """
    width, any_vectors, most = operand.width_bytes, VECTORS, max(64, BLOCK_BYTES // out.width_bytes)
    if len(dims) < 2 or lanes < 4 or dims[0].strides[1] != out.width_bytes or dims[0].strides[0] == width:
        return dims, any_vectors, most
    dense = next((k for k, dim in enumerate(dims) if dim.strides[0] == width), None)
    if dense is not None:
        whole = dims[0].extent % lanes == 0
        grouped = _grouped(target, dims, dense, lanes, out, rows, contracted) if whole else None
        second = (dims[0], dims[dense], *(dim for k, dim in enumerate(dims) if k not in (0, dense)))
        return grouped or (second, any_vectors, most)
    if dims[0].extent % lanes:
        return dims, any_vectors, most
    for vectors in (3, 2, 1):
        if dims[0].extent % (vectors * lanes) == 0:
            run, more = _halves(dims[0], vectors * lanes)
            rest = [dim for dim in (more, *dims[1:]) if dim.extent > 1]
            return (run, *sorted(rest, key=lambda dim: abs(dim.strides[0]))), (vectors,), most
    return dims, any_vectors, most


def _whole_runs(dims: tuple[Mode, ...], lanes: int, choices: tuple[int, ...]) -> tuple[int, ...]:
    """Vectors per panel such that panels hold whole runs of a short first axis, which can then be staged."""
    if len(dims) < 2 or dims[0].extent % lanes == 0:
        return choices
    every = choices if choices is not VECTORS else (3, 2, 4, 1)
    return tuple(v for v in every if v * lanes % dims[0].extent == 0) or choices


def _transposed(
    target: Target, dims: tuple[Mode, ...], lanes: int, out: Element, rows: int, contracted: Contracted
) -> tuple[tuple[Mode, ...], int, int] | None:
    """Columns in panels that run along the operand's dense axis, which is not the output's.

    With few rows the operand is larger than the output, so its memory comes first: it is read in place, once,
    and the sums of some panels, which are neighbours in the output, are transposed in a buffer.

    Returns:
        The axes, vectors per panel and panels per stage; None where the operand is better packed.
    """
    width = out.width_bytes
    # nothing to transpose where both are dense in one axis; tiles of the buffer are whole vectors in both directions
    if len(dims) < 2 or dims[0].strides[1] != width or dims[0].strides[0] == width or dims[0].extent % lanes:
        return None
    dense = next((k for k, dim in enumerate(dims) if dim.strides[0] == width), None)
    if dense is None or dims[dense].extent % lanes or lanes * width != target.vector_bytes or lanes < 4:
        return None
    summed = contracted.total
    if rows > 64 or not 0 < summed <= BLOCK_BYTES // width or rows * points(dims) * summed < 5_000_000:
        return None
    vectors = next(v for v in (3, 2, 1) if dims[dense].extent % (v * lanes) == 0)
    # the buffer, a row of every panel of it, stays in the second cache beside what is read
    room = target.l2_bytes // 3 // ((rows + 8) * vectors * lanes * width)
    units = [x for x in divisors(dims[0].extent) if x % lanes == 0 and x <= room]
    if not units:
        return None
    run, runs = _halves(dims[dense], vectors * lanes)
    unit, more = _halves(dims[0], units[-1])
    rest = sorted((dim for k, dim in enumerate(dims) if k not in (0, dense)), key=lambda dim: abs(dim.strides[0]))
    return (run, unit, *(dim for dim in (runs, more, *rest) if dim.extent > 1)), vectors, units[-1]


_PAGE = 4096
"""Bytes; each page that packing or storing touches takes a place in the processor's table of addresses."""


def _grouped(
    target: Target, dims: tuple[Mode, ...], dense: int, lanes: int, out: Element, rows: int, contracted: Contracted
) -> tuple[tuple[Mode, ...], tuple[int, ...], int] | None:
    """Columns split so that panels can be packed from an operand that is dense in another column axis.

    The first axis, dense in the output, is cut into runs of one vector; the dense one of the operand into runs that
    are read at once. Their runs come first, so that a few neighbouring panels use every cache line that is read. Then
    come as many more of both as a chunk holds, in the ratio that touches the fewest pages per column.
    """
    q = short_row(lanes, out.memory)
    options = [
        (run, vectors)
        for vectors in (2, 3, 4)
        for run in range(q, 17, q)
        if dims[dense].extent % run == 0 and run % vectors == 0
    ]
    if not options:
        return None
    run, vectors = max(options, key=lambda option: option[0])
    most = max(64, 512 // out.width_bytes)
    blocks = -(-contracted.total // most)
    kc = -(-contracted.total // blocks)
    room = max(1, target.l2_bytes // 2 // (kc * lanes * run * out.width_bytes))
    step = abs(contracted.dims[0].strides[1]) if contracted.dims else 0
    inner_pages = max(1.0, min(kc, kc * step / _PAGE))
    output_pages = max(1 / run, min(1.0, abs(dims[dense].strides[1]) / _PAGE))

    def touched(x: int, y: int) -> float:
        return (lanes * x * inner_pages + rows * run * y * output_pages) / (x * y)

    pairs = [
        (x, y) for x in divisors(dims[0].extent // lanes) for y in divisors(dims[dense].extent // run) if x * y <= room
    ]
    x, y = min(pairs, key=lambda pair: (touched(*pair), -pair[0] * pair[1]))
    lane_run, lanes_left = _halves(dims[0], lanes)
    read_run, reads_left = _halves(dims[dense], run)
    lanes_near, lanes_far = _halves(lanes_left, x)
    reads_near, reads_far = _halves(reads_left, y)
    rest = [lanes_far, reads_far, *(dim for k, dim in enumerate(dims) if k not in (0, dense))]
    far = sorted((dim for dim in rest if dim.extent > 1), key=lambda dim: abs(dim.strides[0]))
    near = [dim for dim in (reads_near, lanes_near) if dim.extent > 1]
    return (lane_run, read_run, *near, *far), (vectors,), most


def _halves(dim: Mode, run: int) -> tuple[Mode, Mode]:
    """An axis as runs and the axis over the runs."""
    return Mode(run, dim.strides), Mode(dim.extent // run, tuple(run * s for s in dim.strides))


_SELDOM, _SMALL = 48, 1 << 15
"""Rows whose tiles read the vector operand too seldom for a packed copy to pay: each tile meets a line twice where
rows do not begin with lines, loads with masks, and a page of memory with every row or two. 440 x 103 x 250 takes 250 us
in place and 209 packed, 512 x 1280 x 508 8.4 ms and 6.5, 308 x 88 x 45 31 us and 28, 40 x 500 x 200 94 us and 104.
Beside them, multiplications so few that what packing takes before it begins counts: 49 x 18 x 17."""
_FEW_PANELS, _FEW_PRODUCTS = 8, 8
"""Row panels that read the vector operand too seldom for a packed copy to be worth the pass that makes it, whatever its
size: 29 x 2924 x 625 takes 1022 us in place and 1260 packed. Products so few that a tile computes addresses for longer
than it would read a packed panel."""
_SWEPT_FLOPS = 10_000_000
"""Work from which the block of A may stay."""
_L1_SHARE, _L2_SHARE = 0.64, 0.6
"""How much of the first cache a packed column panel takes, and of the second what is packed and stays there."""


def _blocked(
    target: Target,
    threads: int,
    outer: tuple[Mode, ...],
    batch: tuple[Mode, ...],
    rows: Panels,
    columns: Panels,
    contracted: Contracted,
    swapped: bool,
    offsets: tuple[int, int, int],
    most_k: int,
    paired_k: int,
) -> ProductBlocking:
    total, n_rows, n_columns = contracted.total, rows.total, columns.total
    all_rows, all_columns = -(-n_rows // rows.width), -(-n_columns // columns.width)  # panels
    width = columns.sums.width_bytes // contracted.together  # of one packed element
    most_k *= contracted.together
    blocks = -(-total // most_k)
    kc = -(-total // blocks) if contracted.interleaved else _even(total, most_k, columns.lanes)
    same_type = columns.element == columns.sums
    small = total * n_columns * width <= 24 * 1024  # B stays in a first cache as it lies
    few_rows = all_rows <= 1  # B is read once: packing would read it once as well
    compact = n_rows <= FEW_ROWS and total * n_columns * width <= target.l2_bytes // 2 and _close(contracted, columns)
    in_panels = lies_in_panels(columns.dims, contracted, columns.element, columns.sums) == columns.width
    stays = total * n_columns * width <= target.l2_bytes // 2 or all_rows <= _FEW_PANELS
    whole = n_columns >= columns.lanes or all_rows <= 2  # a vector with a mask, read again and again, is better packed
    near_b = stays and whole and spreads(contracted.dims, 1)
    # micro-kernels load B in whole vectors of the type of the sums, each one run of memory; else it has to be packed
    lies_near = (
        columns.operand_dense
        and same_type
        and columns.segments == 1
        and (small or few_rows or compact or near_b or in_panels)
    )
    # its memory is that of a panel or two, whatever the tile: what decides the blocks of K knows of no threads
    panel = n_columns in [v * columns.lanes for v in (1, 2, 3, 4)] and contracted.stride(1) == n_columns * width
    short = total < _FEW_PRODUCTS or n_rows * n_columns * total <= _SMALL  # tables and calls take longer
    b_in_place = lies_near and (n_rows <= _SELDOM or in_panels or panel or short)
    if paired_k:
        kc = _even(total, paired_k, columns.lanes)
    elif b_in_place and compact:
        kc = min(total, 4096)
    in_l2 = max(1, int(target.l2_bytes * _L2_SHARE) // (kc * columns.width * width))
    column_panels = min(all_columns, in_l2)
    row_panels = min(all_rows, max(1, 2048 // rows.width))
    column_chunks = -(-all_columns // column_panels)
    # so few column panels read A too seldom for a packed copy to be worth the pass that makes it
    seldom = min(all_columns, column_panels) * column_chunks <= 4
    stays = n_rows * kc * width <= target.l2_bytes // 2 and total >= _FEW_PRODUCTS  # else addresses cost more than it
    rows_spread = rows.width <= target.l1_bytes // PLACES or len(rows.dims) > 1 or spreads(rows.dims, 0)
    near_a = lies_near and stays and len(rows.dims) == 1 and spreads(contracted.dims, 0)
    held_a = holds_rows(rows.dims, contracted, rows.element, same=same_type and rows.element == rows.sums)
    a_in_place = rows.element == rows.sums and (rows_spread or all_columns == 1) and (seldom or near_a or held_a)
    if paired_k:
        a_in_place, row_panels, column_panels = True, all_rows, 1
    # rows that stay in the first cache: 8 x 128 x 512 takes 22 us where each row panel reads all columns, 19 so
    rows_bytes, columns_bytes = n_rows * total * width, total * n_columns * width
    near_rows = rows_bytes <= target.l1_bytes // 2 and columns_bytes > target.l1_bytes and rows.element == rows.sums
    columns_first = near_rows and b_in_place and in_panels and blocks == 1 and all_rows > 1
    a_in_place = a_in_place or columns_first
    at_once = columns.pack_panels
    column_panels = max(1, column_panels // at_once) * at_once  # panels that are packed together stay together
    batches = points(batch)
    work = 2 * batches * n_rows * n_columns * total
    # every chunk of columns would pack the same rows again: they are packed once for all, at the price of a barrier
    shared = (
        not a_in_place
        and column_chunks >= 2
        and n_rows * kc * width >= 16 * 1024
        and (column_panels * columns.width < 700 or n_rows > 1024)
        and all_rows * all_columns >= 16
    )
    keep_a = batches == 1 and not a_in_place and work > _SWEPT_FLOPS and all_columns >= 4 * at_once
    keep_a = keep_a and not turns(columns, contracted)  # which packs all panels of a chunk at once
    near = blocks == 1 and n_rows * kc * width <= target.l2_bytes * _L2_SHARE
    keep_b = False
    if keep_a and not near:  # else all of A stays in the second cache, whatever kc is
        keep_a = at_once == 1
        in_l1 = max(64, int(target.l1_bytes * _L1_SHARE) // (columns.width * width))
        if keep_a and not contracted.interleaved:
            # where wide panels leave few products between two visits to C, B's block stays instead, of longer panels:
            # 2048 x 2048 x 2048 runs at 108 GFLOP/s so, and 102 else, with two threads at 200 and 165
            large = column_chunks > 2 and n_rows * kc * width > target.l2_bytes
            keep_b = large and 2 * in_l1 < kc
            kc = kc if keep_b else _even(total, in_l1, columns.lanes)
    shared, keep_a = shared or keep_b, keep_a and not keep_b
    keep_a = keep_a and share(all_columns // at_once, threads) > 0.8  # which leaves kc alone: threads change no sum
    if keep_a:
        shared = True
        row_panels = max(1, int(target.l2_bytes * _L2_SHARE) // (kc * rows.width * width))
        row_panels = balanced(all_rows, row_panels, 1)
        row_panels = min(all_rows, -(-row_panels // columns.lanes) * columns.lanes)  # as stages need it
        column_panels = -(-balanced(all_columns, max(at_once, _SWEPT), threads) // at_once) * at_once
    elif shared:
        row_panels = min(all_rows, max(1, (8 << 20) // (kc * rows.width * width)))
        if threads > 1:
            column_panels = balanced(all_columns, column_panels, threads)
    elif threads > 1 and work_of(rows, columns, contracted, batches) >= PARALLEL_WORK:
        most, in_place = (row_panels, column_panels), (a_in_place, b_in_place)
        row_panels, column_panels = cut_for_threads((rows, columns), contracted, most, kc, batches, threads, in_place)
    column_panels = min(all_columns, -(-column_panels // at_once) * at_once)
    last = 0
    if all_columns <= _OWN_LAST:
        part = columns.lanes // 2 if halves(target, columns.lanes, columns.sums, contracted) else columns.lanes
        last = -(-(n_columns % columns.width) // part) * (2 * part // columns.lanes)
    return ProductBlocking(
        outer,
        batch,
        rows,
        columns,
        contracted,
        swapped,
        offsets,
        kc,
        row_panels,
        column_panels,
        ReadFrom.IN_PLACE if a_in_place else ReadFrom.SHARED if shared else ReadFrom.PACKED,
        ReadFrom.IN_PLACE if b_in_place else ReadFrom.PACKED,
        keep_a or columns_first,
        last=last,
    )


_OWN_LAST = 4
"""Column panels that are so few that the last one is worth a tile of its size."""
_SWEPT = 64
"""Column panels of a chunk that pass by the rows; their tables are made at once."""


def _close(contracted: Contracted, columns: Panels) -> bool:
    """Whether the vector operand's rows follow each other in memory, with little or nothing between them."""
    row_bytes = columns.total * columns.element.width_bytes
    return bool(contracted.dims) and abs(contracted.dims[0].strides[1]) <= 2 * row_bytes


def _even(total: int, most: int, lanes: int) -> int:
    """Products per block: blocks as even as whole vectors allow, of at most so many products or a few more."""
    blocks = -(-total // most)
    kc = -(-total // blocks)
    return kc if blocks == 1 else -(-kc // lanes) * lanes
