// transpose_naive.mlir.j2
// src[0..3]: PartialTiles((64, 96), (32, 32))[by, bx, :, :]
// dst[0..3]: PartialTiles((96, 64), (32, 32))[bx, by, :, :]
module {
  gpu.module @kernels {
    gpu.func @transpose_naive(%src: memref<6144xf32>, %dst: memref<6144xf32>) kernel
        attributes {known_block_size = array<i32: 32, 8, 1>} {
      %bx = gpu.block_id x
      %by = gpu.block_id y
      %tx = gpu.thread_id x
      %ty = gpu.thread_id y
      %c32 = arith.constant 32 : index
      %c96 = arith.constant 96 : index
      %c8 = arith.constant 8 : index
      %c16 = arith.constant 16 : index
      %c24 = arith.constant 24 : index
      %c64 = arith.constant 64 : index
      %t0 = arith.muli %by, %c32 : index
      %t1 = arith.addi %t0, %ty : index
      %t2 = arith.muli %t1, %c96 : index
      %t3 = arith.muli %bx, %c32 : index
      %t4 = arith.addi %t3, %tx : index
      %t5 = arith.addi %t2, %t4 : index
      %t6 = arith.addi %ty, %c8 : index
      %t7 = arith.addi %t0, %t6 : index
      %t8 = arith.muli %t7, %c96 : index
      %t9 = arith.addi %t8, %t4 : index
      %t10 = arith.addi %ty, %c16 : index
      %t11 = arith.addi %t0, %t10 : index
      %t12 = arith.muli %t11, %c96 : index
      %t13 = arith.addi %t12, %t4 : index
      %t14 = arith.addi %ty, %c24 : index
      %t15 = arith.addi %t0, %t14 : index
      %t16 = arith.muli %t15, %c96 : index
      %t17 = arith.addi %t16, %t4 : index
      %t18 = arith.muli %t4, %c64 : index
      %t19 = arith.addi %t18, %t1 : index
      %t20 = arith.addi %t18, %t7 : index
      %t21 = arith.addi %t18, %t11 : index
      %t22 = arith.addi %t18, %t15 : index
      %zero = arith.constant 0.0 : f32
      %v0 = memref.load %src[%t5] : memref<6144xf32>
      %v1 = memref.load %src[%t9] : memref<6144xf32>
      %v2 = memref.load %src[%t13] : memref<6144xf32>
      %v3 = memref.load %src[%t17] : memref<6144xf32>
      memref.store %v0, %dst[%t19] : memref<6144xf32>
      memref.store %v1, %dst[%t20] : memref<6144xf32>
      memref.store %v2, %dst[%t21] : memref<6144xf32>
      memref.store %v3, %dst[%t22] : memref<6144xf32>
      gpu.return
    }
  }
}
