"""Element types and elementwise functions as operations of arith and math: what CUDA text computes, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tileweave.kernel.atoms import BITS

#: PTX name of an element type -> its MLIR type; the narrow floats of 8 bits are moved, never computed with.
TYPES = {
    "f16": "f16", "bf16": "bf16", "f32": "f32", "f64": "f64", "e4m3": "i8", "e5m2": "i8", "pred": "i1",
    **{f"{sign}{bits}": f"i{bits}" for sign in "sub" for bits in (8, 16, 32, 64)},
}  # fmt: skip
_NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
_NARROW = ("f16", "bf16")
_OPAQUE = ("e4m3", "e5m2", "b8", "b16", "b32", "b64")
_COMPARED = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}
_SMOOTH = ("sqrt", "exp", "log", "exp2", "log2", "tanh", "erf", "sin", "cos", "rsqrt", "floor")


class Unsayable(Exception):
    """What the dialects cannot say; the printer adds the statement and its line."""


def is_float(dtype: str) -> bool:
    """Whether arith computes with it as a float."""
    return dtype in _NUMPY


def literal(value: float | int | bool, dtype: str) -> str:
    """A number as an attribute of a type, rounded to it; by its bits where it is not finite."""
    if dtype == "pred":
        return "true" if value else "false"
    kind = TYPES[dtype]
    if not is_float(dtype):
        return f"{int(value)} : {kind}"
    with np.errstate(all="ignore"):
        rounded = np.float32(value).astype(_NUMPY[dtype]) if dtype in _NARROW else _NUMPY[dtype](value)
    if not np.isfinite(rounded.astype(np.float64)):
        bits = int(np.asarray(rounded).view(f"u{rounded.itemsize}"))
        return f"0x{bits:0{2 * rounded.itemsize}X} : {kind}"
    text = repr(float(rounded))
    mantissa, mark, exponent = text.partition("e")
    return f"{mantissa}{'' if '.' in mantissa else '.0'}{mark}{exponent} : {kind}"


@dataclass
class Arithmetic:
    """Operations on single elements, written where the printer is.

    Args:
        add: appends an operation and gives its SSA name.
        fixed: the SSA name of a constant, by its attribute.
    """

    add: Callable[[str], str]
    fixed: Callable[[str], str]

    def constant(self, value: float | int | bool, dtype: str) -> str:
        """A number."""
        return self.fixed(literal(value, dtype))

    def select(self, condition: str, then: str, otherwise: str, dtype: str) -> str:
        """One of two."""
        return self.add(f"arith.select {condition}, {then}, {otherwise} : {TYPES[dtype]}")

    def compare(self, how: str, a: str, b: str, dtype: str) -> str:
        """A comparison, by the name of the elementwise function; NaN is unequal to all."""
        if is_float(dtype):
            return self.add(f"arith.cmpf {'une' if how == 'ne' else 'o' + how}, {a}, {b} : {TYPES[dtype]}")
        sign = "" if how in ("eq", "ne") else "s" if dtype[0] == "s" else "u"
        return self.add(f"arith.cmpi {sign}{how}, {a}, {b} : {TYPES[dtype]}")

    def two(self, op: str, a: str, b: str, dtype: str) -> str:
        """``addf`` or ``addi`` and the like."""
        end = "f" if is_float(dtype) else "i"
        return self.add(f"arith.{op}{end} {a}, {b} : {TYPES[dtype]}")

    def applied(self, function: str, dtype: str, operands: list[tuple[str, str]], computed: str) -> str:
        """A function of operands (name, dtype), of a result dtype, computed in a type.

        Raises:
            Unsayable: there is no operation for it.
        """
        if function == "id":
            return operands[0][0]
        if function == "cast":
            return self.cast(operands[0][0], operands[0][1], dtype)
        kind = computed if computed not in _NARROW else "f32"
        if function == "where" and {given for _, given in operands[1:]} == {dtype}:
            return self.select(operands[0][0], operands[1][0], operands[2][0], dtype)
        wide = [self._computed(name, given, kind) for name, given in operands]
        if function == "where":
            found = self.select(wide[0], wide[1], wide[2], kind)
        elif function in _COMPARED:
            given = "pred" if all(g == "pred" for _, g in operands) else kind
            return self.compare(function, wide[0], wide[1], given)
        elif function in ("and", "or"):
            return self.add(f"arith.{function}i {wide[0]}, {wide[1]} : i1")
        elif function == "not":
            return self.add(f"arith.xori {wide[0]}, {self.constant(True, 'pred')} : i1")
        else:
            found = self._arithmetic(function, wide, kind)
        return self.cast(found, kind, dtype) if kind != dtype and dtype in _NARROW else found

    def _arithmetic(self, function: str, wide: list[str], kind: str) -> str:
        a, b = wide[0], wide[1] if len(wide) > 1 else ""
        match function:
            case "add" | "sub" | "mul":
                return self.two(function, a, b, kind)
            case "square":
                return self.two("mul", a, a, kind)
            case "max" | "min":
                how = self.compare("gt" if function == "max" else "lt", a, b, kind)
                if is_float(kind):
                    how = self.add(f"arith.ori {self.compare('ne', a, a, kind)}, {how} : i1")
                return self.select(how, a, b, kind)
            case "neg":
                return self.add(f"arith.negf {a} : {TYPES[kind]}") if is_float(kind) else self._negated(a, kind)
            case "abs":
                zero = self.constant(0, kind)
                minus = self.add(f"arith.negf {a} : {TYPES[kind]}") if is_float(kind) else self._negated(a, kind)
                same = self.select(self.compare("eq", a, zero, kind), zero, a, kind)
                return self.select(self.compare("lt", a, zero, kind), minus, same, kind)
            case "div":
                return self.two("div", a, b, kind) if is_float(kind) else self._quotient(a, b, kind)
            case "recip" if is_float(kind):
                return self.two("div", self.constant(1, kind), a, kind)
            case "fma" if is_float(kind):
                return self.add(f"math.fma {a}, {b}, {wide[2]} : {TYPES[kind]}")
            case "fma":
                return self.two("add", self.two("mul", a, b, kind), wide[2], kind)
            case _ if function in _SMOOTH and is_float(kind):
                return self.add(f"math.{function} {a} : {TYPES[kind]}")
        raise Unsayable(f"the function {function} of {kind}")

    def _negated(self, a: str, kind: str) -> str:
        return self.two("sub", self.constant(0, kind), a, kind)

    def _quotient(self, a: str, b: str, kind: str) -> str:
        """Towards minus infinity; by zero it is zero."""
        zero, one, t = self.constant(0, kind), self.constant(1, kind), TYPES[kind]
        none = self.compare("eq", b, zero, kind)
        if kind[0] == "u":
            found = self.add(f"arith.divui {a}, {self.select(none, one, b, kind)} : {t}")
            return self.select(none, zero, found, kind)
        minus = self.compare("eq", b, self.constant(-1, kind), kind)
        safe = self.select(self.add(f"arith.ori {none}, {minus} : i1"), one, b, kind)
        quotient = self.add(f"arith.floordivsi {a}, {safe} : {t}")
        return self.select(none, zero, self.select(minus, self._negated(a, kind), quotient, kind), kind)

    def _computed(self, name: str, source: str, target: str) -> str:
        """An operand in the type that its operator computes in."""
        return name if source == target or "pred" in (source, target) else self.cast(name, source, target)

    def cast(self, name: str, source: str, target: str) -> str:
        """To the nearest, ties to even; to integers towards zero, the nearest number where it does not fit.

        Raises:
            Unsayable: of a type that is only moved.
        """
        if source == target:
            return name
        if source in ("e4m3", "e5m2") and target not in _OPAQUE:
            return self.cast(self._widened(name, source), "f32", target)
        if source in _OPAQUE or target in _OPAQUE:
            raise Unsayable(f"a cast of {source} to {target}")
        s, t = TYPES[source], TYPES[target]
        if target == "pred":
            return self.compare("ne", name, self.constant(0, source), source)
        if is_float(source) and is_float(target):
            if source in _NARROW and target in _NARROW:
                return self.cast(self.cast(name, source, "f32"), "f32", target)
            return self.add(f"arith.{'extf' if BITS[source] < BITS[target] else 'truncf'} {name} : {s} to {t}")
        if is_float(target):
            if target in _NARROW:
                return self.cast(self.cast(name, source, "f32"), "f32", target)
            return self.add(f"arith.{'sitofp' if source[0] == 's' else 'uitofp'} {name} : {s} to {t}")
        if is_float(source):
            if source in _NARROW:
                return self.cast(self.cast(name, source, "f32"), "f32", target)
            return self._integer(name, source, target)
        if source == "pred" or BITS[source] < BITS[target]:
            return self.add(f"arith.{'extsi' if source[0] == 's' else 'extui'} {name} : {s} to {t}")
        return name if BITS[source] == BITS[target] else self.add(f"arith.trunci {name} : {s} to {t}")

    def _widened(self, name: str, source: str) -> str:
        """A float of 8 bits as f32, by way of the f16 whose bits begin with it; e4m3 has a bias of 7 and one NaN."""
        wide = self.add(f"arith.extui {name} : i8 to i16")
        if source == "e5m2":
            bits = self.add(f"arith.shli {wide}, {self.constant(8, 'u16')} : i16")
            return self.cast(self.add(f"arith.bitcast {bits} : i16 to f16"), "f16", "f32")
        size = self.add(f"arith.andi {wide}, {self.constant(127, 'u16')} : i16")
        moved = self.add(f"arith.shli {size}, {self.constant(7, 'u16')} : i16")
        found = self.cast(self.add(f"arith.bitcast {moved} : i16 to f16"), "f16", "f32")
        found = self.two("mul", found, self.constant(256.0, "f32"), "f32")
        none = self.compare("eq", size, self.constant(127, "u16"), "u16")
        found = self.select(none, self.constant(float("nan"), "f32"), found, "f32")
        minus = self.compare("ne", wide, size, "u16")
        return self.select(minus, self.add(f"arith.negf {found} : f32"), found, "f32")

    def _integer(self, name: str, source: str, target: str) -> str:
        bits, signed = BITS[target], target[0] == "s"
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        high = self.compare("ge", name, self.constant(float(most), source), source)
        low = self.compare("le", name, self.constant(float(least), source), source)
        nan = self.compare("ne", name, name, source)
        safe = self.constant(0, source)
        for wrong in (high, low, nan):
            name, safe = self.select(wrong, safe, name, source), safe
        kind = f"{TYPES[source]} to {TYPES[target]}"
        found = self.add(f"arith.{'fptosi' if signed else 'fptoui'} {name} : {kind}")
        found = self.select(low, self.constant(least, target), found, target)
        found = self.select(high, self.constant(most if signed else -1, target), found, target)
        return self.select(nan, self.constant(0, target), found, target)
