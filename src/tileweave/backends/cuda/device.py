"""Kernels on a real device: NVRTC or nvcc, then the driver through cuda-bindings; arrays by NumPy or DLPack."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tileweave.backends.cuda.arguments import Launch, TensorMap
from tileweave.backends.cuda.compiled import compile
from tileweave.errors import BackendError

__all__ = ["launch_on_device"]

_WHERE = "run(text, .., on='cuda')"
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


def _driver() -> Any:
    try:
        from cuda.bindings import driver  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise BackendError(
            _WHERE, "cuda-bindings is not installed", legal="pip install 'tileweave[gpu]', or on='cpu'"
        ) from None
    try:
        status = driver.cuInit(0)[0]
    except RuntimeError as error:  # libcuda is missing
        raise BackendError(_WHERE, f"no driver: {error}", legal="a machine with a CUDA device, or on='cpu'") from None
    if int(status):
        raise BackendError(
            _WHERE, f"the driver does not start: {status.name}", legal="a machine with a CUDA device, or on='cpu'"
        )
    return driver


def _ok(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise BackendError(_WHERE, f"the driver answers {result[0].name}")
    return result[1] if len(result) == 2 else result[1:]


class _Memory:
    """Arrays of the host copied to the device and back; arrays that are on the device are used where they are."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.copies: dict[int, tuple[int, np.ndarray[Any, Any]]] = {}

    def pointer(self, array: Any) -> int:
        if not isinstance(array, np.ndarray):
            return _device_pointer(array)
        if id(array) not in self.copies:
            if not array.flags.c_contiguous:
                raise BackendError(_WHERE, "an array that is not contiguous", legal="np.ascontiguousarray(a)")
            address = int(_ok(self.driver.cuMemAlloc(max(array.nbytes, 1))))
            self.copies[id(array)] = (address, array)
            _ok(self.driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
        return self.copies[id(array)][0]

    def read_back(self) -> None:
        for address, array in self.copies.values():
            if array.flags.writeable:
                _ok(self.driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))

    def free(self) -> None:
        for address, _ in self.copies.values():
            self.driver.cuMemFree(address)


def _device_pointer(array: Any) -> int:
    """The address of an array on a device, from what it says of itself or from its DLPack capsule."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return int(interface["data"][0])
    if not hasattr(array, "__dlpack__"):
        raise BackendError(
            _WHERE, f"a {type(array).__name__} is no array", legal="NumPy arrays, or arrays that speak DLPack"
        )
    capsule = array.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = get(capsule, b"dltensor")
    data = ctypes.c_void_p.from_address(tensor).value or 0
    offset = ctypes.c_uint64.from_address(
        tensor + 40
    ).value  # DLTensor.byte_offset: after data, device, ndim, dtype, shape, strides
    return data + offset


def _tensor_map(driver: Any, value: TensorMap, pointer: int) -> Any:
    v = value.values()
    return _ok(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType(value.kind), v["rank"], pointer, [driver.cuuint64_t(d) for d in v["dim"]],
            [driver.cuuint64_t(s) for s in v["stride"]], [driver.cuuint32_t(b) for b in v["box"]],
            [driver.cuuint32_t(1)] * v["rank"], driver.CUtensorMapInterleave(0),
            driver.CUtensorMapSwizzle(_SWIZZLES[value.swizzle]),
            driver.CUtensorMapL2promotion(0), driver.CUtensorMapFloatOOBfill(int(value.nan_fill)),
        )
    )  # fmt: skip


def launch_on_device(text: str, launches: Sequence[Launch]) -> None:
    """Compiles for the device at hand, launches in order, and copies what NumPy arrays hold back."""
    driver = _driver()
    from tileweave.backends.cuda.cpu.kernel import choose_kernel
    from tileweave.backends.cuda.cpu.source import KernelSignature, signatures

    known = signatures(text)
    chosen: list[KernelSignature] = []
    for one in launches:
        name, signature = choose_kernel(known, one.kernel)
        if signature.template:
            raise BackendError(
                _WHERE, f"kernel {name} is a template", legal="an explicit instance with a name of its own"
            )
        chosen.append(signature)
    device = _ok(driver.cuDeviceGet(0))
    attribute = driver.CUdevice_attribute
    major = _ok(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    minor = _ok(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
    arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    cubin = compile(_with_c_names(text, {signature.name for signature in chosen}), arch).cubin
    context = _ok(driver.cuDevicePrimaryCtxRetain(device))
    _ok(driver.cuCtxSetCurrent(context))
    memory = _Memory(driver)
    try:
        module = _ok(driver.cuModuleLoadData(cubin))
        for one, signature in zip(launches, chosen, strict=True):
            _launch(driver, memory, module, one, signature)
        _ok(driver.cuCtxSynchronize())
        memory.read_back()
    finally:
        memory.free()
        driver.cuDevicePrimaryCtxRelease(device)


def _launch(driver: Any, memory: _Memory, module: Any, one: Launch, signature: Any) -> None:
    from tileweave.backends.cuda.cpu.kernel import extent

    function = _ok(driver.cuModuleGetFunction(module, signature.name.encode()))
    if one.shared > 48 << 10:
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _ok(driver.cuFuncSetAttribute(function, limit, one.shared))
    values, types = _values(driver, memory, [one.arguments[p] for p in signature.parameters])
    config = driver.CUlaunchConfig()
    (config.gridDimX, config.gridDimY, config.gridDimZ) = extent(one.grid, "grid")
    (config.blockDimX, config.blockDimY, config.blockDimZ) = extent(one.block, "block")
    config.sharedMemBytes = one.shared
    attributes = _attributes(driver, extent(one.cluster, "cluster"), one.cooperative)
    config.attrs, config.numAttrs = attributes, len(attributes)
    _ok(driver.cuLaunchKernelEx(config, function, (values, types), 0))


def _values(driver: Any, memory: _Memory, arguments: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    values: list[Any] = []
    types: list[Any] = []
    for value in arguments:
        if isinstance(value, TensorMap):
            values.append(_tensor_map(driver, value, memory.pointer(value.array)))
            types.append(None)
        elif isinstance(value, (bool, int, np.integer)):
            values.append(int(value))
            types.append(ctypes.c_int64 if abs(int(value)) >= 1 << 31 else ctypes.c_int32)
        elif isinstance(value, (float, np.floating)):
            values.append(float(value))
            types.append(ctypes.c_double if isinstance(value, np.float64) else ctypes.c_float)
        else:
            values.append(memory.pointer(value))
            types.append(ctypes.c_void_p)
    return tuple(values), tuple(types)


def _attributes(driver: Any, cluster: tuple[int, int, int], cooperative: bool) -> list[Any]:
    attributes = []
    if cluster != (1, 1, 1):
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster
        attributes.append(attribute)
    if cooperative:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    return attributes


def _with_c_names(text: str, names: set[str]) -> str:
    """The text with C names for its kernels, so that the module knows them by the names that they have."""
    if 'extern "C"' in text:
        return text
    for name in sorted(names):
        text = re.sub(rf"__global__(?=[^;{{}}]*\b{name}\s*\()", 'extern "C" __global__', text)
    return text
