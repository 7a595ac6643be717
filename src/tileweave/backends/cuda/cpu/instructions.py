"""What each instruction of inline PTX calls: tiles, barriers, copies, memory."""

from __future__ import annotations

import re
from collections.abc import Callable

from tileweave.backends.cuda.cpu.emit import HANDLERS, AsmBlock, Handler, row_of
from tileweave.backends.cuda.cpu.ptx import PtxOperand, Statement
from tileweave.backends.cuda.cpu.scalar import C_TYPES

_SHUFFLES = {"idx": "SHFL_IDX", "up": "SHFL_UP", "down": "SHFL_DOWN", "bfly": "SHFL_BFLY"}
_ATOMS = {
    "add": "old + b", "min": "b < old ? b : old", "max": "old < b ? b : old",
    "and": "old & b", "or": "old | b", "xor": "old ^ b", "exch": "b", "cas": "old == b ? c : old",
    "inc": "old >= b ? 0 : old + 1", "dec": "old == 0 || old > b ? b : old - 1",
}  # fmt: skip


def handles(pattern: str) -> Callable[[Handler], Handler]:
    """Registers a handler for opcodes that begin so."""

    def register(function: Handler) -> Handler:
        HANDLERS.append((pattern, function))
        return function

    return register


def _always(call: str) -> Handler:
    return lambda block, statement: call


for _pattern, _call in (
    (r"wgmma\.fence", "::tw::wgmma_fence();"),
    (r"wgmma\.commit_group", "::tw::wgmma_commit();"),
    (r"fence\.mbarrier_init", "::tw::barrier_fence();"),
    (r"fence\.proxy\.async", "::tw::proxy_fence();"),
    (r"fence\.proxy\.alias", "::tw::alias_fence();"),
    (r"cp\.async\.commit_group", "::tw::copy_commit();"),
    (r"cp\.async\.bulk\.commit_group", "::tw::bulk_commit();"),
):
    HANDLERS.append((_pattern, _always(_call)))


def _space(s: Statement) -> str:
    for word in ("shared", "global", "local", "const", "param"):
        if any(m.split("::")[0] == word for m in s.modifiers):
            return {"shared": "::tw::SHARED", "global": "::tw::GLOBAL"}.get(word, "::tw::GENERIC")
    return "::tw::GENERIC"


def _need(block: AsmBlock, s: Statement, least: int, most: int | None = None) -> None:
    if not least <= len(s.operands) <= (most or least):
        raise block.fail(f"{s.opcode} with {len(s.operands)} operands", f"{least}" + (f" to {most}" if most else ""))


# --- tiles
@handles(r"mma\.")
def _mma(block: AsmBlock, s: Statement) -> str:
    row = row_of(block, s.opcode)
    _need(block, s, 4)
    items = {role: block.tile(o, row[role], role.upper()) for role, o in zip("dabc", s.operands, strict=True)}
    code = [block.array(f"tw_{role}", items[role]) for role in "abc"]
    count, saturate = row["d"].registers, str("satfinite" in s.modifiers).lower()
    product = block.tables.product(row)
    code.append(f"::tw::u64 tw_d[{count}] = {{}}; ::tw::mma({product}, tw_d, tw_a, tw_b, tw_c, {saturate});")
    return "{ " + " ".join(code) + " " + block.unpack("tw_d", items["d"]) + " }"


@handles(r"(ldmatrix|stmatrix)\.")
def _matrix(block: AsmBlock, s: Statement) -> str:
    row = row_of(block, s.opcode.replace("shared::cta", "shared"))
    _need(block, s, 2)
    fragment = block.tables.fragment(row["d"])
    if s.opcode.startswith("ldmatrix"):
        items = block.tile(s.operands[0], row["d"], "the destination")
        address = block.address(s.operands[1])
        return (
            f"{{ ::tw::u64 tw_d[{len(items)}] = {{}}; ::tw::load_matrix({fragment}, tw_d, "
            f"{address}); {block.unpack('tw_d', items)} }}"
        )
    items = block.tile(s.operands[1], row["d"], "the source")
    return f"{{ {block.array('tw_d', items)} ::tw::store_matrix({fragment}, tw_d, {block.address(s.operands[0])}); }}"


