"""Translates blocks of PTX to LLVM IR text: one function that runs one warp, with 32 lanes per vector.

`vector_ir_builder` and `warp_emitter` emit IR, `forms` reads an instruction's modifiers, `kernel` lays out the
function, and each other file emits one family of opcodes. A new opcode needs a row in `ptx.opcodes` and an emitter
here.
"""
