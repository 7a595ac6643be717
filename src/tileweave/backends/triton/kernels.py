"""Which layouts fill which template: a few lines for each kernel, for constant sizes or symbolic ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tileweave.errors import LayoutError
from tileweave.index import Expr, ExprLike, symbol
from tileweave.layout.lego import Col, OrderBy, PartialTiles, Row, grouped
from tileweave.layout.template import Template, template
from tileweave.layout.template.collection import check_options, named, options_of

FOLDER = Path(__file__).parent / "templates"
LARGEST = (1 << 31) - (1 << 16)
"""Sizes, and numbers of programs, stay below it: 32 bits, with room to round up to a tile."""
WIDEST_ROW = 1 << 16
"""Elements of a row that one program keeps in registers."""

Size = int | Expr
Order = Literal["row", "col"]


def _size(name: str, value: Size | None) -> Any:
    """A size: the given number or expression, or a symbol that becomes an argument of the kernel."""
    if value is not None and not isinstance(value, Expr) and not (type(value) is int and 1 <= value < LARGEST):
        raise LayoutError("kernel(name, ..)", f"the size {name} is {value!r}", legal=f"1 .. {LARGEST - 1}")
    return symbol(name, 1, LARGEST) if value is None else value


def _check_counts(**counts: object) -> None:
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise LayoutError("kernel(name, ..)", f"{name} is {value!r}", legal="a positive integer")


def _ceil(n: ExprLike, tile: int) -> Any:
    return (n + tile - 1) // tile


def _fits(count: ExprLike) -> list[Expr]:
    return [count < LARGEST] if isinstance(count, Expr) else []


def _stored(order: Order, *dims: Any) -> OrderBy:
    if order not in ("row", "col"):
        raise LayoutError("kernel(name, ..)", f"order {order!r}", legal="'row' or 'col'")
    return OrderBy(Row(*dims) if order == "row" else Col(*dims))


def matmul(
    M: Size | None = None,
    N: Size | None = None,
    K: Size | None = None,
    *,
    BM: int = 64,
    BN: int = 64,
    BK: int = 32,
    group: int = 8,
    a: Order = "row",
    b: Order = "row",
) -> Template:
    """C = A B with A and B stored by rows or columns, programs in groups of `group` row blocks; accumulated in FP32."""
    _check_counts(BM=BM, BN=BN, BK=BK, group=group)
    m, n, k = _size("M", M), _size("N", N), _size("K", K)
    rows, columns = _ceil(m, BM), _ceil(n, BN)
    pid = symbol("pid", 0, rows * columns)
    i, j = grouped(rows, columns, group).inv(pid)
    step = symbol("k", 0, _ceil(k, BK))
    return template(
        FOLDER / "matmul.py.j2",
        grid=(rows * columns,),
        given=[pid < LARGEST, *_fits(rows * columns)],
        a=PartialTiles((m, k), (BM, BK), chain=_stored(a, m, k))[i, step, :, :],
        b=PartialTiles((k, n), (BK, BN), chain=_stored(b, k, n))[step, j, :, :],
        c=PartialTiles((m, n), (BM, BN))[i, j, :, :],
        steps=_ceil(k, BK),
        BM=BM,
        BN=BN,
    )


def _row_block(N: Size | None, BN: int | None) -> int:
    known = N if isinstance(N, int) else None
    if BN is None and known is None:
        return 4096
    return BN or 1 << max(known or 1, 1).bit_length() - (known is not None and known & (known - 1) == 0)


def _rows(M: Size | None, N: Size | None, BN: int | None) -> tuple[Any, Any, Any, Any, list[Expr]]:
    """Sizes, the slice of a whole row, that of a vector as long, and what is given."""
    _check_counts(BN=1 if BN is None else BN)
    block = _row_block(_size("N", N) if N is not None else None, BN)
    if block > WIDEST_ROW:
        raise LayoutError("kernel(name, N=..)", f"a row of {N} elements", legal=f"up to {WIDEST_ROW}")
    m, n = _size("M", M), symbol("N", 1, block + 1) if N is None else N
    row = symbol("row", 0, m)
    whole = PartialTiles((m, n), (1, block))[row, 0, 0, :]
    return m, n, whole, PartialTiles((n,), (block,))[0, :], []


def softmax(M: Size | None = None, N: Size | None = None, *, BN: int | None = None) -> Template:
    """Softmax of every row of an M x N array, one program for each; BN is the greatest N, a power of two."""
    m, _n, x, _vector, given = _rows(M, N, BN)
    return template(FOLDER / "softmax.py.j2", grid=(m,), given=given, x=x)


def layernorm(M: Size | None = None, N: Size | None = None, *, BN: int | None = None, eps: float = 1e-5) -> Template:
    """Layer normalisation of every row, with its mean and reciprocal deviation kept for the gradient."""
    m, n, x, vector, given = _rows(M, N, BN)
    return template(FOLDER / "layernorm.py.j2", grid=(m,), given=given, x=x, w=vector, n=n, eps=eps)


def layernorm_dx(M: Size | None = None, N: Size | None = None, *, BN: int | None = None) -> Template:
    """The gradient of layer normalisation with respect to its input."""
    m, n, x, vector, given = _rows(M, N, BN)
    return template(FOLDER / "layernorm_dx.py.j2", grid=(m,), given=given, x=x, w=vector, n=n)


def layernorm_dwdb(M: Size | None = None, N: Size | None = None, *, BM: int = 32, BN: int = 64) -> Template:
    """The gradients of layer normalisation in weight and bias: sums over all rows, by blocks of columns."""
    _check_counts(BM=BM, BN=BN)
    m, n = _size("M", M), _size("N", N)
    block, r = symbol("block", 0, _ceil(n, BN)), symbol("r", 0, _ceil(m, BM))
    return template(
        FOLDER / "layernorm_dwdb.py.j2",
        grid=(_ceil(n, BN),),
        x=PartialTiles((m, n), (BM, BN))[r, block, :, :],
        rows=PartialTiles((m,), (BM,))[r, :],
        columns=PartialTiles((n,), (BN,))[block, :],
        steps=_ceil(m, BM),
        BN=BN,
    )


def grouped_gemm(
    *, groups: int = 4, programs: int = 16, BM: int = 64, BN: int = 64, BK: int = 32, dtype: str = "tl.float16"
) -> Template:
    """C = A B for several problems in one launch; every program takes each `programs`-th tile of them all."""
    _check_counts(groups=groups, programs=programs, BM=BM, BN=BN, BK=BK)
    m, n, kk = (symbol(name, 1, LARGEST) for name in ("m", "n", "kk"))
    rows, columns = _ceil(m, BM), _ceil(n, BN)
    tile, k = symbol("tile", 0, rows * columns), symbol("k", 0, _ceil(kk, BK))
    i, j = tile // columns, tile % columns
    return template(
        FOLDER / "grouped_gemm.py.j2",
        grid=(programs,),
        given=[tile < LARGEST, rows * columns < LARGEST],
        a=PartialTiles((m, kk), (BM, BK))[i, k, :, :],
        b=PartialTiles((kk, n), (BK, BN))[k, j, :, :],
        c=PartialTiles((m, n), (BM, BN))[i, j, :, :],
        tiles=rows * columns,
        steps=_ceil(kk, BK),
        groups=groups,
        programs=programs,
        BM=BM,
        BN=BN,
        dtype=dtype,
    )


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A named kernel: the function that binds its template, and what its pointers hold.

    Args:
        name: also of the function in the text.
        build: takes sizes and options, returns the template.
        pointers: the array arguments, in order.
        precise: those that are FP32 whatever the others are; ``int64`` ones hold addresses, ``int32`` ones sizes.
    """

    name: str
    build: Callable[..., Template]
    pointers: tuple[str, ...]
    precise: Mapping[str, str]

    @property
    def options(self) -> tuple[str, ...]:
        """The names that `build` takes."""
        return options_of(self.build)

    def template(self, **options: Any) -> Template:
        """The template for sizes and options; a size left out becomes an argument of the kernel.

        Raises:
            LayoutError: an unknown option.
        """
        check_options(self.name, self.build, options)
        return self.build(**options)

    def signature(self, dtype: str, arguments: tuple[str, ...]) -> dict[str, str]:
        """Triton's types of all parameters, for arrays of `dtype` such as ``fp16``."""
        pointers = {name: f"*{self.precise.get(name, dtype)}" for name in self.pointers}
        return pointers | dict.fromkeys(arguments, "i32")


