"""Programs as text."""

from __future__ import annotations

from dataclasses import replace

from tileweave.teir import Axis, First, Invocation, Iteration, Last, Primitive, Program, TensorSpec
from tileweave.teir.ir import examples
from tileweave.teir.ir.text import axes_table, tensors_table, tree


def test_the_whole_program():
    program = examples.contraction_brgemm({"p": 4, "q": 2, "r": 3, "s": 5, "t": 2, "u": 6})
    assert (
        str(program)
        == """contraction_brgemm (document profile)

p  (parallel)
└── r  (parallel)
    ├── zero
    └── brgemm

Tensor  Type  Role  Scratch bytes
──────  ────  ────  ─────────────
in0     FP32  in
in1     FP32  in
out     FP32  out

Axes: strides and offsets in bytes, in the order (in0, in1, out)
Axis  Extent  Strides       Offsets
────  ──────  ────────────  ─────────
p     4       (0, 96, 120)  (0, 0, 0)
q     2       (0, 48, 60)   (0, 0, 0)
r     3       (120, 0, 20)  (0, 0, 0)
s     5       (4, 0, 4)     (0, 0, 0)
t     2       (360, 24, 0)  (0, 0, 0)
u     6       (20, 4, 0)    (0, 0, 0)

Node  Axis  Policy    Children        Guard
────  ────  ────────  ──────────────  ─────
p     p     parallel  [r]             None
r     r     parallel  [zero, brgemm]  None

Node    Primitive    Guard
──────  ───────────  ─────
zero    zero_sq      None
brgemm  brgemm_sqtu  None

Primitive    Operation    Axes                         Metadata
───────────  ───────────  ───────────────────────────  ─────────────────
zero_sq      Zero         {M: [s], N: [q]}             {data_type: FP32}
brgemm_sqtu  Contraction  {M: [s], N: [q], K: [t, u]}  {data_type: FP32}"""
    )


def test_policies_guards_and_forests():
    nodes = (
        Iteration("i", "i", ("j", "x"), "parallel"),
        Iteration("j", "j", ("y",), guard=(First("i"), Last("i"))),
        Invocation("x", "p"),
        Invocation("y", "p"),
        Invocation("z", "p"),
    )
    program = Program((), (), ("i", "z"), nodes, ())
    assert tree(program) == ("i  (parallel)\n├── j  [first(i) and last(i)]\n│   └── y\n└── x\nz")


def test_what_is_missing_is_said():
    program = Program((), (), ("i", "q"), (Iteration("i", "i", ("x", "i")),), ())
    assert tree(program) == "i\n├── x  (no such node)\n└── i  (shown above)\nq  (no such node)"


def test_tables_name_bytes_and_operands():
    zero = Primitive("z", "Zero", (("M", ()), ("N", ("n",))), ("s",), (("x", 1),))
    tensors = (TensorSpec("s", "INT8", "scratch", 12),)
    program = Program(tensors, (Axis("n", 3, (-4,), (8,)),), ("i",), (Invocation("i", "z"),), (zero,))
    assert tensors_table(program)[1] == ("s", "INT8", "scratch", "12")
    assert axes_table(program)[1] == ("n", "3", "(-4)", "(8)")
    assert "z          Zero       {M: [], N: [n]}  [s]       {x: 1}" in str(program)


def test_an_empty_program_prints():
    assert str(Program((), (), (), (), (), name="nothing")).startswith("nothing (tileweave profile)")


def test_a_table_without_rows_is_left_out():
    zero = Primitive("z", "Zero", (("M", ()), ("N", ("n",))), ("s",))
    flat = Program(
        (TensorSpec("s", "FP32", "out"),), (Axis("n", 3, (4,), (0,)),), ("i",), (Invocation("i", "z"),), (zero,)
    )
    assert "Policy" not in str(flat) and "Node  Primitive  Guard" in str(flat)
    loop = replace(flat, roots=("n",), nodes=(Iteration("n", "n", ("i",)), *flat.nodes))
    assert "Policy" in str(loop)
