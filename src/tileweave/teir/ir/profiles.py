"""From one profile to the other: the same axes and schedule, operands bound by name or by position.

Source: own.
"""

from __future__ import annotations

from dataclasses import replace

from tileweave.teir.ir.dtypes import DTYPES
from tileweave.teir.ir.primitives import DOCUMENT_OPERATIONS, operands_of, operation
from tileweave.teir.ir.program import Primitive, Program
from tileweave.teir.ir.verify import Problem, failure, problems, verify


def as_tileweave(program: Program) -> Program:
    """The same program in the ``tileweave`` profile: operands bound by name.

    Args:
        program: well formed, of either profile.

    Raises:
        VerifyError: the program is not well formed, or not in the other profile (a narrow accumulator, for example).

    Example:
        >>> from tileweave.teir import examples
        >>> as_tileweave(examples.contraction_gemm(dict.fromkeys("pqrstu", 2))).primitives[1].operands
        ('in0', 'in1', 'out')
    """
    verify(program)
    bound = tuple(replace(p, operands=operands_of(p, program)) for p in program.primitives)
    result = replace(program, profile="tileweave", primitives=bound)
    verify(result)
    return result


def as_document(program: Program) -> Program:
    """The same program in the document's profile, if that can express it. Shapes of tensors are left out.

    Position binds in0 and in1, so a contraction that names them the other way round exchanges them, and M with N.

    Args:
        program: well formed, of either profile.

    Raises:
        VerifyError: it cannot; ``facts['problems']`` lists everything that the document has no word for: negative
            strides, scratch tensors, other tensor names, operands that position does not bind, further operations.

    Example:
        >>> from tileweave.teir import examples
        >>> program = examples.contraction_gemm(dict.fromkeys("pqrstu", 2))
        >>> as_document(as_tileweave(program)) == program
        True
    """
    verify(program)
    program = replace(program, primitives=tuple(map(_exchanged, program.primitives)))
    found = [] if program.profile == "document" else [_bound(p) for p in program.primitives]
    dtypes = {spec.name: spec.dtype for spec in program.tensors}
    plain = tuple(_by_position(p, {dtypes[name] for name in operands_of(p, program)}) for p in program.primitives)
    tensors = tuple(replace(spec, shape=None) for spec in program.tensors)
    result = replace(program, profile="document", tensors=tensors, primitives=plain)
    missing = [problem for problem in found if problem is not None] + list(problems(result))
    if missing:
        raise failure("as_document(program)", program, tuple(missing))
    return result


def _exchanged(primitive: Primitive) -> Primitive:
    """A contraction of in1 and in0 as one of in0 and in1: factors may change places, and their free axes with them."""
    if primitive.operation != "Contraction" or primitive.operands[:2] != ("in1", "in0"):
        return primitive
    other = {"M": "N", "N": "M"}
    roles = {other.get(role, role): ids for role, ids in primitive.axes}
    axes = tuple((role, roles[role]) for role in ("M", "N", "K"))
    return replace(primitive, operands=("in0", "in1", *primitive.operands[2:]), axes=axes)


def _bound(primitive: Primitive) -> Problem | None:
    """Why position does not bind a primitive's operands, or None: it does."""
    if primitive.operation not in DOCUMENT_OPERATIONS:
        return None  # the rule primitive.operation-known says so
    expected = operation(primitive.operation).document_operands
    if primitive.operands == expected:
        return None
    message = f"position binds {', '.join(expected)}; it names {', '.join(primitive.operands)}"
    return Problem("primitive.operands-by-position", f"primitive {primitive.id!r}", message, "the document's operands")


def _by_position(primitive: Primitive, dtypes: set[str]) -> Primitive:
    metadata = primitive.metadata
    if len(dtypes) == 1 and dtypes <= set(DTYPES) and "data_type" not in dict(metadata):
        metadata = (*metadata, ("data_type", dtypes.pop()))
    return replace(primitive, operands=(), metadata=metadata)
