"""`emulate`: runs a program that uses CUDA on the emulated GPU."""
