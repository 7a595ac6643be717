"""The kernel IR: frozen values, their text, their JSON, the rules for well-formed kernels."""

from tileweave.kernel.ir.document import from_json, to_json
from tileweave.kernel.ir.dtypes import DTYPES, Dtype, dtype_of, promote
from tileweave.kernel.ir.operators import ELEMENTWISE, MONOIDS, OPERATORS, Elementwise, Operator
from tileweave.kernel.ir.statements import (
    Alloc,
    Arrive,
    Await,
    Break,
    Candidate,
    Choice,
    Commit,
    Continue,
    Fence,
    For,
    Grid,
    Init,
    Instr,
    Intrinsic,
    Kernel,
    Let,
    On,
    Op,
    Signal,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    While,
    blocks_of,
    walk,
)
from tileweave.kernel.ir.text import head, to_text
from tileweave.kernel.ir.values import (
    NOWHERE,
    Line,
    Number,
    Region,
    Scalar,
    Scope,
    Tensor,
    clipped,
    cta_scope,
    whole,
)
from tileweave.kernel.ir.verify import RULES, verify

__all__ = [
    "DTYPES", "ELEMENTWISE", "MONOIDS", "NOWHERE", "OPERATORS", "RULES", "Alloc", "Arrive", "Await", "Break",
    "Candidate", "Choice", "Commit", "Continue", "Dtype", "Elementwise", "Fence", "For", "Grid", "Init", "Instr",
    "Intrinsic", "Kernel", "Let", "Line", "Number", "On", "Op", "Operator", "Region", "Scalar", "Scope", "Signal",
    "Statement", "Sync", "Tensor", "Wait", "WaitGroup", "When", "While", "blocks_of", "clipped", "cta_scope",
    "dtype_of", "from_json", "head", "promote", "to_json", "to_text", "verify", "walk", "whole",
]  # fmt: skip
