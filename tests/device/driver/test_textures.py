"""Texture and surface objects through `cuda.bindings`, compared with what NumPy computes by the programming guide."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.compiles

BEGIN = r'''
import ctypes
import numpy as np
from harness.device.driver.process import install
driver = install(sanitize=SANITIZE)
from cuda.bindings import driver as cu, nvrtc

def do(result):
    assert result[0] == 0, result
    return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]

do(cu.cuInit(0))
do(cu.cuCtxSetCurrent(do(cu.cuDevicePrimaryCtxRetain(0))))
rng = np.random.default_rng(0)

def kernels(source):
    program = do(nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], []))
    do(nvrtc.nvrtcCompileProgram(program, 2, [b"--gpu-architecture=compute_90", b"-lineinfo"]))
    ptx = b" " * do(nvrtc.nvrtcGetPTXSize(program))
    do(nvrtc.nvrtcGetPTX(program, ptx))
    return do(cu.cuModuleLoadData(ptx))

FORMATS = {"u1": 1, "u2": 2, "u4": 3, "i1": 8, "i2": 9, "i4": 10, "f2": 16, "f4": 32}

def array_of(values, channels=1, ndim=None, flags=2):
    """A CUDA array with these values; their last axis has the channels if there are several."""
    shape = values.shape[:-1] if channels > 1 else values.shape
    given = cu.CUDA_ARRAY3D_DESCRIPTOR()
    depth, height, width = (0,) * (3 - len(shape)) + shape
    given.Width, given.Height, given.Depth, given.Flags = width, height, depth, flags
    given.Format = cu.CUarray_format(FORMATS[values.dtype.str[1:]])
    given.NumChannels = channels
    made = do(cu.cuArray3DCreate(given))
    assert do(cu.cuArray3DGetDescriptor(made)).Width == width
    copy(made, values, width * values.itemsize * channels, height, depth, True)
    return made

def copy(array, values, row, height, depth, to_array):
    box = cu.CUDA_MEMCPY3D()
    ends = ("dst", "src") if to_array else ("src", "dst")
    kind = cu.CUmemorytype
    setattr(box, ends[0] + "MemoryType", kind.CU_MEMORYTYPE_ARRAY)
    setattr(box, ends[0] + "Array", array)
    setattr(box, ends[1] + "MemoryType", kind.CU_MEMORYTYPE_HOST)
    setattr(box, ends[1] + "Host", values.ctypes.data)
    setattr(box, ends[1] + "Pitch", row)
    setattr(box, ends[1] + "Height", max(1, height))
    box.WidthInBytes, box.Height, box.Depth = row, max(1, height), max(1, depth)
    do(cu.cuMemcpy3D(box))

def resource(array):
    made = cu.CUDA_RESOURCE_DESC()
    made.resType = cu.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
    made.res.array.hArray = array
    return made

def description(mode=1, linear=0, flags=0, border=(0, 0, 0, 0)):
    made = cu.CUDA_TEXTURE_DESC()
    made.addressMode, made.filterMode = [cu.CUaddress_mode(mode)] * 3, cu.CUfilter_mode(linear)
    made.flags, made.borderColor = flags, list(border)
    return made

def texture(array, *arguments, **named):
    return int(do(cu.cuTexObjectCreate(resource(array), description(*arguments, **named), None)))

def buffer(values):
    made = int(do(cu.cuMemAlloc(values.nbytes)))
    do(cu.cuMemcpyHtoD(made, values.ctypes.data, values.nbytes))
    return made

def run(module, name, out, *arguments):
    """Launch a block with one thread for each element of `out`, whose address is the first argument, and read it."""
    kernel, there = do(cu.cuModuleGetFunction(module, name.encode())), buffer(out)
    values = [there] + [buffer(each) if isinstance(each, np.ndarray) else each for each in arguments]
    types = tuple(ctypes.c_int if isinstance(each, np.int32) else ctypes.c_uint64 for each in values)
    values = tuple(int(each) for each in values)
    status = cu.cuLaunchKernel(kernel, 1, 1, 1, out.size, 1, 1, 0, 0, (values, types), 0)[0]
    if status:
        return int(status)
    do(cu.cuMemcpyDtoH(out.ctypes.data, there, out.nbytes))
    return out

INDEX = "int i = threadIdx.x;"
'''

PROGRAMS = {
    "textures: address modes and filters in one to three dimensions": r'''
module = kernels(r"""extern "C" {
__global__ void one(float* o, cudaTextureObject_t t, float* u) { INDEX o[i] = tex1D<float>(t, u[i]); }
__global__ void two(float* o, cudaTextureObject_t t, float* u, float* v) { INDEX o[i] = tex2D<float>(t, u[i], v[i]); }
__global__ void three(float* o, cudaTextureObject_t t, float* u, float* v, float* w)
{ INDEX o[i] = tex3D<float>(t, u[i], v[i], w[i]); }
}""".replace("INDEX", INDEX))
BORDER = 5.0

def inside(index, extent, mode):
    if mode == 0:
        return index % extent
    if mode == 2:
        there = index % (2 * extent)
        return there if there < extent else 2 * extent - 1 - there
    return min(max(index, 0), extent - 1) if mode == 1 or 0 <= index < extent else None

def expected(texels, places, mode, linear, normalized):
    """For each row of `places`, coordinates from x on."""
    extents = texels.shape[::-1]
    found = []
    for place in places.astype(float):
        at = place * extents if normalized else place
        at = np.floor((at - 0.5) * 256 + 0.5) / 256 if linear else np.floor(at)
        total = 0.0
        for corner in range(2 ** len(at) if linear else 1):
            steps = [corner >> axis & 1 for axis in range(len(at))]
            weight = np.prod([c - np.floor(c) if s else 1 - (c - np.floor(c)) for c, s in zip(at, steps)])
            index = [inside(int(np.floor(c)) + s, n, mode) for c, s, n in zip(at, steps, extents)]
            total += weight * (BORDER if None in index else texels[tuple(index[::-1])])
        found.append(total)
    return np.array(found, np.float32)

for name, shape in (("one", (13,)), ("two", (9, 17)), ("three", (5, 9, 17))):
    texels = rng.random(shape, np.float32)
    array = array_of(texels)
    for mode in range(4):
        for linear in (0, 1):
            for normalized in (False, True) if mode in (1, 3) else (True,):
                places = rng.uniform(-1.2, 2.2, (64, len(shape))).astype(np.float32)
                places *= 1 if normalized else np.array(shape[::-1], np.float32)
                handle = texture(array, mode, linear, 2 * normalized, (BORDER, 0, 0, 0))
                found = run(module, name, np.zeros(64, np.float32), handle, *np.ascontiguousarray(places.T))
                wanted = expected(texels, places, mode, linear, normalized)
                np.testing.assert_array_equal(found, wanted, f"{name} {mode} {linear} {normalized}")
''',
    "textures: formats, channels, integers read as floats": r"""
