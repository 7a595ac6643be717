"""Values at the places that sort, where nobody else reads these: sorted without places, which takes half as long."""

from __future__ import annotations

from tileweave.graph.ir.nodes import Operation, Tensor
from tileweave.graph.ops.along import sorted_values
from tileweave.graph.passes.rewrite import RewriteContext, RewriteRule


def _values_alone(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    take = tensor.producer
    if not isinstance(take, Operation) or take.operator != "take_along_axis" or take.signature is None:
        return None
    x, places = take.input("x"), take.input("indices")
    sort = places.producer
    if not isinstance(sort, Operation) or sort.operator != "sort" or sort.signature is None:
        return None
    if places.output != "indices":  # sorted values may be places of their own
        return None
    axis = take.parameter("axis")
    if sort.input("x") is not x or sort.parameter("axis") != axis or not context.alone(places):
        return None
    return sorted_values(x, axis, sort.parameter("descending"), tensor.shape[axis])


VALUES_ALONE = RewriteRule("values-alone", "elements at the places that sort them are the sorted ones", _values_alone)
