"""CuTe DSL: kernels that `cute.compile` has compiled, launched by the host code that it compiled with them."""
