"""MLIR text on the CPU: values in three orders of threads, and what is wrong by name and line."""

from pathlib import Path

import numpy as np
import pytest

from tileweave.backends import mlir
from tileweave.errors import BackendError
from tileweave.kernel.atoms import atom

PRODUCT = (Path(__file__).parent / "product.mlir").read_text("utf-8")
ORDERS = ("forward", "reversed", 7)


def module(body, *, attributes="", parameters="%x: memref<64xf32>", shared=""):
    """A module with one kernel ``f`` and the constants that bodies here use."""
    constants = "".join(f"      %c{n} = arith.constant {n} : index\n" for n in (0, 1, 2, 31, 32, 63, 64))
    return (
        f"module {{\n  gpu.module @kernels {{\n    gpu.func @f({parameters}) {shared} kernel {attributes} {{\n"
        f"      %t = gpu.thread_id x\n{constants}{body}\n      gpu.return\n    }}\n  }}\n}}\n"
    )


WORKGROUP = "workgroup(%s: memref<64xf32, #gpu.address_space<workgroup>>)"
TURN = """
      %v = memref.load %x[%t] : memref<64xf32>
      memref.store %v, %s[%t] : memref<64xf32, #gpu.address_space<workgroup>>
      gpu.barrier
      %u = arith.subi %c63, %t : index
      %w = memref.load %s[%u] : memref<64xf32, #gpu.address_space<workgroup>>
      memref.store %w, %x[%t] : memref<64xf32>"""


def operands():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((16, 16), (8, 16)))
    return {"a": a, "b": b, "c": np.full((16, 8), np.nan, np.float32)}


@pytest.mark.parametrize("check", [False, True])
def test_ldmatrix_and_mma_give_the_exact_product_in_every_order(check):
    arrays = operands()
    mlir.run(PRODUCT, 1, 32, arrays, order=ORDERS, check=check)
    assert np.array_equal(arrays["c"], arrays["a"].astype(np.float32) @ arrays["b"].T.astype(np.float32))


def test_shared_memory_and_a_barrier_turn_an_array_around():
    x = np.arange(64, dtype=np.float32)
    mlir.run(module(TURN, shared=WORKGROUP), 1, 64, {"x": x}, order=ORDERS, check=True)
    assert np.array_equal(x, np.arange(64)[::-1])


def refused(text, arrays, block=32, **options):
    with pytest.raises(BackendError) as caught:
        mlir.run(text, 1, block, arrays, **options)
    return str(caught.value)


def test_a_missing_barrier_is_named_with_the_lines_of_both_accesses():
    text = module(TURN.replace("gpu.barrier", ""), shared=WORKGROUP)
    message = refused(text, {"x": np.zeros(64, np.float32)}, 64, check=True)
    assert "race" in message and "kernel.mlir:17" in message and "kernel.mlir:14" in message


def test_a_missing_barrier_shows_in_the_values_too():
    text = module(TURN.replace("gpu.barrier", ""), shared=WORKGROUP)
    x = np.arange(64, dtype=np.float32)
    mlir.run(text, 1, 64, {"x": x})
    assert np.isnan(x).any()  # shared memory is filled with NaN


def test_a_result_that_depends_on_the_order_is_refused():
    body = (
        "      %i = arith.index_cast %t : index to i32\n      %v = arith.sitofp %i : i32 to f32\n"
        "      memref.store %v, %x[%c0] : memref<64xf32>"
    )
    message = refused(module(body), {"x": np.zeros(64, np.float32)}, order=ORDERS)
    assert "depends on the order of threads" in message


def test_a_misaligned_row_of_ldmatrix_is_named():
    message = refused(PRODUCT.replace("24xf16", "20xf16"), operands())
    assert "misaligned-row" in message and "kernel.mlir:30: ldmatrix" in message


def test_an_access_past_the_end_is_named_with_its_line():
    text = PRODUCT.replace("%c256 = arith.constant 256", "%c256 = arith.constant 288")
    message = refused(text, operands())
    assert "kernel.mlir:17: out-of-bounds" in message and "past its end" in message


def test_an_alignment_that_the_text_promises_is_checked():
    body = """
      %o = arith.constant 1 : index
      %v = vector.load %x[%o] {alignment = 16 : i64} : memref<64xf32>, vector<4xf32>
      vector.store %v, %x[%c0] : memref<64xf32>, vector<4xf32>"""
    message = refused(module(body), {"x": np.zeros(64, np.float32)}, 1)
    assert "misaligned" in message and "no multiple of 16" in message and "kernel.mlir:14" in message


