"""Runtime functions that generated code calls, and the scheduler that runs blocks and their warps."""
