"""The prelude: one inline function an instruction, its PTX made from the atom table.

Bodies of kernels call these functions and hold no asm of their own, so the same body runs on a device and on a CPU.
"""

from __future__ import annotations

from tileweave.kernel.atoms import BITS, Atom, atom

_HEAD = "__device__ __forceinline__ "


def _asm(name: str, parameters: str, text: str, operands: str = "", template: str = "") -> str:
    """A function of one asm statement, which orders memory."""
    return f'{template}{_HEAD}void {name}({parameters}) {{\n  asm volatile("{text}" ::{operands} : "memory");\n}}'


_N = "template <int N> "
_BAR = '"r"(tw_shared(bar))'
_LOOP = (
    "{\\n.reg .pred done;\\nWAIT:\\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"
    "@done bra DONE;\\nbra WAIT;\\nDONE:\\n}"
)
_PLAIN = {
    "tw_shared": _HEAD + "unsigned tw_shared(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }",
    "tw_move": "template <int BYTES> struct tw_unit;\n"
    + "".join(
        f"template <> struct tw_unit<{n}> {{ using type = {kind}; }};\n"
        for n, kind in ((1, "unsigned char"), (2, "unsigned short"), (4, "unsigned"), (8, "uint2"), (16, "uint4"))
    )
    + f"template <int BYTES> {_HEAD}void tw_move(void* to, const void* from) {{\n"
    "  using T = typename tw_unit<BYTES>::type;\n"
    "  *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(from);\n}",
    "tw_fill": f"template <int COUNT, class T> {_HEAD}void tw_fill(T* to, T value) {{\n"
    "#pragma unroll\n  for (int i = 0; i < COUNT; ++i) to[i] = value;\n}",
    "tw_copy_commit": _asm("tw_copy_commit", "", "cp.async.commit_group;"),
    "tw_copy_wait": _asm("tw_copy_wait", "", "cp.async.wait_group %0;", '"n"(N)', _N),
    "tw_barrier": _asm("tw_barrier", "int id, int threads", "bar.sync %0, %1;", '"r"(id), "r"(threads)'),
    "tw_mbarrier_fence": _asm("tw_mbarrier_fence", "", "fence.mbarrier_init.release.cluster;"),
    "tw_proxy_fence": _asm("tw_proxy_fence", "", "fence.proxy.async.shared::cta;"),
    "tw_alias_fence": _asm("tw_alias_fence", "", "fence.proxy.alias;"),
    "tw_bulk_commit": _asm("tw_bulk_commit", "", "cp.async.bulk.commit_group;"),
    "tw_bulk_wait": _asm("tw_bulk_wait", "", "cp.async.bulk.wait_group %0;", '"n"(N)', _N),
    "tw_bulk_wait_read": _asm("tw_bulk_wait_read", "", "cp.async.bulk.wait_group.read %0;", '"n"(N)', _N),
    "tw_cluster_sync": _asm(
        "tw_cluster_sync", "", "barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;"
    ),
    "tw_peer": f"template <class T> {_HEAD}T* tw_peer(T* mine, int rank) {{\n  unsigned long long there;\n"
    '  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(mine), "r"(rank));\n'
    "  return reinterpret_cast<T*>(there);\n}",
    "tw_wgmma_fence": _asm("tw_wgmma_fence", "", "wgmma.fence.sync.aligned;"),
    "tw_wgmma_commit": _asm("tw_wgmma_commit", "", "wgmma.commit_group.sync.aligned;"),
    "tw_wgmma_wait": _asm("tw_wgmma_wait", "", "wgmma.wait_group.sync.aligned %0;", '"n"(N)', _N),
    "tw_registers_inc": _asm("tw_registers_inc", "", "setmaxnreg.inc.sync.aligned.u32 %0;", '"n"(N)', _N),
    "tw_registers_dec": _asm("tw_registers_dec", "", "setmaxnreg.dec.sync.aligned.u32 %0;", '"n"(N)', _N),
    "tw_signal": _asm(
        "tw_signal", "void* flag, int amount", "red.release.sys.global.add.u32 [%0], %1;", '"l"(flag), "r"(amount)'
    ),
    "tw_atomic_add": f"{_HEAD}unsigned tw_atomic_add(void* cell, unsigned amount) {{\n  unsigned old;\n"
    '  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"\n'
    '               : "=r"(old) : "l"(cell), "r"(amount) : "memory");\n  return old;\n}',
    "tw_wait": f"{_HEAD}void tw_wait(const void* flag, unsigned least) {{\n  unsigned seen;\n  do {{\n"
    '    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");\n'
    "  } while (seen < least);\n}",
}