@handles(r"movmatrix\.")
def _move(block: AsmBlock, s: Statement) -> str:
    row = row_of(block, s.opcode)
    d, a = block.tables.fragment(row["d"]), block.tables.fragment(row["a"])
    return (
        f"{{ ::tw::u64 tw_d[1] = {{}}; ::tw::move_matrix({d}, {a}, tw_d, {block.read(s.operands[1], 'b32')}); "
        f"{block.target(s.operands[0], 'b32')} = tw_d[0]; }}"
    )


@handles(r"wgmma\.mma_async")
def _wgmma(block: AsmBlock, s: Statement) -> str:
    row = row_of(block, s.opcode)
    d = block.tile(s.operands[0], row["d"], "D")
    pointers = []
    for o in d:
        if o.kind != "bound" or not block.asm.bindings[int(o.text)].constraint.startswith("+"):
            raise block.fail(
                "an accumulator of wgmma that is no operand bound with +", '"+f" or "+r" for each register of D'
            )
        block.pointers.add(int(o.text))
        pointers.append(f"(void*)&tw_o{o.text}")
    registers = s.operands[1].kind == "vector"
    rest = s.operands[3:]
    bits16 = row["b"].dtype in ("f16", "bf16")
    integers = row["d"].dtype == "s32"
    wanted = 1 + (0 if integers else 2) + ((1 if registers else 2) if bits16 else 0)
    if len(rest) != wanted:
        raise block.fail(
            f"{len(rest)} operands follow the descriptors of wgmma", f"{wanted} for this type and these sources"
        )
    keep, *numbers = (block.read(o) for o in rest)
    scale_a, scale_b = (f"(int)({n})" for n in numbers[:2]) if not integers else ("1", "1")
    trans = numbers[2:] if not integers else []
    trans_a = f"({trans[0]}) != 0" if len(trans) == 2 else "false"
    trans_b = f"({trans[-1]}) != 0" if trans else "false"
    code = f"void* const tw_d[] = {{{', '.join(pointers)}}}; "
    if registers:
        code += block.array("tw_a", block.tile(s.operands[1], row["a"], "A")) + " "
        a = f"{{tw_a, 0, false, {scale_a}}}"
    else:
        a = f"{{nullptr, {block.read(s.operands[1], 'b64')}, {trans_a}, {scale_a}}}"
    b = f"{{nullptr, {block.read(s.operands[2], 'b64')}, {trans_b}, {scale_b}}}"
    return f"{{ {code}::tw::wgmma({block.tables.product(row)}, tw_d, ({keep}) != 0, {a}, {b}); }}"


