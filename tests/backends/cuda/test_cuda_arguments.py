"""Arguments of kernels: types, ranges and counts refused before anything is compiled; bytes as a device gets them."""

import ctypes
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from tileweave.backends.cuda import Launch, Peers, TensorMap, device, run
from tileweave.backends.cuda.cpu.source import signatures
from tileweave.backends.cuda.parameters import check_launch
from tileweave.errors import BackendError

TEXT = """
using size = unsigned long long;
typedef unsigned int word;
__global__ void __launch_bounds__(64) f(float* y, const __half* __restrict__ x, int n, size m, float s, word u, bool b,
                  const float4 *v, uint4* w, double d = 1.0, unsigned char c = 3, float* const* p, __half h) {}
"""
(SIGNATURE,) = signatures(TEXT)


def arguments(**changes):
    y = np.zeros(4, np.float32)
    given = {
        "y": y, "x": np.zeros(4, np.float16), "n": 3, "m": 1 << 40, "s": 2, "u": 1 << 31, "b": True,
        "v": np.zeros(8, np.float32), "w": np.zeros(8, ml_dtypes.bfloat16), "d": 1.5, "c": 200,
        "p": Peers((np.zeros(4, np.float32),)), "h": 0.5,
    }  # fmt: skip
    return {name: value for name, value in (given | changes).items() if value is not ...}


def read_only(count, dtype=np.float32):
    array = np.zeros(count, dtype)
    array.flags.writeable = False
    return array


SHARED = np.zeros(8, np.float32)
ACCEPTED = [
    {}, {"x": np.zeros(4, np.uint16)}, {"y": None}, {"n": np.array(5)}, {"n": np.int64(-7)}, {"v": read_only(4)},
    {"y": SHARED, "v": SHARED.reshape(2, 4)}, {"y": SHARED[:4], "v": SHARED[4:]}, {"s": np.float64(1)}, {"b": 0},
    {"w": np.zeros(3, np.complex64)}, {"y": np.zeros(0, np.float32)},
]  # fmt: skip
REFUSED = [
    ({"y": np.zeros(4)}, r"y: an array of float64 for float\*"),
    ({"y": np.zeros(4, np.int32)}, r"y: an array of int32 for float\*"),
    ({"y": np.zeros(4, np.uint32)}, "y: an array of uint32"),
    ({"x": np.zeros(4, np.float32)}, r"x: an array of float32 for const __half\*"),
    ({"x": np.zeros(4, np.int16)}, "x: an array of int16"),
    ({"x": np.zeros(4, ml_dtypes.bfloat16)}, "x: an array of bfloat16"),
    ({"v": np.zeros(4, np.float64)}, "v: an array of float64"),
    ({"p": Peers((np.zeros(4),))}, "p: an array of float64"),
    ({"n": 2.5}, "n: 2.5 for an integer"), ({"n": 1 << 31}, "n: 2147483648 does not fit int"),
    ({"m": -1}, "m: -1 does not fit size"), ({"u": -1}, "u: -1 does not fit word"), ({"c": 256}, "c: 256 does not fit"),
    ({"b": 2}, "b: 2 does not fit bool"), ({"y": 3.0}, "y: 3.0 for a pointer"),
    ({"y": [1.0]}, "y: a list for a pointer"),
    ({"n": np.zeros(3, np.int32)}, "n: an array of int32 for a number"), ({"s": "a"}, "s: a str for a number"),
    ({"n": None}, "n: None for a number"), ({"s": 1j}, "s: a complex for a number"), ({"n": ...}, "no value for n"),
    ({"k": 3}, "no parameter k"), ({"n": ..., "k": 3}, "no value for n, and no parameter k"),
    ({"y": read_only(4)}, "y: the array is read-only, and the kernel may write it"),
    ({"y": np.zeros(4, object)}, "y: an array of object"), ({"y": np.zeros(4, ">f4")}, "y: an array of >f4"),
    ({"y": SHARED[:5], "v": SHARED[4:]}, "v: it overlaps y in memory"),
    ({"y": TensorMap(np.zeros((8, 8), np.float32), (8, 8))}, "y: a tensor map"),
    ({"y": Peers((SHARED,))}, "y: Peers are a pointer to pointers"),
]  # fmt: skip