def _tensor_helpers(group: int) -> dict[str, str]:
    """Helpers of tensor memory, for one block or for two."""
    of = f"cta_group::{group}"
    arrive = f"tcgen05.commit.{of}.mbarrier::arrive::one.shared::cluster"
    return {
        f"tw_tensor_alloc{group}": _asm(
            f"tw_tensor_alloc{group}", "void* address, int columns",
            f"tcgen05.alloc.{of}.sync.aligned.shared::cta.b32 [%0], %1;", '"r"(tw_shared(address)), "r"(columns)',
        ),
        f"tw_tensor_dealloc{group}": _asm(
            f"tw_tensor_dealloc{group}", "unsigned address, int columns",
            f"tcgen05.dealloc.{of}.sync.aligned.b32 %0, %1;", '"r"(address), "r"(columns)',
        ),
        f"tw_tensor_relinquish_alloc_permit{group}": _asm(
            f"tw_tensor_relinquish_alloc_permit{group}", "", f"tcgen05.relinquish_alloc_permit.{of}.sync.aligned;"
        ),
        f"tw_tensor_commit{group}": _asm(f"tw_tensor_commit{group}", "void* bar", f"{arrive}.b64 [%0];", _BAR),
        f"tw_tensor_commit_multicast{group}": _asm(
            f"tw_tensor_commit_multicast{group}", "void* bar, unsigned short mask",
            f"{arrive}.multicast::cluster.b64 [%0], %1;", f'{_BAR}, "h"(mask)',
        ),
    }  # fmt: skip


