"""An emulated CUDA driver: the functions of `libcuda.so.1`, answered by Python on the emulated GPU.

`shared_library` writes a library of jump stubs and loads it under the driver's name. `functions/` contains the driver's
functions by subject, registered in `function_table`. `process` puts both together and holds what this process's
programs have created. See docs/emulate.md.
"""
