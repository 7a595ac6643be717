module attributes {gpu.container_module} {
  gpu.module @kernels {
    gpu.func @mma(%a: memref<16x16xf16>, %b: memref<8x16xf16>, %c: memref<16x8xf32>) workgroup(%sa: memref<16x24xf16, #gpu.address_space<workgroup>> {llvm.align = 16 : i64}, %sb: memref<8x24xf16, #gpu.address_space<workgroup>> {llvm.align = 16 : i64}) kernel {
      %t = gpu.thread_id x
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c4 = arith.constant 4 : index
      %c8 = arith.constant 8 : index
      %c16 = arith.constant 16 : index
      %c32 = arith.constant 32 : index
      %c256 = arith.constant 256 : index
      %c128 = arith.constant 128 : index
      scf.for %i = %t to %c256 step %c32 {
        %r = arith.divui %i, %c16 : index
        %q = arith.remui %i, %c16 : index
        %v = memref.load %a[%r, %q] : memref<16x16xf16>
        memref.store %v, %sa[%r, %q] : memref<16x24xf16, #gpu.address_space<workgroup>>
      }
      scf.for %i = %t to %c128 step %c32 {
        %r = arith.divui %i, %c16 : index
        %q = arith.remui %i, %c16 : index
        %v = memref.load %b[%r, %q] : memref<8x16xf16>
        memref.store %v, %sb[%r, %q] : memref<8x24xf16, #gpu.address_space<workgroup>>
      }
      gpu.barrier
      %row = arith.remui %t, %c16 : index
      %h = arith.divui %t, %c16 : index
      %col = arith.muli %h, %c8 : index
      %fa = nvgpu.ldmatrix %sa[%row, %col] {numTiles = 4 : i32, transpose = false} : memref<16x24xf16, #gpu.address_space<workgroup>> -> vector<4x2xf16>
      %l8 = arith.remui %t, %c8 : index
      %d8 = arith.divui %t, %c8 : index
      %e8 = arith.remui %d8, %c2 : index
      %colb = arith.muli %e8, %c8 : index
      %fb = nvgpu.ldmatrix %sb[%l8, %colb] {numTiles = 2 : i32, transpose = false} : memref<8x24xf16, #gpu.address_space<workgroup>> -> vector<2x2xf16>
      %acc = arith.constant dense<0.0> : vector<2x2xf32>
      %d = nvgpu.mma.sync (%fa, %fb, %acc) {mmaShape = [16, 8, 16]} : (vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf32>) -> vector<2x2xf32>
      %g = arith.divui %t, %c4 : index
      %q = arith.remui %t, %c4 : index
      %q2 = arith.muli %q, %c2 : index
      %r0 = vector.extract %d[0] : vector<2xf32> from vector<2x2xf32>
      %r1 = vector.extract %d[1] : vector<2xf32> from vector<2x2xf32>
      %g8 = arith.addi %g, %c8 : index
      vector.store %r0, %c[%g, %q2] : memref<16x8xf32>, vector<2xf32>
      vector.store %r1, %c[%g8, %q2] : memref<16x8xf32>, vector<2xf32>
      gpu.return
    }
  }
}