_SHARED = {
    **_tensor_helpers(1),
    **_tensor_helpers(2),
    "tw_tensor_fence_before": _asm("tw_tensor_fence_before", "", "tcgen05.fence::before_thread_sync;"),
    "tw_tensor_fence_after": _asm("tw_tensor_fence_after", "", "tcgen05.fence::after_thread_sync;"),
    "tw_tensor_wait_ld": _asm("tw_tensor_wait_ld", "", "tcgen05.wait::ld.sync.aligned;"),
    "tw_tensor_wait_st": _asm("tw_tensor_wait_st", "", "tcgen05.wait::st.sync.aligned;"),
    "tw_descriptor100": f"{_HEAD}unsigned long long tw_descriptor100(const void* p, int lbo, int sbo, int swizzle) {{\n"
    "  return (unsigned long long)swizzle << 61 | 1ull << 46 | (unsigned long long)(sbo >> 4) << 32\n"
    "         | (unsigned long long)(lbo >> 4) << 16 | (tw_shared(p) & 0x3FFFF) >> 4;\n}",
    "tw_mbarrier_init": _asm(
        "tw_mbarrier_init", "void* bar, int count", "mbarrier.init.shared::cta.b64 [%0], %1;", f'{_BAR}, "r"(count)'
    ),
    "tw_mbarrier_expect": _asm(
        "tw_mbarrier_expect", "void* bar, int bytes", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;",
        f'{_BAR}, "r"(bytes)',
    ),
    "tw_mbarrier_arrive_cluster": _asm(
        "tw_mbarrier_arrive_cluster", "void* bar, int rank",
        "{\\n.reg .b32 there;\\nmapa.shared::cluster.u32 there, %0, %1;\\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\\n}", f'{_BAR}, "r"(rank)',
    ),
    "tw_mbarrier_arrive": _asm("tw_mbarrier_arrive", "void* bar", "mbarrier.arrive.shared::cta.b64 _, [%0];", _BAR),
    "tw_mbarrier_wait": _asm("tw_mbarrier_wait", "void* bar, int parity", _LOOP, f'{_BAR}, "r"(parity)'),
    "tw_mbarrier_test": _asm(
        "tw_mbarrier_test", "void* bar, int parity", _LOOP.replace("try_wait", "test_wait"), f'{_BAR}, "r"(parity)'
    ),
    "tw_descriptor": f"{_HEAD}unsigned long long tw_descriptor(const void* p, int lbo, int sbo, int swizzle) {{\n"
    "  return (unsigned long long)swizzle << 62 | (unsigned long long)(sbo >> 4) << 32\n"
    "         | (unsigned long long)(lbo >> 4) << 16 | (tw_shared(p) & 0x3FFFF) >> 4;\n}",
}  # fmt: skip
#: Helper -> (helpers that it needs, its definition).
HELPER_TEXT: dict[str, tuple[tuple[str, ...], str]] = {
    **{name: ((), text) for name, text in _PLAIN.items()},
    **{name: (("tw_shared",), text) for name, text in _SHARED.items()},
    "tw_shuffle": (
        ("tw_move",),
        f"template <int BYTES> {_HEAD}void tw_shuffle(void* to, const void* from, int lane) {{\n"
        "  using T = typename tw_unit<BYTES>::type;\n  const T mine = *reinterpret_cast<const T*>(from);\n"
        "  T& other = *reinterpret_cast<T*>(to);\n  if constexpr (BYTES == 8) {\n"
        "    other.x = __shfl_sync(0xffffffffu, mine.x, lane);\n"
        "    other.y = __shfl_sync(0xffffffffu, mine.y, lane);\n"
        "  } else {\n    other = (T)__shfl_sync(0xffffffffu, (unsigned)mine, lane);\n  }\n}",
    ),
}


def helper_name(name: str) -> str:
    """The name of the inline function of an atom: its opcode in the characters of an identifier."""
    short = name.replace(".sync.aligned", "").replace(".row.col", "").replace("::", "_").replace(".", "_")
    return "tw_" + short


def _words(operand: str, row: Atom, kind: str = "unsigned") -> tuple[str, int]:
    """The C++ type of an operand's registers and how many there are."""
    held = row[operand]
    if held.dtype in ("f32", "f64", "s32", "u64"):
        named = {"f32": "float", "f64": "double", "s32": "int", "u64": "unsigned long long"}
        return named[held.dtype], held.registers
    return kind, held.registers


_CONSTRAINT = {"float": "f", "double": "d", "int": "r", "unsigned": "r", "unsigned long long": "l"}


def _list(start: int, count: int) -> str:
    return "{" + ", ".join(f"%{start + i}" for i in range(count)) + "}"


