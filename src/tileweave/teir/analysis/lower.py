"""Which kernel a primitive is, and with which parameters: the document's eligibility tables as inspectable values.

Parameters are elements, as BLAS counts them; TEIR's strides are bytes. A primitive that fits no kernel of the document
is `General` with the reasons, and a backend may still do what it likes with it.

Source: TEIR, section 10.6, tables 10.6.1 and 10.6.2, and the kernels of section 10.7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tileweave.errors import VerifyError
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.primitives import operands_of
from tileweave.teir.ir.program import Axis, Id, Primitive, Program
from tileweave.teir.ir.verify import verify
from tileweave.teir.ir.walk import axes_by_id

MatrixOrder = Literal["column-major", "row-major"]


@dataclass(frozen=True, slots=True)
class ScalarKernel:
    """One element: a scalar multiply-add, copy, zero or ReLU."""

    operation: str

    def __str__(self) -> str:
        return f"{self.operation} of one element"


@dataclass(frozen=True, slots=True)
class Gemm:
    """C += A B with A of m x k, B of k x n, C of m x n; leading dimensions in elements, orders of A, B and C."""

    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    orders: tuple[MatrixOrder, MatrixOrder, MatrixOrder]
    dtype: str

    def __str__(self) -> str:
        return f"GEMM {self.dtype} m {self.m}, n {self.n}, k {self.k}; {_matrices(self)}"


@dataclass(frozen=True, slots=True)
class Brgemm:
    """C += sum of A_i B_i over br_size pairs that lie br_stride_a and br_stride_b elements apart."""

    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    br_size: int
    br_stride_a: int
    br_stride_b: int
    orders: tuple[MatrixOrder, MatrixOrder, MatrixOrder]
    dtype: str

    def __str__(self) -> str:
        reduced = f"{self.br_size} products, {self.br_stride_a} apart in A and {self.br_stride_b} in B"
        return f"BRGEMM {self.dtype} m {self.m}, n {self.n}, k {self.k}; {_matrices(self)}; {reduced}"


def _matrices(kernel: Gemm | Brgemm) -> str:
    leading = zip("ABC", kernel.orders, (kernel.lda, kernel.ldb, kernel.ldc), strict=True)
    return ", ".join(f"{label} {order} ld {ld}" for label, order, ld in leading)


@dataclass(frozen=True, slots=True)
class CopyKernel:
    """B = A on rows x columns elements; different orders transpose."""

    rows: int
    columns: int
    order_a: MatrixOrder
    order_b: MatrixOrder
    lda: int
    ldb: int
    dtype: str

    def __str__(self) -> str:
        matrices = f"A {self.order_a} ld {self.lda}, B {self.order_b} ld {self.ldb}"
        return f"Copy {self.dtype} {self.rows} x {self.columns}; {matrices}"


@dataclass(frozen=True, slots=True)
class ZeroKernel:
    """B = 0 on rows x columns elements."""

    rows: int
    columns: int
    order_b: MatrixOrder
    ldb: int
    dtype: str

    def __str__(self) -> str:
        return f"Zero {self.dtype} {self.rows} x {self.columns}; B {self.order_b} ld {self.ldb}"


@dataclass(frozen=True, slots=True)
class ReluKernel:
    """B = max(A, 0) on rows x columns elements."""

    rows: int
    columns: int
    order_a: MatrixOrder
    order_b: MatrixOrder
    lda: int
    ldb: int
    dtype: str

    def __str__(self) -> str:
        matrices = f"A {self.order_a} ld {self.lda}, B {self.order_b} ld {self.ldb}"
        return f"ReLU {self.dtype} {self.rows} x {self.columns}; {matrices}"


@dataclass(frozen=True, slots=True)
class General:
    """None of the document's kernels; the reasons say what each would have needed."""

    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"general: {'; '.join(self.reasons)}"


Kernel = ScalarKernel | Gemm | Brgemm | CopyKernel | ZeroKernel | ReluKernel | General


@dataclass(frozen=True, slots=True)
class Explanation:
    """A primitive, the kernel that it is, and why, line by line."""

    primitive: Id
    kernel: Kernel
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.primitive}: {type(self.kernel).__name__}", *(f"  {line}" for line in self.lines)])