@pytest.mark.parametrize("changes", ACCEPTED, ids=str)
def test_what_a_parameter_can_take(changes):
    check_launch("f", SIGNATURE.declared, Launch(1, 1, arguments(**changes)))
    assert SIGNATURE.parameters[:3] == ("y", "x", "n")


@pytest.mark.parametrize(("changes", "problem"), REFUSED, ids=[problem for _, problem in REFUSED])
def test_what_a_parameter_cannot_take_is_refused_by_name(changes, problem):
    with pytest.raises(BackendError, match=problem):
        check_launch("f", SIGNATURE.declared, Launch(1, 1, arguments(**changes)))


def test_the_whole_message():
    with pytest.raises(BackendError) as raised:
        run("__global__ void scale(float* x, int n) {}", 1, 32, {"x": np.zeros(3), "n": 3})
    assert str(raised.value) == (
        "run(text, .., arrays): x: an array of float64 for float*\n"
        "  kernel     scale\n  parameter  float* x\n  legal      an array of float32"
    )


def test_types_that_the_text_does_not_say_are_not_judged():
    text = "template <class T> __global__ void f(T* x, Thing t, void* p) {}"
    (found,) = signatures(text)
    check_launch("f", found.declared, Launch(1, 1, {"x": SHARED, "t": 3, "p": np.zeros(3, bool)}))
    assert [p.dtype for p in found.declared] == ["", "", ""]


class Foreign:
    """An array that speaks DLPack and nothing else, on the host or on what it says is a device."""

    def __init__(self, array, kind=1, number=0):
        self.array, self.place, self.dtype = array, (kind, number), array.dtype

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**(options if self.place[0] == 1 else {}))

    def __dlpack_device__(self):
        return self.place


def test_memory_that_two_launches_show_differently_is_one():
    x = np.arange(6, dtype=np.float32)
    text = "__global__ void add(float* x, const float* y) { x[threadIdx.x] += y[5 - threadIdx.x]; }"
    run(text, 1, 1, {"x": x.reshape(2, 3), "y": x})
    assert x.tolist() == [5, 1, 2, 3, 4, 5]


def test_arrays_of_dlpack_on_the_host_are_read_and_written_in_place():
    x = np.arange(4, dtype=np.float32)
    run("__global__ void twice(float* x) { x[threadIdx.x] *= 2; }", 1, 4, {"x": Foreign(x)})
    assert x.tolist() == [0, 2, 4, 6]


