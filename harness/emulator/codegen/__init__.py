"""Blocks of PTX -> LLVM IR text: one function that runs one warp, 32 lanes to a vector.

`lanes` holds the vocabulary, `forms` reads an instruction's modifiers, `kernel` lays out the function, and each other
file emits one family of opcodes. Adding an opcode is adding its row to `ptx.opcodes` and, here, its emitter.
"""
