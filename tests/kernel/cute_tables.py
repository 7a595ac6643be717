"""Thread-value layouts as CuTe DSL prints them; needs nvidia-cutlass-dsl, run by hand to rewrite ``data/cute.json``.

``CUTE_DSL_ARCH=sm_90a python tests/kernel/cute_tables.py``, then the same with sm_100a.
"""

import json
import os
from pathlib import Path

DATA = Path(__file__).parent / "data" / "cute.json"


def warp_and_warpgroup(cutlass, cute, put):
    from cutlass.cute.nvgpu import OperandMajorMode, warp, warpgroup

    for dtype, word in ((cutlass.Float16, "f16"), (cutlass.BFloat16, "bf16")):
        for k in (8, 16):
            tiled = cute.make_tiled_mma(warp.MmaF16BF16Op(dtype, cutlass.Float32, (16, 8, k)))
            name = f"mma.sync.aligned.m16n8k{k}.row.col.f32.{word}.{word}.f32"
            put(name, a=tiled.tv_layout_A, b=tiled.tv_layout_B, c=tiled.tv_layout_C)
    for j in (1, 2, 4):
        for trans in (False, True):
            name = f"matrix.sync.aligned.m8n8.x{j}{'.trans' if trans else ''}.shared.b16"
            load = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(trans, j), cutlass.Float16)
            put("ld" + name, d=load.layout_dst_tv, row=load.layout_src_tv)
            store = cute.make_copy_atom(warp.StMatrix8x8x16bOp(trans, j), cutlass.Float16)
            put("st" + name, d=store.layout_src_tv)
    major, source = OperandMajorMode.K, warpgroup.OperandSource.RMEM
    for n in range(8, 257, 8):
        op = warpgroup.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (64, n, 16), source, major, major)
        tiled = cute.make_tiled_mma(op)
        put(f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16", a=tiled.tv_layout_A, d=tiled.tv_layout_C)
        e4m3 = cutlass.Float8E4M3FN
        tiled = cute.make_tiled_mma(warpgroup.MmaF8Op(e4m3, e4m3, cutlass.Float32, (64, n, 32), source, major, major))
        put(f"wgmma.mma_async.sync.aligned.m64n{n}k32.f32.e4m3.e4m3", a=tiled.tv_layout_A, d=tiled.tv_layout_C)


def tensor_memory(cutlass, cute, put):
    from cutlass.cute.nvgpu import tcgen05

    most = {"32x32b": 128, "16x256b": 32, "16x128b": 64, "16x64b": 128, "16x32bx2": 128}
    for shape, largest in most.items():
        n = 1
        while n <= largest:
            op = getattr(tcgen05, f"Ld{shape}Op")(getattr(tcgen05.Repetition, f"x{n}"))
            load = cute.make_copy_atom(op, cutlass.Float32)
            put(f"tcgen05.ld.sync.aligned.{shape}.x{n}.b32", d=load.layout_dst_tv)
            n *= 2


def record():
    import cutlass
    from cutlass import cute

    tables = json.loads(DATA.read_text()) if DATA.exists() else {}

    def put(name, **layouts):
        tables[name] = {role: str(layout) for role, layout in layouts.items()}

    tables_of = warp_and_warpgroup if os.environ["CUTE_DSL_ARCH"] == "sm_90a" else tensor_memory

    @cute.jit
    def print_layouts():
        tables_of(cutlass, cute, put)

    print_layouts()
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(tables[name])}" for name in sorted(tables))
    DATA.write_text("{\n" + rows + "\n}\n")


if __name__ == "__main__":
    record()