def test_a_barrier_that_a_part_of_the_block_reaches_is_an_error():
    body = """
      %low = arith.cmpi ult, %t, %c32 : index
      scf.if %low { gpu.barrier }"""
    assert "barrier" in refused(module(body), {"x": np.zeros(64, np.float32)}, 64)


def test_shuffles_and_coordinates():
    body = """
      %w = arith.constant 32 : i32
      %o = arith.constant 5 : i32
      %v = memref.load %x[%t] : memref<64xf32>
      %r, %p = gpu.shuffle xor %v, %o, %w : f32
      memref.store %r, %x[%t] : memref<64xf32>"""
    x = np.arange(64, dtype=np.float32)
    mlir.run(module(body), 1, 64, {"x": x}, order=ORDERS)
    assert np.array_equal(x, np.arange(64) ^ 5)


def test_extents_that_are_known_at_run_time_only():
    body = """
      %b = gpu.block_id x
      %rows = memref.dim %m, %c0 : memref<?x?xf32>
      %columns = memref.dim %m, %c1 : memref<?x?xf32>
      %in = arith.cmpi slt, %t, %columns : index
      scf.if %in {
        %v = memref.load %m[%b, %t] : memref<?x?xf32>
        %n = arith.index_cast %rows : index to i64
        %f = arith.sitofp %n : i64 to f32
        %sum = arith.addf %v, %f : f32
        memref.store %sum, %m[%b, %t] : memref<?x?xf32>
      }"""
    m = np.arange(15, dtype=np.float32).reshape(3, 5)
    mlir.run(module(body, parameters="%m: memref<?x?xf32>"), 3, 32, {"m": m}, order=ORDERS)
    assert np.array_equal(m, np.arange(15).reshape(3, 5) + 3)


COPY = """
      %i = arith.muli %t, %c2 : index
      %n = arith.minsi %c2, %k : index
      %token = nvgpu.device_async_copy %x[%i], %s[%i], 2, %n : memref<64xf32> to memref<64xf32, #gpu.address_space<workgroup>>
      %group = nvgpu.device_async_create_group %token
      nvgpu.device_async_wait %group {numGroups = 0 : i32}
      gpu.barrier
      %j = arith.subi %c63, %t : index
      %v = memref.load %s[%t] : memref<64xf32, #gpu.address_space<workgroup>>
      %w = memref.load %s[%j] : memref<64xf32, #gpu.address_space<workgroup>>
      memref.store %w, %x[%t] : memref<64xf32>
      memref.store %v, %x[%j] : memref<64xf32>"""  # noqa: E501


def test_an_asynchronous_copy_fills_with_zeros_what_it_does_not_read():
    x = np.arange(64, dtype=np.float32)
    text = module(COPY, parameters="%x: memref<64xf32>, %k: index", shared=WORKGROUP)
    mlir.run(text, 1, 32, {"x": x, "k": 1}, order=ORDERS)
    assert np.array_equal(x, np.where(np.arange(64) % 2 == 0, np.arange(64), 0)[::-1])


def test_a_forgotten_wait_of_an_asynchronous_copy_gives_a_wrong_value():
    x = np.arange(64, dtype=np.float32)
    text = module(COPY, parameters="%x: memref<64xf32>, %k: index", shared=WORKGROUP)
    mlir.run(text.replace("nvgpu.device_async_wait %group {numGroups = 0 : i32}", ""), 1, 32, {"x": x, "k": 2})
    assert np.isnan(x).any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arrays": {}}, "no value for x"),
        ({"arrays": {"x": np.zeros(64, np.float32), "y": 1}}, "no parameter y"),
        ({"arrays": {"x": np.zeros(64, np.float64)}}, "x does not fit its type"),
        ({"arrays": {"x": np.zeros(63, np.float32)}}, "memref<64xf32>"),
        ({"arrays": {"x": 3.0}}, "x is a float"),
        ({"kernel": "g"}, "no kernel 'g'"),
        ({"text": module("", parameters="%x: memref<64xf32, strided<[2]>>")}, "x has a layout"),
        ({"block": 0}, "block 0"),
        ({"block": 2048}, "the launch is refused"),
        ({"order": ()}, "no order"),
        ({"text": "module {}"}, "0 kernels"),
        ({"text": module("").replace("gpu.thread_id x", "gpu.thread_id q")}, "mlir-opt does not accept the text"),
    ],
)
def test_bad_input_is_refused_in_the_error_format(change, words):
    given = {"text": module(""), "grid": 1, "block": 32, "arrays": {"x": np.zeros(64, np.float32)}} | change
    with pytest.raises(BackendError) as caught:
        mlir.run(**given)
    assert words in str(caught.value)
    assert str(caught.value).startswith("run(text")