@handles(r"tcgen05\.")
def _tensor_memory(block: AsmBlock, s: Statement) -> str:
    o, name = s.operands, s.modifiers[1]
    pair = str(any(m == "cta_group::2" for m in s.modifiers)).lower()
    if name == "alloc":
        return f"::tw::tensor_alloc({block.address(o[0])}, {block.read(o[1], 'u32')}, {pair});"
    if name == "dealloc":
        return f"::tw::tensor_free({block.read(o[0], 'b32')}, {block.read(o[1], 'u32')}, {pair});"
    if name == "relinquish_alloc_permit":
        return "::tw::tensor_relinquish();"
    if name == "cp":
        _need(block, s, 2)
        if not s.opcode.endswith(".32x128b.warpx4"):
            raise block.fail(f"no emulation of {s.opcode}", "tcgen05.cp.cta_group::1.32x128b.warpx4")
        return f"::tw::tensor_copy({pair}, (uint32_t)({block.address(o[0])}), {block.read(o[1], 'b64')});"
    if name == "mma" and "block_scale" in s.modifiers:
        return _scaled_product(block, s, pair)
    if name == "mma":
        row = row_of(block, s.opcode)
        _need(block, s, 5)
        kind = row.name.rsplit("::", 1)[1]
        where = f"(uint32_t)({block.address(o[0])})"
        inside = str(o[1].kind == "memory").lower()
        first = block.address(o[1]) if o[1].kind == "memory" else block.read(o[1], "b64")
        numbers = f"{inside}, {first}, {block.read(o[2], 'b64')}, (uint32_t)({block.read(o[3], 'b32')})"
        return f'::tw::tensor_mma("{kind}", {pair}, {where}, {numbers}, ({block.read(o[4])}) != 0);'
    if name == "commit":
        mask = f"(int)({block.read(o[1])})" if "multicast" in s.opcode else "-1"
        return f"::tw::tensor_commit({block.address(o[0])}, {mask}, {pair});"
    if name == "fence::before_thread_sync" or name == "fence::after_thread_sync":
        return f"::tw::tensor_fence({str('after' in name).lower()});"
    if name in ("wait::ld", "wait::st"):
        return f"::tw::tensor_wait({str(name.endswith('st')).lower()});"
    if name in ("ld", "st"):
        row = row_of(block, s.opcode)
        fragment = block.tables.fragment(row["d"])
        registers, memory = (o[0], o[1]) if name == "ld" else (o[1], o[0])
        items = block.tile(registers, row["d"], "the registers")
        where = f"(uint32_t)({block.address(memory)})"
        if name == "st":
            return f"{{ {block.array('tw_d', items)} ::tw::tensor_move({fragment}, tw_d, {where}, true); }}"
        return (
            f"{{ ::tw::u64 tw_d[{len(items)}] = {{}}; ::tw::tensor_move({fragment}, tw_d, {where}, false); "
            f"{block.unpack('tw_d', items)} }}"
        )
    raise block.fail(f"no emulation of {s.opcode}")


def _scaled_product(block: AsmBlock, s: Statement, pair: str) -> str:
    """``tcgen05.mma`` with a scale of type e8m0 for every row of 32 elements of A and B, in tensor memory."""
    o, kind = s.operands, s.modifiers[3].removeprefix("kind::")
    _need(block, s, 7)
    if kind != "mxf8f6f4" or list(s.modifiers[5:]) not in (["scale_vec::1X"], ["block32"], []) or o[1].kind == "memory":
        raise block.fail(f"no emulation of {s.opcode}", "kind::mxf8f6f4, one scale for 32 elements, A in shared memory")
    d, first, second = (f"(uint32_t)({block.address(o[n])})" for n in (0, 4, 5))
    numbers = f"{block.read(o[1], 'b64')}, {block.read(o[2], 'b64')}, (uint32_t)({block.read(o[3], 'b32')})"
    return f'::tw::tensor_mma_scaled("{kind}", {pair}, {d}, {numbers}, {first}, {second}, ({block.read(o[6])}) != 0);'


@handles(r"wgmma\.wait_group")
def _wgmma_wait(block: AsmBlock, s: Statement) -> str:
    _need(block, s, 1)
    return f"::tw::wgmma_wait((int)({block.read(s.operands[0])}));"


@handles(r"setmaxnreg\.")
def _registers(block: AsmBlock, s: Statement) -> str:
    row_of(block, s.opcode)
    return f"::tw::set_registers({block.read(s.operands[0])}, {str('inc' in s.modifiers).lower()});"


# --- warps
@handles(r"shfl\.sync\.")
def _shuffle(block: AsmBlock, s: Statement) -> str:
    row_of(block, s.opcode)
    _need(block, s, 5)
    d, value, lane, segment, mask = s.operands
    mode = _SHUFFLES[s.modifiers[2]]
    call = (
        f"::tw::warp(::tw::{mode}, {block.read(mask)}, {block.read(value, 'b32')}, "
        f"{block.read(lane)}, {block.read(segment)}, &tw_p)"
    )
    flag = f" {block.register(d.predicate)} = tw_p;" if d.predicate else ""
    return f"{{ bool tw_p = false; {block.target(d, 'b32')} = {call};{flag} }}"


