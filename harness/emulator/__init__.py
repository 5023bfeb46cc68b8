"""An emulated GPU: compiles PTX to native code and runs it warp by warp on the CPU.

Every access is checked and counted. Code is compiled with LLVM. Data flows through the packages in this order: `ptx`
(text -> blocks), `codegen` (blocks -> LLVM IR), `native` (LLVM IR -> native code), `launch` (native code on a grid).
Native code calls `runtime`, `memory` and `sanitizer`; `abi` defines the layouts that all of them share. See
docs/emulator.md.
"""