def test_an_operation_without_emulation_is_named_before_anything_runs():
    body = "      %k = nvvm.read.ptx.sreg.clock : i32"
    message = refused(module(body), {"x": np.zeros(64, np.float32)})
    assert "no emulation of read.ptx.sreg.clock" in message


def test_two_kernels_of_one_text_are_launched_by_name_in_one_program():
    text = module("      memref.store %v, %x[%t] : memref<64xf32>", parameters="%x: memref<64xf32>, %v: f32")
    second = text[text.index("    gpu.func") : text.index("gpu.return")].replace("@f", "@g").replace("[%t]", "[%c0]")
    text = text.replace("    gpu.func", second + "gpu.return\n    }\n    gpu.func", 1)
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    launches = [mlir.Launch(1, 64, {"x": x, "v": 2.5}, "f"), mlir.Launch(1, 1, {"x": y, "v": -1.0}, "g")]
    mlir.run_all(text, launches, order=ORDERS)
    assert (x == 2.5).all() and y[0] == -1 and not y[1:].any()


PRODUCTS = [  # shape, types of D and of A and B, rows and columns of the fragments of A, B and C, attribute
    ((16, 8, 16), "f32", "f16", (4, 2), (2, 2), (2, 2), ""),
    ((16, 8, 8), "f32", "f16", (2, 2), (1, 2), (2, 2), ""),
    ((16, 8, 16), "f16", "f16", (4, 2), (2, 2), (2, 2), ""),
    ((16, 8, 8), "f32", "f32", (4, 1), (2, 1), (2, 2), ", tf32Enabled"),
    ((16, 8, 4), "f32", "f32", (2, 1), (1, 1), (2, 2), ", tf32Enabled"),
    ((16, 8, 32), "i32", "i8", (4, 4), (2, 4), (2, 2), ""),
    ((16, 8, 16), "i32", "i8", (2, 4), (1, 4), (2, 2), ""),
    ((8, 8, 4), "f64", "f64", (1, 1), (1, 1), (1, 2), ""),
]
PTX = {"i32": "s32", "i8": "s8"}


def fragments(tile, fragment):
    """The elements that each lane holds, by the layout of the instruction's operand."""
    return np.ascontiguousarray(tile.reshape(-1)[np.array(fragment.places())])


def product_text(name, case):
    """A kernel that loads fragments as they are, multiplies, and stores the fragment of D."""
    shape, d, a, of_a, of_b, of_c, attribute = case
    lines = ["      %t = gpu.thread_id x"]
    kinds = {"a": (of_a, a), "b": (of_b, a), "c": (of_c, d)}
    for role, ((rows, columns), kind) in kinds.items():
        zero = "dense<0>" if kind.startswith("i") else "dense<0.0>"
        lines.append(f"      %{role}0 = arith.constant {zero} : vector<{rows}x{columns}x{kind}>")
        for k in range(rows):
            lines += [
                f"      %{role}at{k} = arith.constant {k * columns} : index",
                f"      %{role}row{k} = vector.load %{role}[%t, %{role}at{k}] : memref<32x{rows * columns}x{kind}>, "
                f"vector<{columns}x{kind}>",
                f"      %{role}{k + 1} = vector.insert %{role}row{k}, %{role}{k} [{k}] : vector<{columns}x{kind}> into "
                f"vector<{rows}x{columns}x{kind}>",
            ]
    types = [f"vector<{rows}x{columns}x{kind}>" for (rows, columns), kind in kinds.values()]
    operands = ", ".join(f"%{role}{kinds[role][0][0]}" for role in "abc")
    lines.append(
        f"      %d = nvgpu.mma.sync ({operands}) {{mmaShape = {list(shape)}{attribute}}} : ({', '.join(types)}) -> "
        f"{types[2]}"
    )
    for k in range(of_c[0]):
        lines.append(f"      %out{k} = vector.extract %d[{k}] : vector<{of_c[1]}x{d}> from {types[2]}")
        lines.append(
            f"      vector.store %out{k}, %c[%t, %cat{k}] : memref<32x{of_c[0] * of_c[1]}x{d}>, vector<{of_c[1]}x{d}>"
        )
    arrays = ", ".join(f"%{role}: memref<32x{r * c}x{kind}>" for role, ((r, c), kind) in kinds.items())
    head = f"module {{\n  gpu.module @k {{\n    gpu.func @f({arrays}) kernel {{"
    return "\n".join([head, *lines, "      gpu.return\n    }\n  }\n}\n"])


