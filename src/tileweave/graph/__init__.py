"""Tensor expression graphs: immutable nodes, operators, selectors, their meaning in NumPy, sharding and gradients.

The functions of tensors are those that `tileweave.graph.ops` and `tileweave.graph.nn` make public, and those of
operators that anybody registers.
"""

from typing import TYPE_CHECKING, Any

from tileweave.graph import array_api, nn, ops  # noqa: F401  (they fill the table of functions)
from tileweave.graph.ir.document import to_json
from tileweave.graph.ir.nodes import (
    ArrayData,
    FileData,
    FileTarget,
    Graph,
    Hole,
    MemoryTarget,
    Node,
    Operation,
    Selector,
    SequencePoint,
    Signature,
    Sink,
    SinkPart,
    Source,
    Tensor,
    TensorType,
    topological,
)
from tileweave.graph.ir.resolve import resolve
from tileweave.graph.ir.sugar import FUNCTIONS
from tileweave.graph.ir.svg import svg
from tileweave.graph.ir.text import GraphTable, explain, text
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.elementwise import elementwise_operator
from tileweave.graph.ops.monoids import TUPLE_MONOIDS, TupleMonoid
from tileweave.graph.ops.operators import OPERATORS, Operator
from tileweave.graph.passes.coalesce import coalesce
from tileweave.graph.passes.custom import BlockOperator, block_operator, check_projections
from tileweave.graph.passes.evaluate import evaluate
from tileweave.graph.passes.grad import grad
from tileweave.graph.passes.rewrite import RewriteRule, Rewritten, rewrite
from tileweave.graph.passes.rewrite import RewriteRule as Rule
from tileweave.graph.passes.rules import EXPANSIONS, OPTIMIZATIONS
from tileweave.graph.passes.shard import Partition, expand, join_sinks, partition
from tileweave.graph.passes.sharding import check_sharding, is_sharding
from tileweave.graph.passes.verify import from_json, problems, verify

if TYPE_CHECKING:
    from tileweave.graph.ir.assemble import *
    from tileweave.graph.ir.select import *
    from tileweave.graph.nn import *
    from tileweave.graph.ops.along import *
    from tileweave.graph.ops.contract import *
    from tileweave.graph.ops.elementwise import *
    from tileweave.graph.ops.functions import *
    from tileweave.graph.ops.generate import *
    from tileweave.graph.ops.indexing import *
    from tileweave.graph.ops.reductions import *
    from tileweave.graph.ops.windows import *

__all__ = [
    "EXPANSIONS",
    "FUNCTIONS",
    "OPERATORS",
    "OPTIMIZATIONS",
    "TUPLE_MONOIDS",
    "ArrayData",
    "BlockOperator",
    "FileData",
    "FileTarget",
    "Graph",
    "GraphTable",
    "Hole",
    "MemoryTarget",
    "Node",
    "Operation",
    "Operator",
    "Partition",
    "RewriteRule",
    "Rewritten",
    "Rule",
    "Selector",
    "SequencePoint",
    "Signature",
    "Sink",
    "SinkPart",
    "Source",
    "Tensor",
    "TensorType",
    "TupleMonoid",
    "as_tensor",
    "block_operator",
    "check_projections",
    "check_sharding",
    "coalesce",
    "elementwise_operator",
    "evaluate",
    "expand",
    "explain",
    "from_json",
    "grad",
    "is_sharding",
    "join_sinks",
    "partition",
    "problems",
    "resolve",
    "rewrite",
    "to_json",
    "topological",
    "verify",
]
__all__ += sorted(set(FUNCTIONS) - set(__all__))


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *FUNCTIONS})


# a value does not know its printers
setattr(Graph, "__str__", text)  # noqa: B010
setattr(Graph, "_repr_svg_", svg)  # noqa: B010