def product_helper(name: str) -> tuple[tuple[str, ...], str]:
    """The helper of an instruction of the atom table: the helpers that it needs, and its definition."""
    row = atom(name)
    if row.family == "mma":
        return (), _mma(row)
    if row.family in ("ldmatrix", "stmatrix"):
        return ("tw_shared",), _matrix(row)
    if row.family == "cp.async":
        opcode, _, size = name.rpartition(".")
        given = '"r"(tw_shared(to)), "l"(from), "r"(bytes)'
        parameters = "void* to, const void* from, int bytes"
        return ("tw_shared",), _asm(helper_name(name), parameters, f"{opcode} [%0], [%1], {size}, %2;", given)
    if row.family == "tensor copy":
        return ("tw_shared",), _box(row)
    if row.family == "wgmma":
        return (), _wgmma(row)
    if row.family == "multimem":
        return (), _multicast(row)
    if row.family == "tcgen05.mma":
        opcode, inside = name.removesuffix(".tensor_a"), name.endswith(".tensor_a")
        first = "[%1]" if inside else "%1"
        scaled = "block_scale" in name
        operands = f"[%0], {first}, %2, %3{', [%5], [%6]' * scaled}, p"
        text = f"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %4, 0;\\n{opcode} {operands};\\n}}"
        given = f'"r"(d), "{"r" if inside else "l"}"(a), "l"(b), "r"(number), "r"(keep)'
        given += ', "r"(scale_a), "r"(scale_b)' * scaled
        kind = "unsigned" if inside else "unsigned long long"
        parameters = f"unsigned d, {kind} a, unsigned long long b, unsigned number, int keep"
        parameters += ", unsigned scale_a, unsigned scale_b" * scaled
        return (), _asm(helper_name(name), parameters, text, given)
    if row.family in ("tcgen05.ld", "tcgen05.st"):
        return (), _tensor_move(row)
    if row.family == "tcgen05.cp":
        parameters = "unsigned t, unsigned long long from"
        return (), _asm(helper_name(name), parameters, f"{name} [%0], %1;", '"r"(t), "l"(from)')
    raise KeyError(name)


def _multicast(row: Atom) -> str:
    kind, count = _words("d", row)
    outs = ", ".join(f'"={_CONSTRAINT[kind]}"(D[{i}])' for i in range(count))
    into = _list(0, count) if count > 1 else "%0"
    return (
        f"{_HEAD}void {helper_name(row.name)}(void* d, const void* all) {{\n"
        f"  {kind}* D = reinterpret_cast<{kind}*>(d);\n"
        f'  asm volatile("{row.name} {into}, [%{count}];" : {outs} : "l"(all) : "memory");\n}}'
    )


def _tensor_move(row: Atom) -> str:
    count = row["d"].registers
    if row.family == "tcgen05.st":
        ins = ", ".join(f'"r"(D[{i}])' for i in range(count))
        return (
            f"{_HEAD}void {helper_name(row.name)}(unsigned address, const void* d) {{\n"
            "  const unsigned* D = reinterpret_cast<const unsigned*>(d);\n"
            f'  asm volatile("{row.name} [%0], {_list(1, count)};" ::"r"(address), {ins} : "memory");\n}}'
        )
    outs = ", ".join(f'"=r"(D[{i}])' for i in range(count))
    return (
        f"{_HEAD}void {helper_name(row.name)}(void* d, unsigned address) {{\n"
        "  unsigned* D = reinterpret_cast<unsigned*>(d);\n"
        f'  asm volatile("{row.name} {_list(0, count)}, [%{count}];"\n'
        f'               : {outs} : "r"(address) : "memory");\n}}'
    )


def _mma(row: Atom) -> str:
    types = {role: _words(role, row) for role in "dab"}
    (d, nd), (a, na), (b, nb) = types["d"], types["a"], types["b"]
    outs = ", ".join(f'"+{_CONSTRAINT[d]}"(D[{i}])' for i in range(nd))
    ins = ", ".join(
        [f'"{_CONSTRAINT[a]}"(A[{i}])' for i in range(na)] + [f'"{_CONSTRAINT[b]}"(B[{i}])' for i in range(nb)]
    )
    return (
        f"{_HEAD}void {helper_name(row.name)}(void* d, const void* a, const void* b) {{\n"
        f"  {d}* D = reinterpret_cast<{d}*>(d);\n  const {a}* A = reinterpret_cast<const {a}*>(a);\n"
        f"  const {b}* B = reinterpret_cast<const {b}*>(b);\n"
        f'  asm volatile("{row.name} {_list(0, nd)}, {_list(nd, na)}, {_list(nd + na, nb)}, {_list(0, nd)};"\n'
        f"               : {outs}\n               : {ins});\n}}"
    )


