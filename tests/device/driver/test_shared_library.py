from __future__ import annotations

import ctypes
import subprocess
import sys

from harness.device.driver.shared_library import SharedLibrary


def in_fresh_process(program: str) -> str:
    """The output of a program. What it loads stays loaded, so each has a process of its own."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_libraries_find_it_by_its_soname_and_call_python() -> None:
    library = SharedLibrary("libsandboxstubs.so.7", [f"function_{number}" for number in range(300)], 41)
    found = ctypes.CDLL("libsandboxstubs.so.7")
    assert {found.function_0(), found.function_299()} == {41}
    library.connect("function_299", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda number: number + 1))
    assert (found.function_299(6), found.function_298(6)) == (7, 41)
    library.disconnect()
    assert found.function_299(6) == 41


def test_two_libraries_are_two() -> None:
    first, second = SharedLibrary("libsandbox1.so", ["one"], 1), SharedLibrary("libsandbox2.so", ["two"], 2)
    assert (first.address("one"), second.address("one")) == (first.address("one"), None)
    assert ctypes.CDLL("libsandbox2.so").two() == 2


def test_cuda_bindings_are_answered() -> None:
    program = """
from harness.device.driver.process import install
install()
from cuda.bindings import driver
assert driver.cuDeviceGetCount()[0] == driver.CUresult.CUDA_ERROR_NOT_INITIALIZED
print(*map(int, (driver.cuInit(0)[0], driver.cuDeviceGetCount()[1], driver.cuDriverGetVersion()[1])))
found, address, _ = driver.cuGetProcAddress(b"cuMemAlloc", 12000, 0)
print(int(found), address != 0, driver.cuDeviceGetName(64, 0)[1].rstrip(b"\\0 ").decode())
print(driver.cuGetErrorName(driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)[1].decode())
print(*map(int, (driver.cuDevicePrimaryCtxRetain(0)[0], driver.cuArrayCreate(driver.CUDA_ARRAY_DESCRIPTOR())[0])))
"""
    assert in_fresh_process(program).splitlines() == [
        "0 1 13000",
        "0 True NVIDIA H100 SXM (emulated)",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "0 801",
    ]