@handles(r"vote\.sync\.")
def _vote(block: AsmBlock, s: Statement) -> str:
    d, value, mask = s.operands
    mode = {"ballot": "BALLOT", "any": "ANY", "all": "ALL"}.get(s.modifiers[2])
    if mode is None:
        raise block.fail(f"no emulation of {s.opcode}", "vote.sync of ballot, any or all")
    return f"{block.target(d)} = ::tw::warp(::tw::{mode}, {block.read(mask)}, {block.read(value)});"


@handles(r"match\.(any|all)\.sync\.")
def _match(block: AsmBlock, s: Statement) -> str:
    d, value, mask = s.operands
    flag = f" {block.register(d.predicate)} = tw_p;" if d.predicate else ""
    call = f"::tw::warp(::tw::MATCH_{s.modifiers[1].upper()}, {block.read(mask)}, {block.read(value)}, 0, 31, &tw_p)"
    return f"{{ bool tw_p = false; {block.target(d)} = {call};{flag} }}"


@handles(r"redux\.sync\.")
def _redux(block: AsmBlock, s: Statement) -> str:
    d, value, mask = s.operands
    operation, kind = s.modifiers[2], s.modifiers[-1]
    suffix = "B" if operation in ("and", "or", "xor") else kind[0].upper()
    return (
        f"{block.target(d)} = ::tw::warp(::tw::{operation.upper()}_{suffix}, {block.read(mask)}, {block.read(value)});"
    )


@handles(r"elect\.sync")
def _elect(block: AsmBlock, s: Statement) -> str:
    d, mask = s.operands
    flag = f" {block.register(d.predicate)} = tw_p;" if d.predicate else ""
    return (
        f"{{ bool tw_p = false; {block.target(d)} = ::tw::warp(::tw::ELECT, {block.read(mask)}, "
        f"0, 0, 31, &tw_p);{flag} }}"
    )


@handles(r"activemask")
def _active(block: AsmBlock, s: Statement) -> str:
    return f"{block.target(s.operands[0])} = ::tw::active_mask();"


# --- barriers and fences
@handles(r"bar\.warp\.sync")
def _warp_barrier(block: AsmBlock, s: Statement) -> str:
    return f"::tw::warp(::tw::SYNC_WARP, {block.read(s.operands[0])});"


@handles(r"barrier\.cluster\.(arrive|wait)")
def _cluster(block: AsmBlock, s: Statement) -> str:
    return f"::tw::cluster_{s.modifiers[2]}();"


@handles(r"(bar|barrier)(\.cta)?\.(sync|arrive)")
def _barrier(block: AsmBlock, s: Statement) -> str:
    _need(block, s, 1, 2)
    count = block.read(s.operands[1]) if len(s.operands) == 2 else "0"
    wait = "sync" in s.modifiers
    if not wait and len(s.operands) == 1:
        raise block.fail("bar.arrive without a number of threads", "bar.arrive a, b")
    return f"::tw::named_barrier({block.read(s.operands[0])}, {count}, {str(wait).lower()});"


@handles(r"(fence|membar)\.")
def _fence(block: AsmBlock, s: Statement) -> str:
    if "proxy" in s.modifiers:
        raise block.fail(f"no emulation of {s.opcode}")
    scope = next(
        (
            n
            for n, words in enumerate((("cta",), ("cluster",), ("gpu", "gl"), ("sys",)))
            if set(words) & set(s.modifiers)
        ),
        2,
    )
    total = "sc" in s.modifiers or s.opcode.startswith("membar")
    return f"::tw::fence({scope}, {str(total).lower()});"


