from __future__ import annotations

import ctypes
import struct
import subprocess
import sys

from llvmlite import binding

from harness.device.driver.shared_library import AARCH64, SharedLibrary, elf_image


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
print(*map(int, (driver.cuDevicePrimaryCtxRetain(0)[0], driver.cuCtxResetPersistingL2Cache()[0])))
"""
    assert in_fresh_process(program).splitlines() == [
        "0 1 13000",
        "0 True NVIDIA H100 SXM (emulated)",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "0 801",
    ]


def text_section(relocatable: bytes) -> bytes:
    """The code in an object file."""
    at, size, count, names = struct.unpack_from("<Q", relocatable, 40)[0], *struct.unpack_from("<3H", relocatable, 58)
    headers = [struct.unpack_from("<IIQQQQ", relocatable, at + size * number) for number in range(count)]
    strings = headers[names][4]
    named = {relocatable[strings + h[0] :].split(b"\0")[0]: h for h in headers}
    return relocatable[named[b".text"][4] :][: named[b".text"][5]]


def compiled_for_aarch64(value: int) -> bytes:
    """What LLVM makes of a function that returns a number."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine()
    return text_section(target.emit_object(binding.parse_assembly(f"define i32 @f() {{ ret i32 {value} }}")))


def jump_target(stub: int, code: bytes) -> int:
    """The slot that `adrp x16; ldr x16, [x16, n]; br x16; brk` at an address reads (Arm Architecture Manual, C6.2)."""
    adrp, ldr, br, brk = struct.unpack("<4I", code)
    assert (adrp >> 31, adrp >> 24 & 0x1F, adrp & 31) == (1, 0b10000, 16)
    pages = (adrp >> 5 & 0x7FFFF) << 2 | adrp >> 29 & 3
    assert (ldr >> 22, ldr >> 5 & 31, ldr & 31) == (0b1111100101, 16, 16)
    assert (br, brk) == (0xD61F0200, 0xD4200000)
    return (stub & ~0xFFF) + (pages << 12) + 8 * (ldr >> 10 & 0xFFF)


def test_stubs_for_aarch64() -> None:
    names = [f"function_{number}" for number in range(700)]
    image = elf_image("libsandbox.so", names, 41, AARCH64)
    assert struct.unpack_from("<HH", image, 16) == (3, 183)
    first, second = (struct.unpack_from("<IIQQQQQQ", image, 64 + 56 * number) for number in range(2))
    assert first[7] == second[7] == 65536 and second[2] % 65536 == 0
    stubs_at, table_at = first[5] - 16 * 701, second[2] + second[5] - 8 * 700
    for number in (0, 299, 699):
        stub = stubs_at + 16 * number
        assert jump_target(stub, image[stub : stub + 16]) == table_at + 8 * number
    assert image[first[5] - 16 :][:8] == compiled_for_aarch64(41)
