"""An emulated GPU: PTX text -> native code through LLVM, run warp by warp on the CPU, every access checked and counted.

Data flows through the folders in this order: `ptx` (text -> verified blocks), `codegen` (blocks -> LLVM IR),
`machine` (LLVM IR -> native code, memory, grid, warps, barriers), `memory` (lanes -> sectors).
"""