@handles(r"mbarrier\.")
def _mbarrier(block: AsmBlock, s: Statement) -> str:
    operation, o = s.modifiers[1], s.operands
    if operation == "init":
        _need(block, s, 2)
        return f"::tw::barrier_init({block.address(o[0])}, {block.read(o[1], 'u32')});"
    if operation == "inval":
        return f"::tw::barrier_drop({block.address(o[0])});"
    if operation in ("expect_tx", "complete_tx"):
        function = "expect" if operation == "expect_tx" else "complete"
        return f"::tw::barrier_{function}({block.address(o[0])}, {block.read(o[1], 'u32')});"
    if operation in ("arrive", "arrive_drop"):
        state, rest = (o[0], o[1:]) if o[0].kind != "memory" else (PtxOperand("none"), o)
        number = block.read(rest[1], "u32") if len(rest) > 1 else None
        expects = "expect_tx" in s.modifiers
        if expects and number is None:
            raise block.fail("arrive.expect_tx without bytes")
        count, transfer = ("1", number) if expects else (number or "1", "0")
        drop = str(operation == "arrive_drop").lower()
        return f"{block.target(state)} = ::tw::barrier_arrive({block.address(rest[0])}, {count}, {transfer}, {drop});"
    if operation in ("test_wait", "try_wait"):
        _need(block, s, 3, 4)
        parity = "parity" in s.modifiers
        wait = str(operation == "try_wait").lower()
        return (
            f"{block.target(o[0], 'pred')} = ::tw::barrier_test({block.address(o[1])}, "
            f"{block.read(o[2], 'u32' if parity else 'b64')}, {str(parity).lower()}, "
            f"{wait});"
        )
    raise block.fail(f"no emulation of {s.opcode}")


# --- asynchronous copies
@handles(r"cp\.async\.(ca|cg)\.")
def _copy(block: AsmBlock, s: Statement) -> str:
    _need(block, s, 3, 5)
    size = s.operands[2]
    number = block.asm.bindings[int(size.text)].expression if size.kind == "bound" else size.text
    cached = s.modifiers[2]
    if number.strip("()").isdigit():
        row_of(block, f"cp.async.{cached}.shared.global.{int(number.strip('()'))}")
    source = (
        block.read(s.operands[3])
        if len(s.operands) > 3 and not s.opcode.endswith("L2::cache_hint")
        else block.read(size)
    )
    if len(s.operands) > 3 and s.opcode.endswith("L2::cache_hint") and len(s.operands) == 5:
        source = block.read(s.operands[3])
    return (
        f"::tw::copy_async({block.address(s.operands[0])}, {block.address(s.operands[1])}, "
        f"(int)({block.read(size)}), (int)({source}));"
    )


@handles(r"cp\.async\.wait_(group|all)")
def _copy_wait(block: AsmBlock, s: Statement) -> str:
    pending = "-1" if s.modifiers[2] == "wait_all" else f"(int)({block.read(s.operands[0])})"
    return f"::tw::copy_wait({pending});"


@handles(r"cp\.async\.mbarrier\.arrive")
def _copy_arrive(block: AsmBlock, s: Statement) -> str:
    return f"::tw::copy_arrive({block.address(s.operands[0])}, {str('noinc' in s.modifiers).lower()});"


def _without_hints(s: Statement) -> str:
    """The name of a bulk copy's row; a destination in the block itself is one in the cluster."""
    plain = re.sub(r"\.(tile|L2::cache_hint)(?=\.|$)", "", s.opcode)
    return plain.replace("shared::cta.global", "shared::cluster.global")