def _matrix(row: Atom) -> str:
    count = row["d"].registers
    name = helper_name(row.name)
    if row.family == "ldmatrix":
        outs = ", ".join(f'"=r"(D[{i}])' for i in range(count))
        text = f"{row.name} {_list(0, count)}, [%{count}];"
        return (
            f"{_HEAD}void {name}(void* d, const void* row) {{\n  unsigned* D = reinterpret_cast<unsigned*>(d);\n"
            f'  asm volatile("{text}"\n               : {outs} : "r"(tw_shared(row)) : "memory");\n}}'
        )
    ins = ", ".join(f'"r"(D[{i}])' for i in range(count))
    text = f"{row.name} [%0], {_list(1, count)};"
    return (
        f"{_HEAD}void {name}(void* row, const void* d) {{\n"
        f"  const unsigned* D = reinterpret_cast<const unsigned*>(d);\n"
        f'  asm volatile("{text}" ::"r"(tw_shared(row)), {ins} : "memory");\n}}'
    )


def _box(row: Atom) -> str:
    rank = int(row.name.split(".tensor.")[1][0])
    at = "".join(f", int c{i}" for i in range(rank))
    given = "".join(f', "r"(c{i})' for i in range(rank))
    name = helper_name(row.name)
    if ".shared::cluster.global" in row.name:
        several = ".multicast" in row.name
        if "cta_group" in row.name:  # the barrier is that of the first block of the pair
            places = ", ".join(f"%{3 + i}" for i in range(rank))
            text = (
                "{\\n.reg .b32 there;\\n.reg .b32 rank;\\nmov.u32 rank, %%cluster_ctarank;\\n"
                "and.b32 rank, rank, 0xfffffffe;\\nmapa.shared::cluster.u32 there, %2, rank;\\n"
                f"{row.name} [%0], [%1, {{{places}}}], [there];\\n}}"
            )
            operands = f""""r"(tw_shared(to)), "l"(map), {_BAR}{given}"""
            return _asm(name, f"void* to, const CUtensorMap* map, void* bar{at}", text, operands)
        places = ", ".join(f"%{3 + several + i}" for i in range(rank))
        parameters = f"void* to, const CUtensorMap* map, void* bar{', unsigned short mask' * several}{at}"
        operands = f"""{'"r"(tw_shared(to)), "l"(map)'}, {_BAR}{', "h"(mask)' * several}{given}"""
        return _asm(name, parameters, f"{row.name} [%0], [%1, {{{places}}}], [%2]{', %3' * several};", operands)
    places = ", ".join(f"%{2 + i}" for i in range(rank))
    operands = f"""{'"l"(map), "r"(tw_shared(from))'}{given}"""
    return _asm(
        name, f"const CUtensorMap* map, const void* from{at}", f"{row.name} [%0, {{{places}}}], [%1];", operands
    )


def _wgmma(row: Atom) -> str:
    """A and B by descriptors; the last argument says whether the old D counts."""
    d, nd = _words("d", row)
    outs = ", ".join(f'"+{_CONSTRAINT[d]}"(D[{i}])' for i in range(nd))
    half = BITS[row["b"].dtype] == 16
    signs = ", 1, 1" if row["d"].dtype != "s32" else ""
    transposes = f", %{nd + 3}, %{nd + 4}" if half else ""
    major = ', "n"(TA ? 1 : 0), "n"(TB ? 1 : 0)' if half else ""
    template = "template <bool TA, bool TB> " if half else ""
    return (
        f"{template}{_HEAD}void {helper_name(row.name)}(\n"
        "    void* d, unsigned long long a, unsigned long long b, int keep) {\n"
        f"  {d}* D = reinterpret_cast<{d}*>(d);\n"
        f'  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{nd + 2}, 0;\\n"\n'
        f'               "{row.name} {_list(0, nd)}, %{nd}, %{nd + 1}, p{signs}{transposes};\\n}}"\n'
        f"               : {outs}\n"
        f'               : "l"(a), "l"(b), "r"(keep){major});\n}}'
    )