source = "".join(
    f'extern "C" __global__ void {name}({kind}4* o, cudaTextureObject_t t) {{ {INDEX}'
    f' o[i] = tex2D<{kind}4>(t, i % 7 + 0.5f, i / 7 + 0.5f); }}\n'
    for name, kind in (("ints", "int"), ("words", "uint"), ("floats", "float"))
)
module = kernels(source)
for dtype in FORMATS:
    for channels in (1, 2, 4):
        texels = rng.integers(0, 256, (5, 7, channels * np.dtype(dtype).itemsize), np.uint8).view(dtype)
        if dtype[0] == "f":
            texels = rng.standard_normal(texels.shape).astype(dtype)
        array = array_of(texels if channels > 1 else np.ascontiguousarray(texels[..., 0]), channels)
        name = {"u": "words", "i": "ints", "f": "floats"}[dtype[0]]
        results = {"words": np.uint32, "ints": np.int32, "floats": np.float32}
        found = run(module, name, np.zeros((35,), (results[name], 4)).view(f"V16").reshape(35), texture(array, flags=1))
        found = found.view(results[name]).reshape(5, 7, 4)
        assert (found[..., :channels] == texels).all() and not found[..., channels:].any(), (dtype, channels)
        if dtype in ("u1", "u2", "i1", "i2"):
            largest = np.float64(np.iinfo(dtype).max)
            found = run(module, "floats", np.zeros(35, "V16"), texture(array)).view(np.float32).reshape(5, 7, 4)
            wanted = np.maximum(texels / largest, -1).astype(np.float32)
            np.testing.assert_array_equal(found[..., :channels], wanted)
        elif dtype[0] != "f":
            assert cu.cuTexObjectCreate(resource(array), description(linear=1), None)[0] == 1
