// transpose_shared.mlir.j2
// src[0..3]: PartialTiles((M, N), (32, 32))[by, bx, :, :]
// rows[0..3]: GroupBy((32, 32), OrderBy(xor_swizzle(32, 32)))
// columns[0..3]: GroupBy((32, 32), OrderBy(xor_swizzle(32, 32)))
// dst[0..3]: PartialTiles((N, M), (32, 32))[bx, by, :, :]
module {
  gpu.module @kernels {
    gpu.func @transpose_shared(%src: memref<?xf32>, %dst: memref<?xf32>, %M: index, %N: index)
        workgroup(%tile: memref<1024xf32, #gpu.address_space<workgroup>>) kernel
        attributes {known_block_size = array<i32: 32, 8, 1>} {
      %bx = gpu.block_id x
      %by = gpu.block_id y
      %tx = gpu.thread_id x
      %ty = gpu.thread_id y
      %c32 = arith.constant 32 : index
      %c8 = arith.constant 8 : index
      %c256 = arith.constant 256 : index
      %c16 = arith.constant 16 : index
      %c512 = arith.constant 512 : index
      %c24 = arith.constant 24 : index
      %c768 = arith.constant 768 : index
      %t0 = arith.muli %by, %c32 : index
      %t1 = arith.addi %t0, %ty : index
      %t2 = arith.muli %t1, %N : index
      %t3 = arith.muli %bx, %c32 : index
      %t4 = arith.addi %t3, %tx : index
      %t5 = arith.addi %t2, %t4 : index
      %t6 = arith.cmpi slt, %t1, %M : index
      %t7 = arith.cmpi slt, %t4, %N : index
      %t8 = arith.andi %t6, %t7 : i1
      %t9 = arith.muli %ty, %c32 : index
      %t10 = arith.xori %ty, %tx : index
      %t11 = arith.addi %t9, %t10 : index
      %t12 = arith.addi %ty, %c8 : index
      %t13 = arith.addi %t0, %t12 : index
      %t14 = arith.muli %t13, %N : index
      %t15 = arith.addi %t14, %t4 : index
      %t16 = arith.cmpi slt, %t13, %M : index
      %t17 = arith.andi %t16, %t7 : i1
      %t18 = arith.xori %t12, %tx : index
      %t19 = arith.addi %t9, %t18 : index
      %t20 = arith.addi %t19, %c256 : index
      %t21 = arith.addi %ty, %c16 : index
      %t22 = arith.addi %t0, %t21 : index
      %t23 = arith.muli %t22, %N : index
      %t24 = arith.addi %t23, %t4 : index
      %t25 = arith.cmpi slt, %t22, %M : index
      %t26 = arith.andi %t25, %t7 : i1
      %t27 = arith.xori %t21, %tx : index
      %t28 = arith.addi %t9, %t27 : index
      %t29 = arith.addi %t28, %c512 : index
      %t30 = arith.addi %ty, %c24 : index
      %t31 = arith.addi %t0, %t30 : index
      %t32 = arith.muli %t31, %N : index
      %t33 = arith.addi %t32, %t4 : index
      %t34 = arith.cmpi slt, %t31, %M : index
      %t35 = arith.andi %t34, %t7 : i1
      %t36 = arith.xori %t30, %tx : index
      %t37 = arith.addi %t9, %t36 : index
      %t38 = arith.addi %t37, %c768 : index
      %t39 = arith.muli %tx, %c32 : index
      %t40 = arith.addi %t39, %t10 : index
      %t41 = arith.addi %t3, %ty : index
      %t42 = arith.muli %t41, %M : index
      %t43 = arith.addi %t0, %tx : index
      %t44 = arith.addi %t42, %t43 : index
      %t45 = arith.cmpi slt, %t41, %N : index
      %t46 = arith.cmpi slt, %t43, %M : index
      %t47 = arith.andi %t45, %t46 : i1
      %t48 = arith.addi %t39, %t18 : index
      %t49 = arith.addi %t3, %t12 : index
      %t50 = arith.muli %t49, %M : index
      %t51 = arith.addi %t50, %t43 : index
      %t52 = arith.cmpi slt, %t49, %N : index
      %t53 = arith.andi %t52, %t46 : i1
      %t54 = arith.addi %t39, %t27 : index
      %t55 = arith.addi %t3, %t21 : index
      %t56 = arith.muli %t55, %M : index
      %t57 = arith.addi %t56, %t43 : index
      %t58 = arith.cmpi slt, %t55, %N : index
      %t59 = arith.andi %t58, %t46 : i1
      %t60 = arith.addi %t39, %t36 : index
      %t61 = arith.addi %t3, %t30 : index
      %t62 = arith.muli %t61, %M : index
      %t63 = arith.addi %t62, %t43 : index
      %t64 = arith.cmpi slt, %t61, %N : index
      %t65 = arith.andi %t64, %t46 : i1
      %zero = arith.constant 0.0 : f32
      %v0 = scf.if %t8 -> (f32) { %in3 = memref.load %src[%t5] : memref<?xf32> scf.yield %in3 : f32 } else { scf.yield %zero : f32 }
      memref.store %v0, %tile[%t11] : memref<1024xf32, #gpu.address_space<workgroup>>
      %v1 = scf.if %t17 -> (f32) { %in5 = memref.load %src[%t15] : memref<?xf32> scf.yield %in5 : f32 } else { scf.yield %zero : f32 }
      memref.store %v1, %tile[%t20] : memref<1024xf32, #gpu.address_space<workgroup>>
      %v2 = scf.if %t26 -> (f32) { %in7 = memref.load %src[%t24] : memref<?xf32> scf.yield %in7 : f32 } else { scf.yield %zero : f32 }
      memref.store %v2, %tile[%t29] : memref<1024xf32, #gpu.address_space<workgroup>>
      %v3 = scf.if %t35 -> (f32) { %in9 = memref.load %src[%t33] : memref<?xf32> scf.yield %in9 : f32 } else { scf.yield %zero : f32 }
      memref.store %v3, %tile[%t38] : memref<1024xf32, #gpu.address_space<workgroup>>
      gpu.barrier
      %w0 = memref.load %tile[%t40] : memref<1024xf32, #gpu.address_space<workgroup>>
      scf.if %t47 { memref.store %w0, %dst[%t44] : memref<?xf32> }
      %w1 = memref.load %tile[%t48] : memref<1024xf32, #gpu.address_space<workgroup>>
      scf.if %t53 { memref.store %w1, %dst[%t51] : memref<?xf32> }
      %w2 = memref.load %tile[%t54] : memref<1024xf32, #gpu.address_space<workgroup>>
      scf.if %t59 { memref.store %w2, %dst[%t57] : memref<?xf32> }
      %w3 = memref.load %tile[%t60] : memref<1024xf32, #gpu.address_space<workgroup>>
      scf.if %t65 { memref.store %w3, %dst[%t63] : memref<?xf32> }
      gpu.return
    }
  }
}
