"""Writing LLVM IR as text: a function under construction, with loops and folded integer arithmetic.

Values are strings (``%7``, an operand of an instruction) or Python integers (constants). Integer arithmetic on two
constants is done here, so address code with static strides stays short. Loops carry their values through phi nodes,
and no IR pass is needed afterwards: what is written is what is compiled.

A size that is no constant (`tileweave.index.sizes`) stands in the text by its name; every function that
names one, or calls one that may, finds the table of sizes behind the environment of the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tileweave.index.sizes import Sizes

Value = str | int
Carry = Sequence[tuple[str, Value]]


class Module:
    """Text of one LLVM module: declarations once each, then functions in the order of their creation.

    Args:
        sizes: those that code reads from a table; None: all are constants of the text.
        sizes_at: bytes from the environment of a call to the table.
    """

    def __init__(self, sizes: Sizes | None = None, sizes_at: int = 0) -> None:
        self.sizes = sizes
        self.sizes_at = sizes_at
        self._declarations: dict[str, str] = {}
        self._functions: dict[str, Function] = {}

    def declare(self, name: str, signature: str) -> None:
        """Declare an external function or intrinsic once; ``signature`` holds a ``{}`` for its name."""
        if name not in self._declarations:
            self._declarations[name] = f"declare {signature.format('@' + name)}"

    def constant(self, name: str, value: str) -> None:
        """Constant data of the module; its address is ``@name``."""
        self._declarations[name] = f"@{name} = internal constant {value}, align 64"

    def add(self, function: Function) -> None:
        """Take a function into the module."""
        self._functions[function.name] = function

    def has(self, name: str) -> bool:
        """Whether a function of this name was added."""
        return name in self._functions

    def takes_sizes(self, name: str) -> bool:
        """Whether a function of this module has the table of sizes as its last parameter."""
        return name in self._functions and self._functions[name].takes_sizes

    def text(self) -> str:
        """The module as LLVM reads it, once: the lines of its functions go, which many others still know."""
        parts = [*self._declarations.values(), *(function.text() for function in self._functions.values())]
        parts.append("!0 = !{i32 1}")  # what !nontemporal refers to
        for function in self._functions.values():
            function.forget()
        return "\n\n".join(parts) + "\n"


class Function:
    """One LLVM function under construction; ``block`` is the label that instructions go to.

    Args:
        module: where it is added.
        name: unique in the module.
        parameters: (type, name) pairs; the value of a parameter is ``%name``.
        public: whether the function is callable from outside the module.
        returns: the result type.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        parameters: Sequence[tuple[str, str]],
        *,
        public: bool = False,
        returns: str = "void",
    ) -> None:
        self.module = module
        self.name = name
        self.block = "entry"
        self._first = parameters[0][1] if parameters else ""
        self.takes_sizes = module.sizes is not None and self._first not in ("env", "frame")
        if self.takes_sizes:
            parameters = [*parameters, ("ptr", "sizes")]
        self._head = (
            f"define {'' if public else 'internal '}{returns} @{name}"
            f"({', '.join(f'{type} %{label}' for type, label in parameters)}) nounwind"
        )
        self._lines: list[str] = ["entry:"]
        self._slots: list[str] = []
        self._count = 0
        module.add(self)

    def text(self) -> str:
        """The function as LLVM reads it."""
        lines = [self._lines[0], *self._slots, *self._sizes(), *self._lines[1:]]
        return "\n".join([self._head + " {", *lines, "}"])

    def forget(self) -> None:
        """Forgets all lines."""
        self._lines.clear()
        self._slots.clear()

    def _sizes(self) -> list[str]:
        """What finds the table of sizes, and reads those that the function names."""
        if self.module.sizes is None:
            return []
        text = "\n".join(self._lines)
        named = sorted(set(map(int, re.findall(r"%size\.(\d+)", text))))
        lines = []
        if not self.takes_sizes and (named or "ptr %sizes" in text):
            env = "%env" if self._first == "env" else "%sizes.env"
            lines += ["  %sizes.env = load ptr, ptr %frame, align 8"] if self._first == "frame" else []
            lines.append(f"  %sizes = getelementptr i8, ptr {env}, i64 {self.module.sizes_at}")
        for k in named:
            lines.append(f"  %size.{k}.at = getelementptr i8, ptr %sizes, i64 {8 * k}")
            lines.append(f"  %size.{k} = load i64, ptr %size.{k}.at, align 8")
        return lines

    def emit(self, line: str) -> None:
        """One instruction without a result."""
        self._lines.append("  " + line)

    def value(self, instruction: str) -> str:
        """One instruction with a result, which is returned."""
        self._count += 1
        name = f"%_{self._count}"
        self._lines.append(f"  {name} = {instruction}")
        return name

    def slot(self, type: str, count: int = 1, align: int = 64) -> str:
        """A place on the stack, taken once per call of the function."""
        self._count += 1
        name = f"%_{self._count}"
        self._slots.append(f"  {name} = alloca {type}, i64 {count}, align {align}")
        return name

    # ---- blocks -------------------------------------------------------------------------------------------------

    def new_label(self) -> str:
        """A fresh label, not yet placed."""
        self._count += 1
        return f"block{self._count}"

    def place(self, label: str) -> None:
        """Begin the block of this label; the block before must have ended."""
        self._lines.append(f"{label}:")
        self.block = label

    def branch(self, label: str) -> None:
        """End the block with a jump."""
        self.emit(f"br label %{label}")

    def ret(self, value: str = "void") -> None:
        """End the block and the function."""
        self.emit(f"ret {value}")

    def when(self, condition: Value, then: Callable[[], object], otherwise: Callable[[], object] | None = None) -> None:
        """Run ``then`` where the condition (an i1) holds, ``otherwise`` where it does not."""
        if isinstance(condition, int):
            if condition:
                then()
            elif otherwise is not None:
                otherwise()
            return
        yes, no, done = self.new_label(), self.new_label(), self.new_label()
        self.emit(f"br i1 {condition}, label %{yes}, label %{no if otherwise else done}")
        self.place(yes)
        then()
        self.branch(done)
        if otherwise is not None:
            self.place(no)
            otherwise()
            self.branch(done)
        self.place(done)

    def choose(
        self,
        condition: Value,
        types: Sequence[str],
        then: Callable[[], Sequence[Value]],
        otherwise: Callable[[], Sequence[Value]],
    ) -> list[Value]:
        """The values of ``then`` where the condition (an i1) holds, else those of ``otherwise``."""
        if isinstance(condition, int):
            return list(then() if condition else otherwise())
        yes, no, done = self.new_label(), self.new_label(), self.new_label()
        self.emit(f"br i1 {condition}, label %{yes}, label %{no}")
        self.place(yes)
        first = list(then())
        after_first = self.block
        self.branch(done)
        self.place(no)
        second = list(otherwise())
        after_second = self.block
        self.branch(done)
        self.place(done)
        return [
            self.value(f"phi {type} [ {a}, %{after_first} ], [ {b}, %{after_second} ]")
            for type, a, b in zip(types, first, second, strict=True)
        ]

    def loop(
        self,
        start: Value,
        stop: Value,
        body: Callable[[Value, list[str]], Sequence[Value] | None],
        *,
        step: Value = 1,
        carry: Carry = (),
        nonempty: bool = False,
    ) -> list[Value]:
        """``for i in range(start, stop, step)``, with values carried from one iteration to the next.

        Args:
            start: first index.
            stop: exclusive bound.
            body: takes the index and the carried values, returns the carried values of the next iteration.
            step: positive.
            carry: (type, initial value) pairs.
            nonempty: promises at least one iteration, so that the test stands at the bottom.

        Returns:
            The carried values after the loop.
        """
        if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
            if start >= stop:
                return [value for _, value in carry]
            if start + step >= stop:
                return list(body(start, [str(value) for _, value in carry]) or ())
            nonempty = True
        index = self.fresh()
        names = [self.fresh() for _ in carry]
        head, inside, done = self.new_label(), self.new_label(), self.new_label()
        before = self.block
        self.branch(head)
        self.place(head)
        mark = len(self._lines)
        if not nonempty:
            more = self.value(f"icmp slt i64 {index}, {stop}")
            self.emit(f"br i1 {more}, label %{inside}, label %{done}")
            self.place(inside)
        following = list(body(index, list(names)) or ())
        after = self.add(index, step)
        latch = self.block
        phis = [f"  {index} = phi i64 [ {start}, %{before} ], [ {after}, %{latch} ]"]
        for name, (type, initial), next_value in zip(names, carry, following, strict=True):
            phis.append(f"  {name} = phi {type} [ {initial}, %{before} ], [ {next_value}, %{latch} ]")
        self._lines[mark:mark] = phis
        if nonempty:
            more = self.value(f"icmp slt i64 {after}, {stop}")
            self.emit(f"br i1 {more}, label %{head}, label %{done}")
        else:
            self.branch(head)
        self.place(done)
        return list(following) if nonempty else list(names)

    def fresh(self) -> str:
        """A new name for a value that is written later."""
        self._count += 1
        return f"%_{self._count}"

    # ---- 64-bit integers ----------------------------------------------------------------------------------------

    def add(self, a: Value, b: Value) -> Value:
        """``a + b``."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if isinstance(a, int) and not a:
            return b
        if isinstance(b, int) and not b:
            return a
        return self.value(f"add i64 {a}, {b}")

    def sub(self, a: Value, b: Value) -> Value:
        """``a - b``."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if isinstance(b, int) and not b else self.value(f"sub i64 {a}, {b}")

    def mul(self, a: Value, b: Value) -> Value:
        """``a * b``."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        for one, other in ((a, b), (b, a)):
            if isinstance(one, int) and one in (0, 1):
                return other if one else 0
        return self.value(f"mul i64 {a}, {b}")

    def div(self, a: Value, b: Value) -> Value:
        """``a // b`` of non-negative numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if isinstance(b, int) and b == 1 else self.value(f"udiv i64 {a}, {b}")

    def rem(self, a: Value, b: Value) -> Value:
        """``a % b`` of non-negative numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return 0 if isinstance(b, int) and b == 1 else self.value(f"urem i64 {a}, {b}")

    def min(self, a: Value, b: Value) -> Value:
        """The lesser of two signed numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.value(f"select i1 {self.compare('slt', a, b)}, i64 {a}, i64 {b}")

    def compare(self, predicate: str, a: Value, b: Value, type: str = "i64") -> str:
        """``icmp`` of two 64-bit integers, or two addresses."""
        return self.value(f"icmp {predicate} {type} {a}, {b}")

    def above(self, a: Value, limit: int) -> Value:
        """Whether ``a > limit``: a condition, or 0 or 1 where it is known."""
        return int(a > limit) if isinstance(a, int) else self.compare("sgt", a, limit)

    def both(self, a: Value, b: Value) -> Value:
        """``a and b`` of conditions."""
        if isinstance(a, int):
            return b if a else 0
        if isinstance(b, int):
            return a if b else 0
        return self.value(f"and i1 {a}, {b}")

    def either(self, a: Value, b: Value) -> Value:
        """``a or b`` of conditions."""
        if isinstance(a, int):
            return 1 if a else b
        if isinstance(b, int):
            return 1 if b else a
        return self.value(f"or i1 {a}, {b}")

    # ---- memory -------------------------------------------------------------------------------------------------

    def at(self, pointer: str, offset_bytes: Value) -> str:
        """The address so many bytes after a pointer."""
        if isinstance(offset_bytes, int) and not offset_bytes:
            return pointer
        return self.value(f"getelementptr i8, ptr {pointer}, i64 {offset_bytes}")

    def load(self, type: str, pointer: str, align: int = 1) -> str:
        """Read a value."""
        return self.value(f"load {type}, ptr {pointer}, align {align}")

    def store(self, type: str, value: Value, pointer: str, align: int = 1) -> None:
        """Write a value."""
        self.emit(f"store {type} {value}, ptr {pointer}, align {align}")

    def call(self, name: str, *arguments: str, returns: str = "void") -> str:
        """Call a function of the module, or a pointer."""
        if self.module.takes_sizes(name):
            arguments = (*arguments, "ptr %sizes")
        text = f"call {returns} {name if name.startswith('%') else '@' + name}({', '.join(arguments)})"
        if returns == "void":
            self.emit(text)
            return ""
        return self.value(text)
