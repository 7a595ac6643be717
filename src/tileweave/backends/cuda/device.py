"""Kernels on a real device: NVRTC or nvcc, then the driver through cuda-bindings; arrays by NumPy or DLPack."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tileweave.backends.cuda.arguments import BFLOAT16, DeviceArray, Launch, Multicast, Peers, PerDevice, TensorMap
from tileweave.backends.cuda.compiled import compile
from tileweave.backends.cuda.cpu.kernel import choose_kernel, extent
from tileweave.backends.cuda.cpu.source import KernelSignature, signatures
from tileweave.backends.cuda.parameters import CUDA, HOST, MANAGED, PINNED, Parameter, check_launch, host_array
from tileweave.errors import BackendError
from tileweave.kernel.ir import dtype_of
from tileweave.kernel.threads import STATIC_SHARED

_WHERE = "run(text, .., on='cuda')"
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


def _driver() -> Any:
    try:
        from cuda.bindings import driver  # type: ignore[import-not-found,import-untyped,unused-ignore]
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


def capability() -> int:
    """The architecture of the first device, such as 90.

    Raises:
        BackendError: there is none.
    """
    driver = _driver()
    return _capability(driver, _ok(driver.cuDeviceGet(0)))


def _capability(driver: Any, device: Any) -> int:
    names = driver.CUdevice_attribute
    asked = names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
    major, minor = (_ok(driver.cuDeviceGetAttribute(one, device)) for one in asked)
    return int(10 * major + minor)


def _ok(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise BackendError(_WHERE, f"the driver answers {result[0].name}")
    return result[1] if len(result) == 2 else result[1:]


class _Memory:
    """Arrays of the host copied to the device and back; arrays that are on the device are used where they are."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.copies: dict[tuple[int, int], tuple[int, np.ndarray[Any, Any]]] = {}

    def pointer(self, array: Any, name: str) -> int:
        if array is None:
            return 0
        device = _device_of(array)
        if device is not None:
            return _device_pointer(array, name)
        host = array if isinstance(array, np.ndarray) else host_array(array, name)
        if not host.flags.c_contiguous:
            raise BackendError(_WHERE, f"{name}: an array that is not contiguous", legal="np.ascontiguousarray(a)")
        key = host.ctypes.data, host.nbytes  # memory is copied once, whoever shows it
        if key not in self.copies:
            address = int(_ok(self.driver.cuMemAlloc(max(host.nbytes, 1))))
            self.copies[key] = (address, host)
            if host.nbytes:
                _ok(self.driver.cuMemcpyHtoD(address, host.ctypes.data, host.nbytes))
        return self.copies[key][0]

    def read_back(self) -> None:
        for address, array in self.copies.values():
            if array.flags.writeable and array.nbytes:
                _ok(self.driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))

    def free(self) -> None:
        for address, _ in self.copies.values():
            self.driver.cuMemFree(address)


