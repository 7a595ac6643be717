"""Symbolic integer expressions: build with Python operators, simplify, prove, evaluate, print.

Example:
    >>> from tileweave.index import simplify, symbol, symbols, to_c
    >>> rows, cols = symbols("rows cols", 1)
    >>> r, c = symbol("r", 0, rows), symbol("c", 0, cols)
    >>> flat = r * cols + c
    >>> to_c(simplify(flat // cols))
    'r'
"""

from tileweave.index.affine import let, split_affine, substitute
from tileweave.index.cost import cost, ops
from tileweave.index.evaluate import evaluate
from tileweave.index.expr import (
    Expr,
    ExprLike,
    as_expr,
    const,
    constant_of,
    equal,
    isqrt,
    maximum,
    minimum,
    select,
    symbol,
    symbols,
    unequal,
)
from tileweave.index.prove import bijective, bounds, divisor, equivalent, prove, proved, require
from tileweave.index.provers import Verdict
from tileweave.index.simplify import simplify
from tileweave.index.text.mlir import to_mlir
from tileweave.index.text.program import c_prelude, to_c, to_python
from tileweave.index.trees import symbols_of

__all__ = [
    "Expr",
    "ExprLike",
    "Verdict",
    "as_expr",
    "bijective",
    "bounds",
    "c_prelude",
    "const",
    "constant_of",
    "cost",
    "divisor",
    "equal",
    "equivalent",
    "evaluate",
    "isqrt",
    "let",
    "maximum",
    "minimum",
    "ops",
    "prove",
    "proved",
    "require",
    "select",
    "simplify",
    "split_affine",
    "substitute",
    "symbol",
    "symbols",
    "symbols_of",
    "to_c",
    "to_mlir",
    "to_python",
    "unequal",
]
