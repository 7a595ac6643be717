"""TEIR, the tiled execution IR: axes say where, a schedule tree says when, primitives say what."""

from tileweave.teir.analyse import Conflict, byte_bounds, out_of_bounds, races
from tileweave.teir.branches import overlap
from tileweave.teir.compose import sequence
from tileweave.teir.coverage import uninitialised, unwritten
from tileweave.teir.document import from_json, schema, to_json
from tileweave.teir.dtypes import dtype_name, numpy_dtype
from tileweave.teir.emit import emit_contraction
from tileweave.teir.emit_elements import emit_copy, emit_elementwise, emit_reduction, emit_relu, emit_zero
from tileweave.teir.emit_pieces import emit_contraction_in_pieces, summed_length
from tileweave.teir.emit_rows import emit_chain, emit_layer_norm, emit_max_sum_exp, emit_rms_norm, emit_softmax
from tileweave.teir.follow import fuse_epilogue, fuse_prologue
from tileweave.teir.interpret import interpret, tile_address
from tileweave.teir.lower import Explanation, eligibility, explain
from tileweave.teir.model import Cache, Cost, Machine, estimate
from tileweave.teir.move import hoist, pack, sink
from tileweave.teir.network import emit_einsum
from tileweave.teir.primitives import OperationSpec, operands_of, operation, operations, register
from tileweave.teir.profiles import as_document, as_tileweave
from tileweave.teir.program import (
    Axis,
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
)
from tileweave.teir.schedule import Chooser, Dim, Tiling, contraction_tiles, elementwise_tiles, untiled
from tileweave.teir.search import Candidate, candidates, gather, tile
from tileweave.teir.terms import Operand
from tileweave.teir.transform import demote, fuse, parallelize, promote, reorder, sequentialize, split
from tileweave.teir.trees import merge, split_tree
from tileweave.teir.verify import Problem, Rule, problems, verify

__all__ = [
    "Axis",
    "Cache",
    "Candidate",
    "Chooser",
    "Conflict",
    "Cost",
    "Dim",
    "Explanation",
    "First",
    "Guard",
    "Id",
    "Invocation",
    "Iteration",
    "Last",
    "Machine",
    "Node",
    "Operand",
    "Operation",
    "OperationSpec",
    "Policy",
    "Primitive",
    "Problem",
    "Profile",
    "Program",
    "Rule",
    "TensorSpec",
    "Tiling",
    "as_document",
    "as_tileweave",
    "byte_bounds",
    "candidates",
    "contraction_tiles",
    "demote",
    "dtype_name",
    "elementwise_tiles",
    "eligibility",
    "emit_chain",
    "emit_contraction",
    "emit_contraction_in_pieces",
    "emit_copy",
    "emit_einsum",
    "emit_elementwise",
    "emit_layer_norm",
    "emit_max_sum_exp",
    "emit_reduction",
    "emit_relu",
    "emit_rms_norm",
    "emit_softmax",
    "emit_zero",
    "estimate",
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
    "problems",
    "promote",
    "races",
    "register",
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
