"""Inline PTX as C++: statements become calls of the runtime, tiles placed by the layouts of the atom table."""

from __future__ import annotations

import re
from collections.abc import Callable

from tileweave.backends.cuda.cpu.ptx import Asm, PtxOperand, Statement, parse_statements
from tileweave.backends.cuda.cpu.scalar import C_TYPES, carried, scalar_expression
from tileweave.errors import BackendError
from tileweave.kernel.atoms import BITS, Atom, Fragment, atom

_LETTER_BITS = {"h": 16, "r": 32, "f": 32, "l": 64, "d": 64}
#: Opcodes whose effect on memory the compiler must not move code across: their asm needs the "memory" clobber.
ORDERING = (
    "bar.",
    "barrier.",
    "mbarrier.",
    "fence.",
    "membar.",
    "cp.async.wait",
    "cp.async.bulk.wait",
    "wgmma.wait",
    "st.",
    "atom.",
    "red.",
)


_JOINED = {"and": "&", "or": "|", "xor": "^"}


class AtomTables:
    """The rows of the atom table that a program uses, as C++ constants."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self._names: dict[object, str] = {}

    def fragment(self, tile: Fragment) -> str:
        """The name of an operand's places: which element each register slot of each thread holds."""
        key = ("fragment", tile)
        if key not in self._names:
            name = self._names[key] = f"tw_fragment_{len(self._names)}"
            places = ",".join(str(p) for slots in tile.places() for p in slots)
            rows, columns = tile.shape[0], tile.shape[-1]
            self.text.append(f"static const uint16_t {name}_places[] = {{{places}}};")
            self.text.append(
                f'[[maybe_unused]] static const ::tw::Fragment {name} = '
                f'{{"{tile.dtype}", {tile.elements}, {tile.registers}, {rows}, {columns}, {name}_places}};'
            )  # fmt: skip
        return self._names[key]

    def product(self, row: Atom) -> str:
        """The name of a product: its extents and the places of its operands."""
        if row.name not in self._names:
            name = self._names[row.name] = f"tw_product_{len(self._names)}"
            roles = dict(row.operands)
            m, n = row["d"].shape
            k = row["a"].shape[1]
            parts = [
                self.fragment(roles[role]) if role in roles and roles[role].space == "register" else ""
                for role in "dabc"
            ]
            shared = f'::tw::Fragment{{"{row["b"].dtype}", 0, 0, {n}, {k}, nullptr}}'
            values = ", ".join(part or shared for part in parts)
            self.text.append(f'static const ::tw::Product {name} = {{"{row.name}", {m}, {n}, {k}, {values}}};')
        return self._names[row.name]


class Emitter:
    """Turns asm statements into C++ blocks.

    Args:
        tables: collects what the blocks refer to.
    """

    def __init__(self, tables: AtomTables) -> None:
        self.tables = tables
        self.unordered: list[tuple[str, str]] = []

    def block(self, asm: Asm) -> str:
        """The C++ of one asm statement: a ``do { .. } while (0)`` on one line."""
        statements = parse_statements(asm)
        if "memory" not in asm.clobbers:
            self.unordered += [(asm.where, s.opcode) for s in statements if s.opcode.startswith(ORDERING)]
        return AsmBlock(self.tables, asm, statements).text()