@handles(r"cp\.(reduce\.)?async\.bulk\.tensor\.")
def _box(block: AsmBlock, s: Statement) -> str:
    match = re.search(r"tensor\.(\d)d", s.opcode)
    rank = int(match.group(1)) if match else 0
    loads = "complete_tx::bytes" in s.opcode
    pair = "cta_group::2" in s.opcode
    row_of(block, _without_hints(s))
    memory = s.operands[1] if loads else s.operands[0]
    if len(memory.parts) != 2 or len(block.listed(memory.parts[1])) != rank:
        raise block.fail(f"a box of rank {rank} needs {rank} coordinates", "[map, {x, ..}]")
    at = ", ".join(f"(int)({block.read(p, 'b32')})" for p in block.listed(memory.parts[1]))
    places = f"const int tw_at[] = {{{at}}};"
    tensor = f"(const void*)({block.read(memory.parts[0], 'b64')})"
    if loads:
        multicast = f"(int)({block.read(s.operands[3])})" if "multicast" in s.opcode else "-1"
        return (
            f"{{ {places} ::tw::box_load({block.address(s.operands[0])}, {tensor}, {rank}, "
            f"tw_at, {block.address(s.operands[2])}, {multicast}, {str(pair).lower()}); }}"
        )
    add = "reduce" in s.modifiers
    if add and "add" not in s.modifiers:
        raise block.fail(f"no emulation of {s.opcode}", "cp.reduce with .add")
    return (
        f"{{ {places} ::tw::box_store({tensor}, {rank}, tw_at, {block.address(s.operands[1])}, {str(add).lower()}); }}"
    )


@handles(r"cp\.async\.bulk\.wait_group")
def _bulk_wait(block: AsmBlock, s: Statement) -> str:
    return f"::tw::bulk_wait((int)({block.read(s.operands[0])}), {str('read' in s.modifiers).lower()});"


@handles(r"cp\.async\.bulk\.prefetch|prefetch|prefetchu|griddepcontrol|discard|applypriority|nanosleep")
def _hint(block: AsmBlock, s: Statement) -> str:
    return "::tw::pause();" if s.opcode.startswith("nanosleep") else ";"


@handles(r"cp\.async\.bulk\.(shared|global)")
def _bulk(block: AsmBlock, s: Statement) -> str:
    o = s.operands
    row_of(block, _without_hints(s))
    if s.modifiers[3].startswith("shared"):
        source = block.address(o[1])
        if s.modifiers[4] == "shared::cta":  # to another block of the cluster, whose mbarrier learns of it
            source = f"(uint64_t)::tw::generic({source}, ::tw::SHARED)"
        multicast = f"(int)({block.read(o[4])})" if "multicast" in s.opcode else "-1"
        return (
            f"::tw::bulk_load({block.address(o[0])}, {source}, {block.read(o[2])}, {block.address(o[3])}, {multicast});"
        )
    return f"::tw::bulk_store({block.address(o[0])}, {block.address(o[1])}, {block.read(o[2])});"


@handles(r"createpolicy\.")
def _policy(block: AsmBlock, s: Statement) -> str:
    return f"{block.target(s.operands[0])} = 0;"


# --- memory
def _flags(s: Statement) -> str:
    words = []
    if {"volatile", "relaxed", "acquire", "release", "acq_rel"} & set(s.modifiers) or s.modifiers[0] in ("atom", "red"):
        words.append("::tw::STRONG")
    if {"acquire", "acq_rel"} & set(s.modifiers):
        words.append("::tw::ACQUIRE")
    if {"release", "acq_rel"} & set(s.modifiers):
        words.append("::tw::RELEASE")
    if "cta" in s.modifiers:
        words.append("::tw::BLOCK_SCOPE")
    return " | ".join(words) or "0"


@handles(r"ld\.")
def _load(block: AsmBlock, s: Statement) -> str:
    kind = s.modifiers[-1]
    targets = block.listed(s.operands[0])
    size, c_type = int(kind[1:]) // 8, C_TYPES[kind]
    wide = "int64_t" if kind[0] == "s" else c_type
    code = (
        f"char* tw_p = (char*)::tw::generic({block.address(s.operands[1])}, {_space(s)}); "
        f"::tw::access(tw_p, {size * len(targets)}, ::tw::READ | {_flags(s)});"
    )
    for i, o in enumerate(targets):
        code += f" {block.target(o, kind)} = ::tw::bits<::tw::u64>(({wide})::tw::raw<{c_type}>(tw_p + {size * i}));"
    return f"{{ {code} }}"


