"""The functions that generated code calls, and the one that runs blocks and their warps."""
