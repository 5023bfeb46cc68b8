"""LLVM IR -> object files -> native code in this process, by way of the disk cache and of other processes."""
