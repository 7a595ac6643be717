"""Products that are added to sums, in the lanes of vectors: one by one, or several in one instruction of the processor.

Source: own.
"""

from __future__ import annotations

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, vector
from tileweave.backends.cpu.llvm.ir import Function


def multiply_add(f: Function, element: Element, lanes: int, a: str, b: str, c: str) -> str:
    """``a * b + c``, in one rounding where the processor has such an instruction."""
    full = vector(element.memory, lanes)
    if not element.floating:
        return f.value(f"add {full} {f.value(f'mul {full} {a}, {b}')}, {c}")
    name = f"llvm.fmuladd.{vectors.suffix(element.memory, lanes)}"
    f.module.declare(name, f"{full} {{}}({full}, {full}, {full})")
    return f.value(f"call {full} @{name}({full} {a}, {full} {b}, {full} {c})")


_PAIRS = {"avx512bf16": "avx512bf16.dpbf16ps.512", "avx512vnni": "avx512.vpdpwssd.512",
          "avx512bw": "avx512.pmaddw.d.512", "avx2": "avx2.pmadd.wd"}  # fmt: skip
"""A processor's feature -> its instruction for pairs of products; the last two leave their sum to another one."""


def pair_product(f: Function, sums: Element, lanes: int, feature: str, a: str, b: str, c: str) -> str:
    """``c + a0 * b0 + a1 * b1`` in lanes of 32 bits, ``a`` and ``b`` being pairs of 16 bits in the bits of sums.

    The processor's instruction. Of BF16, products are exact, each sum is rounded to nearest even, and subnormal factors
    and sums count as zero; of INT16, sums wrap in INT32.
    """
    name, full = f"llvm.x86.{_PAIRS[feature]}", vector(sums.memory, lanes)
    halves = vector("bfloat" if sums.floating else "i16", 2 * lanes)
    pairs = ", ".join(f"{halves} {f.value(f'bitcast {full} {value} to {halves}')}" for value in (a, b))
    if feature in ("avx512bf16", "avx512vnni"):
        f.module.declare(name, f"{full} {{}}({full}, {halves}, {halves})")
        return f.value(f"call {full} @{name}({full} {c}, {pairs})")
    f.module.declare(name, f"{full} {{}}({halves}, {halves})")
    return f.value(f"add {full} {c}, {f.value(f'call {full} @{name}({pairs})')}")


def quad_product(f: Function, sums: Element, lanes: int, a: str, b: str, c: str) -> str:
    """``c`` with four products of bytes added, unsigned ones in ``a`` and signed ones in ``b``; sums wrap in INT32."""
    full, parts = vector(sums.memory, lanes), vector("i8", 4 * lanes)
    name = "llvm.x86.avx512.vpdpbusd.512"
    f.module.declare(name, f"{full} {{}}({full}, {parts}, {parts})")
    pairs = ", ".join(f"{parts} {f.value(f'bitcast {full} {value} to {parts}')}" for value in (a, b))
    return f.value(f"call {full} @{name}({full} {c}, {pairs})")
