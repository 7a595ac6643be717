"""TEIR, the tiled execution IR: axes say where, a schedule tree says when, primitives say what."""

from tileweave.teir.analysis.analyse import Conflict, byte_bounds, out_of_bounds, races
from tileweave.teir.analysis.branches import overlap
from tileweave.teir.analysis.coverage import uninitialised, unwritten
from tileweave.teir.analysis.interpret import interpret, tile_address
from tileweave.teir.analysis.lower import Explanation, eligibility, explain
from tileweave.teir.analysis.svg import to_svg
from tileweave.teir.emit.attention import emit_attention
from tileweave.teir.emit.chains import emit_chain
from tileweave.teir.emit.compose import sequence
from tileweave.teir.emit.contraction import emit_contraction
from tileweave.teir.emit.elements import emit_copy, emit_elementwise, emit_reduction, emit_relu, emit_zero
from tileweave.teir.emit.network import emit_einsum
from tileweave.teir.emit.pieces import emit_contraction_in_pieces, summed_length
from tileweave.teir.emit.running import emit_place, emit_running
from tileweave.teir.emit.schedule import Chooser, LoopDim, Tiling, contraction_tiles, elementwise_tiles, untiled
from tileweave.teir.emit.terms import Operand, StridedOperand
from tileweave.teir.ir import examples
from tileweave.teir.ir.document import from_json, schema, to_json
from tileweave.teir.ir.dtypes import dtype_name, numpy_dtype
from tileweave.teir.ir.policies import PolicySpec, policies, register_policy
from tileweave.teir.ir.primitives import OperationSpec, operands_of, operation, operations, register
from tileweave.teir.ir.profiles import as_document, as_tileweave
from tileweave.teir.ir.program import (
    Axis,
    Entries,
    First,
    Guard,
    Id,
    Invocation,
    Iteration,
    Last,
    Node,
    Operation,
    Policy,
    Primitive,
    Profile,
    Program,
    TensorSpec,
    print_by,
)
from tileweave.teir.ir.text import show
from tileweave.teir.ir.verify import Problem, Rule, problems, verify
from tileweave.teir.transform.follow import fuse_epilogue, fuse_prologue
from tileweave.teir.transform.move import hoist, pack, sink
from tileweave.teir.transform.steps import demote, fuse, parallelize, promote, reorder, sequentialize, split
from tileweave.teir.transform.tile import gather, tile
from tileweave.teir.transform.trees import merge, split_tree

__all__ = [
    "Axis",
    "Chooser",
    "Conflict",
    "Entries",
    "Explanation",
    "First",
    "Guard",
    "Id",
    "Invocation",
    "Iteration",
    "Last",
    "LoopDim",
    "Node",
    "Operand",
    "Operation",
    "OperationSpec",
    "Policy",
    "PolicySpec",
    "Primitive",
    "Problem",
    "Profile",
    "Program",
    "Rule",
    "StridedOperand",
    "TensorSpec",
    "Tiling",
    "as_document",
    "as_tileweave",
    "byte_bounds",
    "contraction_tiles",
    "demote",
    "dtype_name",
    "elementwise_tiles",
    "eligibility",
    "emit_attention",
    "emit_chain",
    "emit_contraction",
    "emit_contraction_in_pieces",
    "emit_copy",
    "emit_einsum",
    "emit_elementwise",
    "emit_place",
    "emit_reduction",
    "emit_relu",
    "emit_running",
    "emit_zero",
    "examples",
    "explain",
    "from_json",
    "fuse",
    "fuse_epilogue",
    "fuse_prologue",
    "gather",
    "hoist",
    "interpret",
    "merge",
    "numpy_dtype",
    "operands_of",
    "operation",
    "operations",
    "out_of_bounds",
    "overlap",
    "pack",
    "parallelize",
    "policies",
    "problems",
    "promote",
    "races",
    "register",
    "register_policy",
    "reorder",
    "schema",
    "sequence",
    "sequentialize",
    "sink",
    "split",
    "split_tree",
    "summed_length",
    "tile",
    "tile_address",
    "to_json",
    "uninitialised",
    "untiled",
    "unwritten",
    "verify",
]

print_by("text", show)
print_by("svg", to_svg)