""",
    "textures of linear memory, and of rows with a pitch": r'''
module = kernels(r"""extern "C" {
__global__ void fetch(float* o, cudaTextureObject_t t) { INDEX o[i] = tex1Dfetch<float>(t, i - 2); }
__global__ void rows(float* o, cudaTextureObject_t t) { INDEX o[i] = tex2D<float>(t, i % 10, i / 10); }
}""".replace("INDEX", INDEX))
values = rng.random(96, np.float32)
memory = buffer(values)
made = cu.CUDA_RESOURCE_DESC()
made.resType = cu.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
made.res.linear.devPtr, made.res.linear.sizeInBytes = memory, 4 * 60
made.res.linear.format, made.res.linear.numChannels = cu.CUarray_format.CU_AD_FORMAT_FLOAT, 1
handle = int(do(cu.cuTexObjectCreate(made, description(), None)))
found = run(module, "fetch", np.ones(64, np.float32), handle)
assert (found[2:62] == values[:60]).all() and not found[:2].any() and not found[62:].any()
made.res.linear.devPtr = memory + 4
assert cu.cuTexObjectCreate(made, description(), None)[0] == 1  # not aligned
made.res.linear.devPtr, made.res.linear.sizeInBytes = memory, 4 * 97
assert cu.cuTexObjectCreate(made, description(), None)[0] == 1  # beyond the allocation
pitched = cu.CUDA_RESOURCE_DESC()
pitched.resType = cu.CUresourcetype.CU_RESOURCE_TYPE_PITCH2D
pitched.res.pitch2D.devPtr, pitched.res.pitch2D.pitchInBytes = memory, 64
pitched.res.pitch2D.width, pitched.res.pitch2D.height = 10, 6
pitched.res.pitch2D.format, pitched.res.pitch2D.numChannels = cu.CUarray_format.CU_AD_FORMAT_FLOAT, 1
handle = int(do(cu.cuTexObjectCreate(pitched, description(), None)))
assert (run(module, "rows", np.zeros(60, np.float32), handle).reshape(6, 10) == values.reshape(6, 16)[:, :10]).all()
assert int(do(cu.cuTexObjectGetResourceDesc(handle)).res.pitch2D.pitchInBytes) == 64
''',
    "textures: layers, cubes, gathers": r'''
module = kernels(r"""extern "C" {
__global__ void lines(float* o, cudaTextureObject_t t) { INDEX o[i] = tex1DLayered<float>(t, i % 7, i / 7 - 1); }
__global__ void layers(float* o, cudaTextureObject_t t)
{ INDEX o[i] = tex2DLayered<float>(t, i % 7, i / 7 % 5, i / 35 - 1); }
__global__ void cube(float* o, cudaTextureObject_t t, float3* d)
{ INDEX o[i] = texCubemap<float>(t, d[i].x, d[i].y, d[i].z); }
__global__ void gather(float4* o, cudaTextureObject_t t)
{ INDEX o[i] = tex2Dgather<float4>(t, i % 7 + 1, i / 7 + 1, 1); }
__global__ void level(float* o, cudaTextureObject_t t) { INDEX o[i] = tex2DLod<float>(t, i % 7, i / 7, 0); }
}""".replace("INDEX", INDEX))
texels = rng.random((3, 5, 7), np.float32)
found = run(module, "layers", np.zeros(5 * 35, np.float32), texture(array_of(texels, flags=1))).reshape(5, 5, 7)
assert (found == texels[[0, 0, 1, 2, 2]]).all()  # layers outside are the nearest
lines = cu.CUDA_ARRAY3D_DESCRIPTOR()
lines.Width, lines.Depth, lines.Flags, lines.NumChannels = 7, 3, 1, 1
lines.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
layered = do(cu.cuArray3DCreate(lines))
copy(layered, np.ascontiguousarray(texels[:, 0]), 28, 1, 3, True)
found = run(module, "lines", np.zeros(35, np.float32), texture(layered)).reshape(5, 7)
assert (found == texels[[0, 0, 1, 2, 2], 0]).all()
faces = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
# Directions towards the texel with the lowest s and t of each face.
axes = ((1, 1, 1), (-1, 1, -1), (-1, 1, -1), (-1, -1, 1), (-1, 1, 1), (1, 1, -1))
directions = np.array(axes, np.float32) / 2
directions[range(6), [0, 0, 1, 1, 2, 2]] *= 2
found = run(module, "cube", np.zeros(6, np.float32), texture(array_of(faces, flags=4)), directions)
assert (found == faces[:, 0, 0]).all(), found
both = rng.random((5, 7, 2), np.float32)
found = run(module, "gather", np.zeros(28, "V16"), texture(array_of(both, 2))).view(np.float32).reshape(4, 7, 4)
around = np.pad(both[..., 1], ((0, 0), (0, 1)), "edge")
wanted = [around[1:5, :7], around[1:5, 1:8], around[:4, 1:8], around[:4, :7]]
assert (found == np.stack(wanted, -1)).all()
assert (run(module, "level", np.zeros(35, np.float32), texture(array_of(texels[0]))).reshape(5, 7) == texels[0]).all()
''',
    "surfaces": r'''
module = kernels(r"""extern "C" {
__global__ void turn(int* o, cudaSurfaceObject_t s) {
    INDEX
    uchar4 x = surf2Dread<uchar4>(s, i % 7 * 4, i / 7);
    surf2Dwrite(make_uchar4(x.w, x.z, x.y, x.x), s, i % 7 * 4, i / 7);
    o[i] = x.x;
}
__global__ void zero(unsigned* o, cudaSurfaceObject_t s) {
    INDEX
    o[i] = surf2Dread<unsigned>(s, (i - 1) * 4, 0, cudaBoundaryModeZero);
    surf2Dwrite(9u, s, i * 4, -1, cudaBoundaryModeZero);
}
__global__ void clamp(unsigned* o, cudaSurfaceObject_t s)
{ INDEX o[i] = surf2Dread<unsigned>(s, (i - 1) * 4, 1, cudaBoundaryModeClamp); }
__global__ void box(int* o, cudaSurfaceObject_t s)
{ INDEX surf3Dwrite((short)(surf3Dread<short>(s, i % 4 * 2, i / 4 % 3, i / 12) + i), s, i % 4 * 2, i / 4 % 3, i / 12); }
__global__ void beyond(int* o, cudaSurfaceObject_t s)
{ INDEX o[i] = surf2Dread<int>(s, i * 4, 0); }
}""".replace("INDEX", INDEX))
texels = rng.integers(0, 256, (5, 7, 4), np.uint8)
array = array_of(texels, 4)
handle = int(do(cu.cuSurfObjectCreate(resource(array))))
found = run(module, "turn", np.zeros(35, np.int32), handle)
assert (found.reshape(5, 7) == texels[..., 0]).all()
there = np.zeros_like(texels)
copy(array, there, 28, 5, 0, False)
assert (there == texels[..., ::-1]).all()
words = there.view(np.uint32)[..., 0]
found = run(module, "zero", np.ones(9, np.uint32), handle)
assert (found == [0, *words[0], 0]).all()
found = run(module, "clamp", np.ones(9, np.uint32), handle)
assert (found == [words[1, 0], *words[1], words[1, 6]]).all()
again = np.zeros_like(there); copy(array, again, 28, 5, 0, False); assert (again == there).all()
shorts = rng.integers(-99, 99, (2, 3, 4), np.int16)
solid = array_of(shorts)
run(module, "box", np.zeros(24, np.int32), int(do(cu.cuSurfObjectCreate(resource(solid)))))
there = np.zeros_like(shorts); copy(solid, there, 8, 3, 2, False)
assert (there == shorts + np.arange(24).reshape(2, 3, 4)).all()
traffic = {(row.buffer, row.kind): row for row in driver.log.kernels[0].sites}
assert traffic["array-1", "load"].requested_bytes == traffic["array-1", "store"].requested_bytes == 140
assert run(module, "beyond", np.zeros(8, np.int32), handle) == 719
''',
    "textures: counted bytes": r'''
module = kernels(r"""extern "C" {
__global__ void nearest(float* o, cudaTextureObject_t t) { INDEX o[i] = tex2D<float>(t, i % 16, i / 16); }
__global__ void linear(float* o, cudaTextureObject_t t) { INDEX o[i] = tex2D<float>(t, i % 16, i / 16); }
}""".replace("INDEX", INDEX))
array = array_of(rng.random((32, 32), np.float32))
run(module, "nearest", np.zeros(64, np.float32), texture(array))
run(module, "linear", np.zeros(64, np.float32), texture(array, linear=1))
first, second = ({row.buffer: row for row in log.sites}["array-1"] for log in driver.log.kernels)
# Two warps read two rows of 16 texels each: 2 sectors a row.
assert (first.requests, first.requested_bytes, first.sectors) == (2, 256, 8)
# Between the texels from -1 (that is 0) to 15, in rows from -1 and from 1: 2 and 3 rows.
assert (second.requests, second.sectors) == (2, 2 * 2 + 3 * 2)
# Four texels a lane; in the first column and in the first row some are the same.
assert second.requested_bytes == 4 * (31 + 3 * 62)
''',
}
SANITIZED = r'''
module = kernels(r"""extern "C" {
__global__ void fetch(float* o, cudaTextureObject_t t, float* x)
{ INDEX x[i] = i; o[i] = tex1Dfetch<float>(t, 63 - i); }
__global__ void write(float* o, cudaSurfaceObject_t s) { INDEX surf1Dwrite((float)i, s, i / 2 * 4); }
}""".replace("INDEX", INDEX))
memory = int(do(cu.cuMemAlloc(1024)))
made = cu.CUDA_RESOURCE_DESC()
made.resType = cu.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
made.res.linear.devPtr, made.res.linear.sizeInBytes = memory, 1024
made.res.linear.format, made.res.linear.numChannels = cu.CUarray_format.CU_AD_FORMAT_FLOAT, 1
handle = int(do(cu.cuTexObjectCreate(made, description(), None)))
run(module, "fetch", np.zeros(64, np.float32), handle, memory)
array = array_of(rng.random(64, np.float32))
run(module, "write", np.zeros(64, np.float32), int(do(cu.cuSurfObjectCreate(resource(array)))))
found = [[finding.kind for finding in log.findings] for log in driver.log.kernels]
assert "RAW race" in found[0] and "WAW race" in found[1], found
'''


def run(program: str, *, sanitize: bool = False) -> subprocess.CompletedProcess[str]:
    text = BEGIN.replace("SANITIZE", str(sanitize)) + program
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_textures(name: str) -> None:
    done = run(PROGRAMS[name])
    assert done.returncode == 0, done.stderr
    if name == "surfaces":
        assert "outside the surface: x, in bytes, is 28" in done.stderr


def test_the_sanitizer_sees_textures_and_surfaces() -> None:
    done = run(SANITIZED, sanitize=True)
    assert done.returncode == 0, done.stderr


def test_a_handle_of_no_object_is_a_fault() -> None:
    program = r'''
module = kernels(r"""extern "C" __global__ void k(float* o, cudaTextureObject_t t) { o[0] = tex1D<float>(t, 0.0f); }""")
handle = texture(array_of(rng.random(64, np.float32)))
do(cu.cuTexObjectDestroy(handle))
assert cu.cuTexObjectDestroy(handle)[0] == 1
assert run(module, "k", np.zeros(1, np.float32), handle) == 719
'''
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert "there is no texture object with the handle" in done.stderr