class _Tensor(ctypes.Structure):
    """What a DLPack capsule holds."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


def _device_of(array: Any) -> int | None:
    """The number of the device on which an array lies; None: on the host."""
    if isinstance(array, TensorMap):
        return _device_of(array.array)
    if isinstance(array, np.ndarray | np.generic):
        return None
    if hasattr(array, "__dlpack_device__"):
        kind, number = array.__dlpack_device__()
        if int(kind) in (CUDA, MANAGED):
            return int(number)
        if int(kind) not in (HOST, PINNED):
            raise BackendError(_WHERE, f"an array on a device of kind {int(kind)}", legal="the host, or a CUDA device")
        return None
    return 0 if hasattr(array, "__cuda_array_interface__") else None


def device_array(array: Any, name: str) -> DeviceArray | None:
    """An array of another library on a CUDA device, in place; None for one on the host.

    Raises:
        BackendError: it is not contiguous, or its elements are of no type of kernels.
    """
    if isinstance(array, DeviceArray):
        return array
    device = _device_of(array)
    if device is None:
        return None
    try:
        dtype = dtype_of(str(array.dtype).rpartition(".")[2], _WHERE).numpy
    except TypeError:
        raise BackendError(_WHERE, f"{name}: elements of type {array.dtype}", legal="a type of kernels") from None
    return DeviceArray(_device_pointer(array, name), tuple(array.shape), dtype, device, array)


def _device_pointer(array: Any, name: str) -> int:
    """The address of an array on a device, from its DLPack capsule or from what it says of itself."""
    if not hasattr(array, "__dlpack__"):
        interface = array.__cuda_array_interface__
        if interface.get("strides") is not None:
            itemsize = int(re.sub(r"\D", "", interface["typestr"]))
            _need_contiguous(name, interface["shape"], [s // itemsize for s in interface["strides"]])
        return int(interface["data"][0])
    capsule = array.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _Tensor.from_address(get(capsule, b"dltensor"))
    if tensor.strides:
        _need_contiguous(name, tensor.shape[: tensor.ndim], tensor.strides[: tensor.ndim])
    return (tensor.data or 0) + int(tensor.byte_offset)


def _need_contiguous(name: str, shape: Sequence[int], strides: Sequence[int]) -> None:
    step = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != step:
            inputs = {"shape": tuple(shape), "strides": tuple(strides)}
            raise BackendError(_WHERE, f"{name}: an array that is not contiguous", inputs=inputs, legal="a copy")
        step *= length


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


@lru_cache(64)
def _cubin(text: str, arch: str) -> bytes:
    """The machine code of a text; the last ones are kept."""
    return compile(text, arch).cubin


def launch_on_device(text: str, launches: Sequence[Launch]) -> None:
    """Compiles for the device at hand, launches in order, and copies what arrays of the host hold back."""
    known = signatures(text)
    chosen: list[KernelSignature] = []
    for one in launches:
        name, signature = choose_kernel(known, one.kernel)
        if signature.template:
            raise BackendError(
                _WHERE, f"kernel {name} is a template", legal="an explicit instance with a name of its own"
            )
        if any(isinstance(value, Peers | Multicast | PerDevice) for value in one.arguments.values()):
            raise BackendError(_WHERE, "several devices are simulated only", legal="on='cpu'")
        check_launch(name, signature.declared, one)
        extent(one.grid, "grid"), extent(one.block, "block"), extent(one.cluster, "cluster")
        chosen.append(signature)
    places = {_device_of(value) for one in launches for value in one.arguments.values()} - {None}
    if len(places) > 1:
        raise BackendError(_WHERE, f"arrays on devices {sorted(map(str, places))}", legal="arrays of one device")
    driver = _driver()
    device = _ok(driver.cuDeviceGet(places.pop() if places else 0))
    number = _capability(driver, device)
    cubin = _cubin(text, f"sm_{number}" + ("a" if number >= 90 else ""))
    context = _ok(driver.cuDevicePrimaryCtxRetain(device))
    _ok(driver.cuCtxPushCurrent(context))
    memory = _Memory(driver)
    try:
        module = _ok(driver.cuModuleLoadData(cubin))
        try:
            for one, signature in zip(launches, chosen, strict=True):
                _launch(driver, memory, module, one, signature, symbol_of(cubin, signature.name))
            _ok(driver.cuCtxSynchronize())
            memory.read_back()
        finally:
            driver.cuModuleUnload(module)
    finally:
        memory.free()
        driver.cuCtxPopCurrent()
        driver.cuDevicePrimaryCtxRelease(device)


def symbol_of(cubin: bytes, name: str) -> str:
    """The name of a kernel in machine code: its own, or that which C++ makes of it.

    Raises:
        BackendError: there is none, or there are several of the name.
    """
    sections = {found.decode() for found in re.findall(rb"\0\.text\.([\w$]+)(?=\0)", cubin)}
    mangled = re.compile(rf"_Z(?:N(?:\d+[A-Za-z_]\w*?)*)?{len(name)}{re.escape(name)}(?!\d*_Z)\w*")
    found: list[str] = [symbol for symbol in sorted(sections) if symbol == name or mangled.fullmatch(symbol)]
    if len(found) != 1:
        problem = f"{len(found)} kernels of the name {name} in the machine code"
        raise BackendError(_WHERE, problem, legal=" | ".join(sorted(sections)) or "a __global__ function")
    return found[0]


def _launch(driver: Any, memory: _Memory, module: Any, one: Launch, signature: KernelSignature, symbol: str) -> None:
    function = _ok(driver.cuModuleGetFunction(module, symbol.encode()))
    kinds = driver.CUfunction_attribute
    if one.shared > STATIC_SHARED:
        _ok(driver.cuFuncSetAttribute(function, kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, one.shared))
    cluster = extent(one.cluster, "cluster")
    if cluster[0] * cluster[1] * cluster[2] > 8:
        _ok(driver.cuFuncSetAttribute(function, kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
    pairs = [_value(driver, memory, p, one.arguments[p.name]) for p in signature.declared]
    config = driver.CUlaunchConfig()
    (config.gridDimX, config.gridDimY, config.gridDimZ) = extent(one.grid, "grid")
    (config.blockDimX, config.blockDimY, config.blockDimZ) = extent(one.block, "block")
    config.sharedMemBytes = one.shared
    attributes = _attributes(driver, cluster, one.cooperative)
    config.attrs, config.numAttrs = attributes, len(attributes)
    values = (tuple(value for value, _ in pairs), tuple(kind for _, kind in pairs))
    _ok(driver.cuLaunchKernelEx(config, function, values, 0))


_NUMBERS: dict[str, Any] = {
    "bool": ctypes.c_bool, "float32": ctypes.c_float, "float64": ctypes.c_double,
    **{f"{kind}{bits}": getattr(ctypes, f"c_{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}  # fmt: skip


def _value(driver: Any, memory: _Memory, parameter: Parameter, value: Any) -> tuple[Any, Any]:
    """A parameter's value and its type for the driver, by the type that the kernel declares."""
    if isinstance(value, TensorMap):
        return _tensor_map(driver, value, memory.pointer(value.array, parameter.name)), None
    if parameter.pointers:
        return memory.pointer(value, parameter.name), ctypes.c_void_p
    if parameter.dtype in _NUMBERS and not parameter.vector:
        kind = _NUMBERS[parameter.dtype]
        return kind(value).value, kind
    if parameter.dtype in ("float16", "bfloat16") and not parameter.vector and "2" not in parameter.text:
        narrow = np.dtype(np.float16) if parameter.dtype == "float16" else BFLOAT16
        return int(np.asarray(value, narrow).view(np.uint16)), ctypes.c_uint16
    raise BackendError(
        _WHERE, f"{parameter.name}: a parameter of type {parameter.text}", legal="numbers, pointers and tensor maps"
    )


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
