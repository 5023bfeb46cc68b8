"""Runs CuPy on the emulated driver.

CuPy's wheels contain NVIDIA's CUDA runtime as machine code, which only starts on NVIDIA's driver. CuPy calls it through
one module, `cupy_backends.cuda.api.runtime`. `module_replacement` loads this module and replaces its functions by those
of `runtime_functions`, which call the emulated driver. `cython_function` makes them callable from compiled modules.
`libraries/` contains modules that compute with NumPy what libraries of machine code do on a GPU.
"""