def eligibility(primitive: Primitive | Id, program: Program) -> Kernel:
    """The document's kernel for a primitive of a well-formed program, with its parameters.

    Args:
        primitive: of the program, or its id.
        program: well formed.

    Returns:
        `General` when the primitive is eligible for none.

    Raises:
        VerifyError: the program is not well formed, or the primitive is none of its own.

    Example:
        >>> from tileweave.teir.ir.program import Axis, Primitive, Program, TensorSpec
        >>> tensors = tuple(TensorSpec(n, "FP32", "out" if n == "out" else "in") for n in ("in0", "in1", "out"))
        >>> rows = (("m", 8, (4, 0, 4)), ("n", 4, (0, 64, 32)), ("k", 16, (32, 4, 0)))
        >>> axes = tuple(Axis(id, extent, strides, (0, 0, 0)) for id, extent, strides in rows)
        >>> roles = (("M", ("m",)), ("N", ("n",)), ("K", ("k",)))
        >>> gemm = Primitive("gemm", "Contraction", roles, ("in0", "in1", "out"))
        >>> kernel = eligibility(gemm, Program(tensors, axes, (), (), (gemm,)))
        >>> kernel.m, kernel.n, kernel.k, kernel.lda, kernel.ldb, kernel.ldc
        (8, 4, 16, 8, 16, 8)

    Source: TEIR, tables 10.6.1 to 10.6.3.
    """
    return explain(primitive, program).kernel


def explain(primitive: Primitive | Id, program: Program) -> Explanation:
    """Which kernel a primitive is and why: its roles, each operand's matrix, and what does not fit.

    Args:
        primitive: of the program, or its id.
        program: well formed.

    Raises:
        VerifyError: the program is not well formed, or the primitive is none of its own.
    """
    verify(program)
    found = _named(primitive, program)
    names, axes = operands_of(found, program), axes_by_id(program)
    tensors = [program.position(name) for name in names]

    def seen(id: Id) -> Axis:
        """An axis as the operands see it."""
        axis = axes[id]
        return Axis(id, axis.extent, tuple(axis.strides[j] for j in tensors), tuple(axis.offsets[j] for j in tensors))

    roles = {role: [seen(id) for id in ids] for role, ids in found.axes}
    dtypes = tuple(program.tensors[j].dtype for j in tensors)
    explained = classify(found.id, found.operation, roles, names, dtypes)
    packing = _packing(program, names) if found.operation != "Copy" else []
    return Explanation(explained.primitive, explained.kernel, (*explained.lines, *packing))


def classify(
    id: Id, operation: str, roles: Mapping[str, Sequence[Axis]], names: Sequence[str], dtypes: Sequence[str]
) -> Explanation:
    """Which kernel an operation on some axes is: the one place that decides, for primitives and for merged operations.

    Args:
        id: what is explained, for people.
        operation: its name.
        roles: the axes by role, whose strides are per operand.
        names: of the operands, inputs first, output last.
        dtypes: of the operands.
    """
    return _Lowering(id, operation, roles, names, dtypes).explain()


def _named(wanted: Primitive | Id, program: Program) -> Primitive:
    id = wanted.id if isinstance(wanted, Primitive) else wanted
    for primitive in program.primitives:
        if wanted in (primitive, primitive.id):
            return primitive
    raise VerifyError(
        "explain(primitive, program)",
        f"there is no primitive {id!r}",
        legal=", ".join(str(p.id) for p in program.primitives),
        facts={"rule": "invocation.primitive-exists", "path": f"primitive {id!r}"},
    )


def _packing(program: Program, names: tuple[str, ...]) -> list[str]:
    """Which operands lie in scratch memory, and the Copies that fill it or empty it."""
    scratch = {spec.name for spec in program.tensors if spec.role == "scratch"}
    copies = [(p.id, *operands_of(p, program)) for p in program.primitives if p.operation == "Copy"]
    lines = [
        f"{into} is packed: {id} brings {source}" for id, source, into in copies if into in names and into in scratch
    ]
    return lines + [
        f"{source} is scratch: {id} brings it to {into}"
        for id, source, into in copies
        if source in names[-1:] and source in scratch and into not in scratch
    ]


class _Misfit(Exception):
    """Why an operand is not the matrix that a kernel needs."""