_STATISTICS = {"mean_ptr": "fp32", "rstd_ptr": "fp32"}
KERNELS: dict[str, TritonKernel] = {
    entry.name: entry
    for entry in (
        TritonKernel("matmul", matmul, ("a_ptr", "b_ptr", "c_ptr"), {}),
        TritonKernel("softmax", softmax, ("x_ptr", "y_ptr"), {}),
        TritonKernel("layernorm", layernorm, ("x_ptr", "w_ptr", "b_ptr", "y_ptr", "mean_ptr", "rstd_ptr"), _STATISTICS),
        TritonKernel(
            "layernorm_dx", layernorm_dx, ("x_ptr", "w_ptr", "dy_ptr", "mean_ptr", "rstd_ptr", "dx_ptr"), _STATISTICS
        ),
        TritonKernel(
            "layernorm_dwdb",
            layernorm_dwdb,
            ("x_ptr", "dy_ptr", "mean_ptr", "rstd_ptr", "dw_ptr", "db_ptr"),
            _STATISTICS | {"dw_ptr": "fp32", "db_ptr": "fp32"},
        ),
        TritonKernel(
            "grouped_gemm",
            grouped_gemm,
            ("a_ptrs", "b_ptrs", "c_ptrs", "sizes_ptr"),
            {"a_ptrs": "i64", "b_ptrs": "i64", "c_ptrs": "i64", "sizes_ptr": "i32"},
        ),
    )
}


def kernel(name: str) -> TritonKernel:
    """The kernel of that name.

    Raises:
        LayoutError: there is none; the message lists the names.
    """
    return named(KERNELS, name)