@handles(r"st\.")
def _store(block: AsmBlock, s: Statement) -> str:
    kind = s.modifiers[-1]
    values = block.listed(s.operands[1])
    size, c_type = int(kind[1:]) // 8, C_TYPES[kind]
    code = (
        f"char* tw_p = (char*)::tw::generic({block.address(s.operands[0])}, {_space(s)}); "
        f"::tw::access(tw_p, {size * len(values)}, ::tw::WRITE | {_flags(s)}); ::tw::changed();"
    )
    for i, o in enumerate(values):
        code += f" ::tw::put(tw_p + {size * i}, ::tw::bits<{c_type}>({block.read(o, kind)}));"
    return f"{{ {code} }}"


@handles(r"multimem\.ld_reduce\.")
def _multicast(block: AsmBlock, s: Statement) -> str:
    """A load from all devices at once: how it is ordered stands in the flags, the rest in the row."""
    _need(block, s, 2)
    ordering = {"weak", "relaxed", "acquire", "cta", "cluster", "gpu", "sys", "global"}
    plain = ".".join(m for m in s.modifiers[2:] if m not in ordering)
    row = row_of(block, f"multimem.ld_reduce.relaxed.sys.global.{plain}")
    items = block.tile(s.operands[0], row["d"], "the destination")
    fn = next(m for m in s.modifiers if m in ("add", "min", "max"))
    call = f'"{fn}", tw_d, {block.address(s.operands[1])}, {_flags(s)}'
    return (
        f"{{ ::tw::u64 tw_d[{len(items)}] = {{}}; ::tw::multicast_load({block.tables.fragment(row['d'])}, {call}); "
        f"{block.unpack('tw_d', items)} }}"
    )


@handles(r"(atom|red)\.")
def _atomic(block: AsmBlock, s: Statement) -> str:
    kind = s.modifiers[-1]
    operation = next((m for m in s.modifiers if m in _ATOMS), None)
    if operation is None or kind not in C_TYPES:
        raise block.fail(f"no emulation of {s.opcode}")
    c_type = C_TYPES[kind]
    result, rest = (s.operands[0], s.operands[1:]) if s.modifiers[0] == "atom" else (PtxOperand("none"), s.operands)
    values = "".join(
        f" {c_type} {n} = ::tw::bits<{c_type}>({block.read(o, kind)});" for n, o in zip("bc", rest[1:], strict=False)
    )
    return (
        f"{{ auto* tw_p = ({c_type}*)::tw::generic({block.address(rest[0])}, {_space(s)});{values} "
        f"{block.target(result)} = ::tw::bits<::tw::u64>(::tw::atomic(tw_p, [=]({c_type} "
        f"old) TW_PLAIN {{ return ({c_type})({_ATOMS[operation]}); }}, {_flags(s)})); "
        f"}}"
    )


@handles(r"cvta\.")
def _cvta(block: AsmBlock, s: Statement) -> str:
    d, a = s.operands
    if not any(m.startswith("shared") for m in s.modifiers):
        return f"{block.target(d)} = {block.read(a)};"
    if "to" in s.modifiers:
        return f"{block.target(d)} = ::tw::shared_offset((const void*)({block.read(a)}));"
    return f"{block.target(d)} = (::tw::u64)::tw::generic({block.read(a)}, ::tw::SHARED);"


@handles(r"mapa\.")
def _mapa(block: AsmBlock, s: Statement) -> str:
    d, a, rank = s.operands
    if not any(m.startswith("shared") for m in s.modifiers):
        return f"{block.target(d)} = ::tw::map_generic({block.read(a)}, {block.read(rank)});"
    return f"{block.target(d)} = ::tw::map_rank({block.read(a)}, {block.read(rank)});"


# --- control
@handles(r"bra")
def _branch(block: AsmBlock, s: Statement) -> str:
    return f"goto tw_l_{re.sub(r'[^0-9A-Za-z_]', '_', s.operands[0].text)};"


@handles(r"(trap|exit|ret|brkpt)$")
def _stop(block: AsmBlock, s: Statement) -> str:
    return f'::tw::trap("{s.opcode}");' if s.opcode == "trap" else "return;"