class FakeDriver:
    """A driver whose device is the memory of the process: what a launch is given is kept as bytes."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor"
    )
    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared",
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED="16",
    )
    CUlaunchConfig = SimpleNamespace
    CUlaunchAttributeID = SimpleNamespace(
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION="cluster", CU_LAUNCH_ATTRIBUTE_COOPERATIVE="cooperative"
    )

    @staticmethod
    def CUlaunchAttribute():
        return SimpleNamespace(value=SimpleNamespace(clusterDim=SimpleNamespace()))

    def __init__(self):
        self.calls, self.memory, self.given = [], {}, []

    def __getattr__(self, name):
        def call(*values):
            self.calls.append((name, *values))
            return (0, {"major": 9, "minor": 0}.get(values[0] if values else "", name))

        return call

    def cuMemAlloc(self, count):
        buffer = ctypes.create_string_buffer(count)
        self.memory[ctypes.addressof(buffer)] = buffer
        return (0, ctypes.addressof(buffer))

    def cuMemcpyHtoD(self, to, source, count):
        ctypes.memmove(to, source, count)
        return (0,)

    def cuMemcpyDtoH(self, to, source, count):
        ctypes.memmove(to, source, count)
        return (0,)

    def cuLaunchKernelEx(self, config, function, pairs, extra):
        values, kinds = pairs
        self.config = config
        self.given = [bytes(kind(value)) for value, kind in zip(values, kinds, strict=True)]
        first = values[0]
        ctypes.memmove(first, np.full(4, 7, np.float32).ctypes.data, 16)  # the kernel writes y
        return (0,)


@pytest.fixture
def driver(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(device, "_driver", lambda: fake)
    made = SimpleNamespace(cubin=b"\0.text._Z1fPf\0.text.other\0")
    monkeypatch.setattr(device, "compile", lambda text, arch: fake.calls.append(("compile", arch)) or made)
    return fake


def test_a_device_gets_every_number_in_the_type_that_the_kernel_declares(driver):
    given = arguments(p=None)
    run(TEXT, (2, 3), 64, given, on="cuda", shared=64 << 10, cluster=(2, 1))
    bytes_of = dict(zip(SIGNATURE.parameters, driver.given, strict=True))
    expected = {
        "n": np.int32(3), "m": np.uint64(1 << 40), "s": np.float32(2), "u": np.uint32(1 << 31), "b": np.bool_(1),
        "d": np.float64(1.5), "c": np.uint8(200), "h": np.float16(0.5), "p": np.uint64(0),
    }  # fmt: skip
    for name, value in expected.items():
        assert bytes_of[name] == value.tobytes(), name
    assert given["y"].tolist() == [7, 7, 7, 7]  # copied back
    assert ("compile", "sm_90a") in driver.calls and (driver.config.gridDimX, driver.config.gridDimY) == (2, 3)
    assert ("cuModuleGetFunction", "cuModuleLoadData", b"_Z1fPf") in driver.calls
    assert [call[0] for call in driver.calls][-3:] == ["cuMemFree", "cuCtxPopCurrent", "cuDevicePrimaryCtxRelease"]


def test_arrays_on_the_device_are_used_where_they_are(driver):
    text = "__global__ void f(float* y) {}"
    near = np.zeros(4, np.float32)
    run(text, 1, 4, {"y": Foreign(near, kind=2, number=1)}, on="cuda")
    assert driver.given == [near.ctypes.data.to_bytes(8, "little")] and not driver.memory and near[0] == 7
    assert ("cuDeviceGet", 1) in driver.calls
    host = np.zeros(4, np.float32)
    run(text, 1, 4, {"y": Foreign(host)}, on="cuda")
    assert len(driver.memory) == 1 and host[0] == 7


@pytest.mark.parametrize(
    ("value", "problem"),
    [(Foreign(np.zeros((4, 4), np.float32).T[1:], 2), "not contiguous"), (Foreign(SHARED, 10), "of kind 10"),
     (np.zeros((4, 4), np.float32)[:, 1], "not contiguous"), (Peers((SHARED,)), "several devices are simulated only")],
    ids=["strided", "of another kind", "strided on the host", "peers"],
)  # fmt: skip
def test_arrays_that_a_device_cannot_take(driver, value, problem):
    with pytest.raises(BackendError, match=problem):
        run("__global__ void f(float* y) {}", 1, 4, {"y": value}, on="cuda")
    assert not driver.given


def test_arguments_are_checked_before_the_driver_is_asked_for():
    with pytest.raises(BackendError, match="y: an array of float64"):
        run("__global__ void f(float* y) {}", 1, 4, {"y": np.zeros(4)}, on="cuda")
    with pytest.raises(BackendError, match="devices and check are simulated only"):
        run("__global__ void f() {}", 1, 4, {}, on="cuda", devices=2)


def test_the_kernel_of_a_name_is_found_in_machine_code():
    cubin = b"\0.text._ZN1a1fEPfi\0.nv.info._Z1gPi\0.text.g\0.text._Z2ggPi\0.text._Z1hILi3EEvPi\0.text._Z1hILi4EEvPi\0"
    assert [device.symbol_of(cubin, name) for name in ("f", "g", "gg")] == ["_ZN1a1fEPfi", "g", "_Z2ggPi"]
    with pytest.raises(BackendError, match="2 kernels of the name h"):
        device.symbol_of(cubin, "h")