def test_every_type_of_mma_sync_that_nvgpu_lowers_is_exact():
    rng, texts, launches, wanted = np.random.default_rng(3), {}, [], []
    kinds = {"i32": np.int32, "i8": np.int8, "f16": np.float16, "f32": np.float32, "f64": np.float64}
    for k, case in enumerate(PRODUCTS):
        (m, n, depth), d, a, *_, attribute = case
        types = [PTX.get(kind, kind) for kind in (d, "tf32" if attribute else a)]
        row = atom(f"mma.sync.aligned.m{m}n{n}k{depth}.row.col.{types[0]}.{types[1]}.{types[1]}.{types[0]}")
        tiles = [rng.integers(-3, 4, shape) for shape in ((m, depth), (n, depth), (m, n))]
        left, right = (fragments(t.astype(kinds[a]), row[role]) for t, role in zip(tiles, "ab", strict=False))
        found = fragments(tiles[2].astype(kinds[d]), row["c"])
        wanted.append((found, fragments((tiles[0] @ tiles[1].T + tiles[2]).astype(kinds[d]), row["d"]), case))
        texts[f"f{k}"] = product_text(f"f{k}", case)
        launches.append(mlir.Launch(1, 32, {"a": left, "b": right, "c": found}, f"f{k}"))
    mlir.run_all(mlir.merged(texts), launches)
    for found, want, case in wanted:
        assert np.array_equal(found, want), case


def test_an_operation_that_mlir_does_not_lower_is_named():
    text = product_text("f", ((16, 8, 16), "f32", "bf16", (4, 2), (2, 2), (2, 2), ""))
    arrays = {name: np.zeros((32, n), kind) for name, n, kind in (("a", 8, "u2"), ("b", 4, "u2"), ("c", 4, "f4"))}
    assert "mlir-opt lowers no nvgpu.mma.sync" in refused(text, arrays)


MATRIX = """
      %c8 = arith.constant 8 : index
      %v = memref.load %x[%t] : memref<32xi32>
      %row = arith.remui %t, %c8 : index
      %at = arith.muli %row, %c8 : index
      %base = memref.extract_aligned_pointer_as_index %s : memref<64xf16, #gpu.address_space<workgroup>> -> index
      %byte = arith.muli %at, %c2 : index
      %sum = arith.addi %base, %byte : index
      %i = arith.index_cast %sum : index to i64
      %p = llvm.inttoptr %i : i64 to !llvm.ptr<3>
      nvvm.stmatrix %p, %v {layout = #nvvm.mma_layout<row>, shape = #nvvm.ld_st_matrix_shape<m = 8, n = 8>, eltType = #nvvm.ld_st_matrix_elt_type<b16>} : !llvm.ptr<3>, i32
      %mask = arith.constant -1 : i32
      nvvm.bar.warp.sync %mask : i32
      nvvm.memory.barrier #nvvm.mem_scope<gpu>
      %two = arith.muli %t, %c2 : index
      %w = vector.load %s[%two] {alignment = 4 : i64} : memref<64xf16, #gpu.address_space<workgroup>>, vector<2xf16>
      %r = arith.divui %two, %c8 : index
      %c = arith.remui %two, %c8 : index
      vector.store %w, %y[%r, %c] : memref<8x8xf16>, vector<2xf16>"""  # noqa: E501


def test_stmatrix_warp_barriers_and_fences():
    text = module(
        MATRIX, parameters="%x: memref<32xi32>, %y: memref<8x8xf16>",
        shared="workgroup(%s: memref<64xf16, #gpu.address_space<workgroup>> {llvm.align = 16 : i64})",
    )  # fmt: skip
    y = np.zeros((8, 8), np.float16)
    mlir.run(text, 1, 32, {"x": np.arange(64, dtype=np.float16).view(np.int32), "y": y}, order=ORDERS, check=True)
    assert np.array_equal(y.reshape(-1), np.arange(64))