class AsmBlock:
    """One asm statement on its way to C++: reads operands, checks constraints, collects registers."""

    def __init__(self, tables: AtomTables, asm: Asm, statements: list[Statement]) -> None:
        self.tables, self.asm, self.statements = tables, asm, statements
        self.registers: dict[str, None] = {}
        self.pointers: set[int] = set()
        self.carries = False

    def fail(self, problem: str, legal: str = "") -> BackendError:
        """An error at this statement."""
        text = " ".join(self.asm.text.split())
        return BackendError("asm", problem, inputs={"at": self.asm.where, "text": text}, legal=legal)

    def text(self) -> str:
        """The C++ of the whole statement."""
        for b in self.asm.bindings:
            if b.letter not in tuple("hrlfdn") and not b.letter.isdigit():
                raise self.fail(f"constraint {b.constraint!r}", "h, r, l, f, d, n with = or +")
        code = [self._statement(s) for s in self.statements if s.opcode != ".reg"]
        head, tail = [], []
        for i, b in enumerate(self.asm.bindings):
            letter = self.asm.bindings[int(b.letter)].letter if b.letter.isdigit() else b.letter
            head.append(
                f"auto& tw_o{i} = ({b.expression});" if b.written else f"const auto tw_o{i} = ({b.expression});"
            )
            if i in self.pointers:
                continue
            head.append(
                f"[[maybe_unused]] ::tw::u64 tw_v{i} = " + (f"::tw::in<'{letter}'>(tw_o{i});" if b.read else "0;")
            )
            if b.letter.isdigit():
                head.append(f"tw_v{b.letter} = tw_v{i};")
            if b.written:
                tail.append(f"::tw::out<'{letter}'>(tw_o{i}, tw_v{i});")
        labels = [s.text for s in self.statements if s.opcode == ":"]
        declared = ("__label__ " + ", ".join(f"tw_l_{_name(x)}" for x in labels) + "; ") if labels else ""
        declared += "::tw::u64 tw_cc = 0; " if self.carries else ""
        head += [f"[[maybe_unused]] ::tw::u64 tw_r_{_name(r)} = 0;" for r in self.registers]
        return "do { " + declared + " ".join(head + code + tail) + " } while (0)"

    # --- operands
    def read(self, o: PtxOperand, kind: str = "") -> str:
        """The raw bits of an operand, as C++."""
        if o.kind == "bound":
            letter = self.asm.bindings[int(o.text)].letter
            self._fits(o, kind, letter)
            text = f"tw_v{o.text}"
        elif o.kind == "number":
            text = _number(o.text, kind)
        elif o.kind == "special":
            text = f'::tw::special("{o.text}")'
        elif o.kind == "register":
            if o.text == "WARP_SZ":
                return "32ull"
            text = self.register(o.text)
        elif o.kind == "vector" and len(o.parts) == 2:  # mov.b64 d, {low, high}
            low, high = (self.read(p) for p in o.parts)
            text = f"((uint32_t)({low}) | ({high}) << 32)" if kind != "b32" else f"((uint16_t)({low}) | ({high}) << 16)"
        else:
            raise self.fail(f"an operand that this instruction does not take: {o.text or o.kind}")
        return f"!({text})" if o.negated else text

    def _fits(self, o: PtxOperand, kind: str, letter: str) -> None:
        if letter.isdigit() or letter == "n" or kind in ("", "pred") or BITS.get(kind, 32) < 16:
            return
        bits = {"f16x2": 32, "bf16x2": 32}.get(kind) or BITS.get(kind) or int(kind[1:])
        if bits != _LETTER_BITS[letter] and not (bits == 16 and letter == "r"):
            raise self.fail(
                f"operand %{o.text} is bound as {self.asm.bindings[int(o.text)].constraint!r}, of "
                f"{_LETTER_BITS[letter]} bits, where the instruction takes {kind}"
            )

    def register(self, name: str) -> str:
        """The C++ name of a PTX register."""
        self.registers.setdefault(name)
        return f"tw_r_{_name(name)}"

    def target(self, o: PtxOperand, kind: str = "") -> str:
        """The C++ variable that a result goes to."""
        if o.kind == "bound":
            if not self.asm.bindings[int(o.text)].written:
                raise self.fail(
                    f"operand %{o.text} is written but bound as an input", "a constraint that begins with = or +"
                )
            self._fits(o, kind, self.asm.bindings[int(o.text)].letter)
            return f"tw_v{o.text}"
        if o.kind == "none":
            return self.register("_")
        if o.kind != "register":
            raise self.fail(f"a result in {o.text or o.kind}")
        return self.register(o.text)

    def address(self, o: PtxOperand) -> str:
        """The address of a memory operand."""
        if o.kind != "memory":
            raise self.fail("an address in brackets is missing")
        base = self.read(o.parts[0])
        return f"(({base}) {o.offset})" if o.offset else base

    def listed(self, o: PtxOperand) -> tuple[PtxOperand, ...]:
        """The elements of a vector, or the operand alone."""
        return o.parts if o.kind == "vector" else (o,)

    def _statement(self, s: Statement) -> str:
        if s.opcode == ":":
            return f"tw_l_{_name(s.text)}: ;"
        for pattern, handler in HANDLERS:
            if re.match(pattern, s.opcode):
                code = handler(self, s)
                break
        else:
            code = self._scalar(s)
        return f"if ({self.read(s.guard)}) {{ {code} }}" if s.guard else code

    def _scalar(self, s: Statement) -> str:
        types = [m for m in s.modifiers if m in C_TYPES or m in BITS or m in ("f16x2", "bf16x2")]
        kind = types[-1] if types else ""
        if s.opcode.startswith("mov") and s.operands[0].kind == "vector":
            half = int(kind[1:]) // 2
            value = self.read(s.operands[1])
            return " ".join(
                f"{self.target(p)} = ({value}) >> {half * i} & {hex((1 << half) - 1)}ull;"
                for i, p in enumerate(s.operands[0].parts)
            )
        selected = s.modifiers[0] in (
            "selp",
            "setp",
            "cvt",
            "mad",
            "fma",
            "mul",
            "shl",
            "shr",
            "shf",
            "bfe",
            "bfi",
            "clz",
            "popc",
            "slct",
            "prmt",
            "dp4a",
            "bfind",
        )
        reads = [self.read(o, "" if selected else kind) for o in s.operands[1:]]
        sum_of = carried(s, reads)
        if sum_of is not None:
            self.carries = True
            return f"{self.target(s.operands[0], kind)} = {sum_of};"
        found = scalar_expression(s, reads) if types else None
        if found is None:
            raise self.fail(f"no emulation of {s.opcode}", "an instruction that docs/cuda.md lists")
        result, value = found
        first, c_type = s.operands[0], C_TYPES[result]
        if result != "pred" or s.modifiers[0] != "setp":
            wide = "(uint32_t)(int32_t)" if result in ("s8", "s16") else ""  # a narrow one fills its register
            kind = "" if result == "pred" or wide else result
            return f"{self.target(first, kind)} = ::tw::bits<::tw::u64>({wide}({c_type})({value}));"
        joined = next((_JOINED[m] for m in s.modifiers[1:-1] if m in _JOINED), None)  # setp.lt.and.s32 p|q, a, b, c
        also = f" {joined} tw_j" if joined else ""
        given = f" bool tw_j = {reads[2]};" if joined else ""  # read before either result is written
        second = f" {self.register(first.predicate)} = !tw_c{also};" if first.predicate else ""
        return f"{{ bool tw_c = {value};{given}{second} {self.target(first)} = tw_c{also}; }}"

    # --- helpers of the handlers
    def tile(self, o: PtxOperand, tile: Fragment, role: str) -> tuple[PtxOperand, ...]:
        """The registers of a fragment, as many as its layout says, of the class that its type demands."""
        items = self.listed(o)
        if len(items) != tile.registers:
            raise self.fail(f"{role} has {len(items)} registers, the instruction takes {tile.registers}")
        letter = {"f32": "f", "f64": "d", "u64": "l"}.get(tile.dtype, "r")
        for item in items:
            if item.kind == "bound" and self.asm.bindings[int(item.text)].letter not in (letter, *(_same(letter))):
                given = self.asm.bindings[int(item.text)].constraint
                raise self.fail(f"{role} is bound as {given!r}, the instruction takes {letter!r}")
        return items

    def array(self, name: str, items: tuple[PtxOperand, ...]) -> str:
        """Registers as a C++ array."""
        return f"::tw::u64 {name}[] = {{{', '.join(self.read(i) for i in items)}}};"

    def unpack(self, name: str, items: tuple[PtxOperand, ...]) -> str:
        """The elements of a C++ array to registers."""
        return " ".join(f"{self.target(o)} = {name}[{i}];" for i, o in enumerate(items))


def _same(letter: str) -> tuple[str, ...]:
    return ("n",) if letter == "r" else ()


def _name(text: str) -> str:
    return re.sub(r"\W", "_", text)


def _number(text: str, kind: str) -> str:
    if re.match(r"0[fF]", text) and len(text) == 10:
        return f"0x{text[2:]}ull"
    if re.match(r"0[dD]", text) and len(text) == 18:
        return f"0x{text[2:]}ull"
    if "." in text:
        return f"::tw::bits<::tw::u64>({text}{'f' if kind != 'f64' else ''})"
    return f"(::tw::u64)({text.rstrip('uU')}{'' if text.startswith('-') else 'ull'})"


Handler = Callable[[AsmBlock, Statement], str]
HANDLERS: list[tuple[str, Handler]] = []


def row_of(block: AsmBlock, opcode: str) -> Atom:
    """The row of the atom table, or an error at the asm statement."""
    try:
        return atom(opcode)
    except BackendError as error:
        raise block.fail(f"the atom table has no {opcode}", error.inputs.get("legal", "")) from None
