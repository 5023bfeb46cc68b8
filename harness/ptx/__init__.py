"""PTX: everything that looks into a PTX text asks this package.

The parser makes functions of instructions (`parser`), one entry with its calls inlined (`inline`), and basic blocks in
the order in which warps visit them (`blocks`); `opcodes` is the table of opcodes. Where a part of the text is enough,
`statements` finds functions and statements by their positions, and `parameter_declarations`, `targets`, `line_table`,
`timestamps`, `arithmetic` and `canonical_text` build on it.
"""
