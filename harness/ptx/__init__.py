"""Reads PTX texts. All other packages use this one to analyse PTX.

The parser produces functions of instructions (`parser`), one entry with its calls inlined (`inline`), and basic blocks
in the order in which warps visit them (`blocks`). `opcodes` is the table of opcodes. For code that needs only a part of
the text, `statements` finds functions and statements by their positions; `parameters`, `targets`, `timestamps` and
`arithmetic` build on it.
"""