class _Lowering:
    def __init__(
        self, id: Id, operation: str, roles: Mapping[str, Sequence[Axis]], names: Sequence[str], dtypes: Sequence[str]
    ) -> None:
        self.id = id
        self.operation = operation
        self.names = names
        self.dtypes = dtypes
        self.roles = {role: list(axes) for role, axes in roles.items()}
        self.lines: list[str] = []

    def explain(self) -> Explanation:
        counts = ", ".join(f"|{role}| = {len(axes)}" for role, axes in self.roles.items())
        self.lines.append(f"roles: {counts}")
        try:
            kernel = self.kernel()
        except _Misfit as misfit:
            self.lines.append(f"no kernel of the document: {misfit}")
            kernel = General((str(misfit),))
        return Explanation(self.id, kernel, tuple(self.lines))

    def kernel(self) -> Kernel:
        operation = self.operation
        if not any(self.roles.values()):
            self.lines.append("every role is empty: one element")
            return ScalarKernel(operation)
        if operation == "Contraction":
            return self.contraction()
        if operation not in ("Copy", "ReLU", "Zero"):
            raise _Misfit(f"the document has no kernel for {operation}")
        if len(self.roles["M"]) != 1 or len(self.roles["N"]) != 1:
            raise _Misfit("a matrix kernel has one axis each in M and N")
        m, n = self.roles["M"][0], self.roles["N"][0]
        order_b, ldb = self.matrix("B", len(self.names) - 1, m, n)
        dtype = self.dtypes[-1]
        if operation == "Zero":
            return ZeroKernel(m.extent, n.extent, order_b, ldb, dtype)
        if self.dtypes[0] != dtype:
            raise _Misfit(f"it converts {self.dtypes[0]} to {dtype}")
        order_a, lda = self.matrix("A", 0, m, n)
        kind = CopyKernel if operation == "Copy" else ReluKernel
        return kind(m.extent, n.extent, order_a, order_b, lda, ldb, dtype)

    def contraction(self) -> Kernel:
        m, n, k = (self.roles[role] for role in ("M", "N", "K"))
        if len(m) != 1 or len(n) != 1 or len(k) not in (1, 2):
            raise _Misfit("GEMM has one axis each in M, N and K, and BRGEMM two in K")
        if len(set(self.dtypes)) > 1:
            raise _Misfit(f"its operands hold {', '.join(sorted(set(self.dtypes)))}: a GEMM kernel has one type")
        inner = k[-1]
        order_a, lda = self.matrix("A", 0, m[0], inner, still=[n[0]])
        order_b, ldb = self.matrix("B", 1, inner, n[0], still=[m[0]])
        order_c, ldc = self.matrix("C", 2, m[0], n[0], still=k)
        orders = (order_a, order_b, order_c)
        sizes = (m[0].extent, n[0].extent, inner.extent, lda, ldb, ldc)
        dtype = self.dtypes[2]
        if len(k) == 1:
            return Gemm(*sizes, orders, dtype)
        strides = [self.elements(o, k[0], "batch-reduce stride") for o in (0, 1)]
        self.lines.append(
            f"{k[0].id} is the batch-reduce axis: {k[0].extent} steps of {strides[0]} on A, {strides[1]} on B"
        )
        return Brgemm(*sizes, k[0].extent, strides[0], strides[1], orders, dtype)

    def matrix(
        self, label: str, o: int, row: Axis, column: Axis, still: list[Axis] | None = None
    ) -> tuple[MatrixOrder, int]:
        """The order and leading dimension of an operand over two axes; the axes ``still`` must not move on it.

        As BLAS asks, the leading dimension is at least the extent of the unit axis, so that no two rows or columns
        share an element.
        """
        name, width = self.names[o], width_bytes(self.dtypes[o])
        for axis in still or []:
            if axis.strides[o] and axis.extent > 1:
                raise _Misfit(f"axis {axis.id} moves {name}, which a GEMM needs to stand still")
        choices: list[tuple[MatrixOrder, Axis, Axis]] = [("column-major", row, column), ("row-major", column, row)]
        short = ""
        for order, unit, leading in choices:
            if unit.strides[o] == width and leading.strides[o] > 0:
                ld = self.elements(o, leading, "leading dimension")
                if ld < unit.extent:
                    short = f"the leading dimension of {name}, {ld} on {leading.id}, is less than the {unit.extent} of "
                    short += f"{unit.id}, which has unit stride"
                    continue
                self.lines.append(
                    f"{label} = {name}: {order}, unit stride on {unit.id}, leading dimension {ld} on {leading.id}"
                )
                return order, ld
        shown = ", ".join(f"{axis.id} {axis.strides[o]}" for axis in (row, column))
        needs = f"{name} needs one axis with stride {width} bytes and one with a positive leading dimension"
        raise _Misfit(short or f"{needs}; it has {shown}")

    def elements(self, o: int, axis: Axis, what: str) -> int:
        stride, width = axis.strides[o], width_bytes(self.dtypes[o])
        if stride % width:
            raise _Misfit(f"the {what} of {self.names[o]}, {stride} bytes on {axis.id}, is no multiple of {width}")
        return stride // width
