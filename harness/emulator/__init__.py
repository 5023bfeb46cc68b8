"""An emulated GPU: PTX text -> native code through LLVM, run warp by warp on the CPU, every access checked and counted.

Data flows through the rooms in this order: `ptx` (text -> blocks), `codegen` (blocks -> LLVM IR), `native` (LLVM IR ->
native code), `launch` (native code on a grid). `runtime`, `memory` and `sanitizer` are what native code calls, `abi` is
what all of them agree on. docs/emulator.md tells it at length.
"""
