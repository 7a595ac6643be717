"""The cache of compiled objects: found again, and never believed when it is not what was written."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tileweave.backends import cache as kept
from tileweave.backends.cache import cache_directory
from tileweave.backends.cpu import compile, forget, host
from tileweave.backends.cpu import kernel as kernel_module
from tileweave.backends.cpu.kernel import CpuKernel
from tileweave.backends.cpu.target import jit, later
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.threads import pool
from tileweave.errors import BackendError
from tileweave.layout import strided
from tileweave.teir import Operand, emit_relu
from tileweave.teir.ir.program import Program


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pool()  # its code is kept elsewhere
    monkeypatch.setenv("TILEWEAVE_CACHE", str(tmp_path / "cache"))
    forget()
    return tmp_path / "cache"


def program(count: int = 23) -> Program:
    flat = Operand(strided((count,), (1,)), "FP32")
    return emit_relu(flat, flat)


def right(count: int = 23) -> bool:
    """Compile once more, from disk or anew, and run; whether the object came from disk."""
    forget()
    kernel = compile(program(count))
    values, out = np.linspace(-1, 1, count, dtype=np.float32), np.zeros(count, np.float32)
    kernel(values, out)
    assert np.array_equal(out, np.maximum(values, 0))
    return kernel.from_cache


def objects(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.o"))


def test_an_object_is_found_again(cache: Path) -> None:
    assert not right()
    assert right()
    assert len(objects(cache)) == 1
    assert cache_directory() == cache


def test_the_same_kernel_is_returned_from_memory(cache: Path) -> None:
    assert compile(program()) is compile(program())
    assert compile(program(), threads=1) is not compile(program(), threads=2)
    assert objects(cache)


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"\x00" * len(data),
        lambda data: b"tileweave object 0\n" + data[19:],
        lambda data: data + b"x",
    ],
)
def test_a_broken_object_is_ignored_and_written_anew(cache: Path, harm: object) -> None:
    right()
    (file,) = objects(cache)
    whole = file.read_bytes()
    file.write_bytes(harm(whole))  # type: ignore[operator]
    assert not right()
    assert file.read_bytes() == whole
    assert right()


def test_an_object_under_another_name_is_ignored(cache: Path) -> None:
    right(23)
    (first,) = objects(cache)
    right(24)
    (second,) = set(objects(cache)) - {first}
    second.write_bytes(first.read_bytes())
    assert not right(24)


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("TILEWEAVE_CACHE", str(blocked))
    assert not right(31)
    assert not right(31)


def test_a_folder_in_the_place_of_an_object_is_no_failure(cache: Path) -> None:
    right()
    (file,) = objects(cache)
    file.unlink()
    file.mkdir()
    assert not right()
    assert not right()


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TILEWEAVE_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    forget()
    assert not right(37)
    assert not right(37)


def test_a_cache_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWEAVE_CACHE", "off")
    monkeypatch.chdir(tmp_path)
    assert not right(41)
    assert not right(41)
    assert not list(tmp_path.iterdir())


MANY = """
import sys, numpy as np
from tileweave.backends.cpu import compile, forget
from tileweave.layout import strided
from tileweave.teir import Operand, emit_relu
for turn in range(3):
    for count in (5, 6):
        flat = Operand(strided((count,), (1,)), "FP32")
        forget()
        values, out = np.linspace(-1, 1, count, dtype=np.float32), np.zeros(count, np.float32)
        compile(emit_relu(flat, flat))(values, out)
        if not np.array_equal(out, np.maximum(values, 0)):
            sys.exit(1)
"""


def test_processes_share_a_cache_that_somebody_spoils(cache: Path) -> None:
    running = [subprocess.Popen([sys.executable, "-c", MANY]) for _ in range(2)]
    random = Random(0)
    while any(process.poll() is None for process in running):
        for file in objects(cache):
            with contextlib.suppress(OSError):
                data = bytearray(file.read_bytes())
                if data and random.random() < 0.5:
                    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
                file.write_bytes(data[: random.choice((0, len(data) // 2, len(data), len(data)))])
        time.sleep(0.02)
    assert [process.returncode for process in running] == [0, 0]
    assert objects(cache)
    assert [file for file in cache.rglob("*") if file.suffix == ".part"] == []


def test_nothing_is_written_when_the_cache_is_off(cache: Path) -> None:
    compile(program(), cache=False)
    assert objects(cache) == []


def test_writers_at_once_leave_whole_files(cache: Path) -> None:
    source = "define void @entry(ptr %env) nounwind {\nentry:\n  ret void\n}\n"
    found: list[Code] = []  # all are held, so that none is dropped and read from the file again

    def work() -> None:
        found.extend(compile_ir(source, ("entry",), host()) for _ in range(5))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 20
    assert len({id(code) for code in found}) == 1 and not found[0].from_cache
    assert [file for file in cache.rglob("*") if file.suffix == ".part"] == []


def test_llvm_errors_keep_their_evidence(cache: Path) -> None:
    with pytest.raises(BackendError) as caught:
        compile_ir("define void @entry() { nonsense }", ("entry",), host())
    assert "nonsense" in caught.value.source
    assert caught.value.log
    code = compile_ir("define void @other() {\n  ret void\n}", ("entry",), host())
    for _ in range(2):
        with pytest.raises(BackendError, match="the object lacks entry"):
            _ = code.addresses


def test_llvm_runs_where_no_interrupt_lands(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python raises KeyboardInterrupt in the main thread only; in the midst of LLVM's clean-up it would free twice."""
    threads: dict[str, threading.Thread] = {}

    def recording(name: str) -> Callable[..., object]:
        work = getattr(jit, name)

        def recorded(*about: object) -> object:
            threads[name] = threading.current_thread()
            return work(*about)

        return recorded

    for name in ("_read", "_assemble", "_link"):
        monkeypatch.setattr(jit, name, recording(name))
    assert not right(29)
    assert len(threads) == 3 and threading.main_thread() not in threads.values()


def kernels_in_a_row(counts: range) -> list[CpuKernel]:
    """Kernels whose code nobody has waited for."""
    return [compile(program(count), threads=1, wait=False) for count in counts]


def check_kernels(kernels: list[CpuKernel], counts: range) -> None:
    for kernel, count in zip(kernels, counts, strict=True):
        values, out = np.linspace(-1, 1, count, dtype=np.float32), np.zeros(count, np.float32)
        kernel(values, out)
        assert np.array_equal(out, np.maximum(values, 0))


def test_code_is_made_beside_what_asks_for_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever needs code takes no thread for granted: it makes what nobody has begun."""
    monkeypatch.setattr(kernel_module, "GENERAL", False)  # a text for each size
    forget()
    check_kernels(kernels_in_a_row(range(40, 52)), range(40, 52))
    monkeypatch.setattr(jit, "later", lambda job: None)
    check_kernels(kernels_in_a_row(range(52, 58)), range(52, 58))
    assert len(objects(cache)) == 18
    later.finish()


def test_code_that_nobody_holds_is_not_made(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Callable[[], object]] = []
    monkeypatch.setattr(jit, "later", jobs.append)
    source = "define void @entry(ptr %env) nounwind {\nentry:\n  ret void\n}\n"
    code = compile_ir(source, ("entry",), host())
    del code
    for job in jobs:
        job()
    jit.release()
    assert len(jobs) == 1 and objects(cache) == []


def test_threads_that_want_the_same_code_get_it(cache: Path) -> None:
    forget()
    kernel = compile(program(61), threads=1, wait=False)
    workers = [threading.Thread(target=check_kernels, args=([kernel], range(61, 62))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(objects(cache)) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_makes_the_code_that_its_parent_had_begun(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_module, "GENERAL", False)
    for turn in range(8):
        counts = range(70 + 8 * turn, 78 + 8 * turn)
        forget()
        kernels = kernels_in_a_row(counts)
        child = os.fork()
        if not child:
            status = 1
            with contextlib.suppress(BaseException):
                check_kernels(kernels, counts)
                check_kernels(kernels_in_a_row(range(30, 33)), range(30, 33))
                status = 0
            os._exit(status)
        check_kernels(kernels, counts)
        assert os.waitpid(child, 0)[1] == 0


INTERRUPTED = """
import os, signal, threading, time
import numpy as np
from tileweave.backends.cpu import compile
from tileweave.layout import strided
from tileweave.teir import Operand, emit_contraction

def strike():
    while True:
        time.sleep(0.004)
        os.kill(os.getpid(), signal.SIGINT)

a, b = np.ones((6, 9), "f4"), np.ones((9, 7), "f4")
operands = [Operand(strided(s, (s[1], 1)), "FP32") for s in ((6, 9), (9, 7), (6, 7))]
program = emit_contraction("ik,kj->ij", operands[:2], operands[2])
compile(program, cache=False)
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=strike, daemon=True).start()
met, end = 0, time.monotonic() + 3
while time.monotonic() < end:
    try:
        compile(program, cache=False)
    except KeyboardInterrupt:
        met += 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
out = np.zeros((6, 7), "f4")
compile(program, cache=False)(a, b, out)
print(met > 10, (out == 9).all())
"""


@pytest.mark.slow
def test_interrupted_compilations_leave_the_process_whole(cache: Path) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr[-2000:]


def _code_pages() -> int:
    """KiB of this process that hold code which comes from no file."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [line[0].split("-") for line in lines if "x" in line[1] and len(line) == 5]
    return sum(int(high, 16) - int(low, 16) for low, high in spans) // 1024


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads the process' map as Linux shows it")
def test_code_is_unmapped_when_nobody_holds_it(cache: Path) -> None:
    """Every shape used to leave some 90 KiB behind, for as long as the process lived."""
    right(100)
    before = _code_pages()
    for count in range(200, 260):
        right(count)
    forget()
    assert _code_pages() <= before + 64


def test_code_stays_while_a_call_may_need_it(cache: Path) -> None:
    values, out = np.linspace(-1, 1, 23, dtype=np.float32), np.zeros(23, np.float32)
    prepared = compile(program()).prepare(values, out)
    direct = compile(program(23)).run_on
    forget()
    for count in range(300, 310):
        right(count)
    prepared()
    assert np.array_equal(out, np.maximum(values, 0))
    out[:] = 7
    assert direct(values, out)
    assert np.array_equal(out, np.maximum(values, 0))


def test_kernels_may_be_dropped_while_other_threads_run_them(cache: Path) -> None:
    values, wrong = np.linspace(-1, 1, 70_000, dtype=np.float32), []

    def work(first: int) -> None:
        for turn in range(15):
            count = 60_000 + first + 2 * turn
            out = np.zeros(count, np.float32)
            compile(program(count), threads=2)(values[:count], out)
            forget()
            wrong.extend([count] if not np.array_equal(out, np.maximum(values[:count], 0)) else [])

    workers = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_the_folder_is_bounded_and_what_was_read_stays(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in range(40, 46):
        right(count)
    files = objects(cache)
    for age, file in enumerate(files):
        os.utime(file, (time.time() - 10_000 * (age + 1),) * 2)
    assert kept.read(files[-1]) is not None  # the oldest becomes the youngest
    half = cache / "cpu" / "ab" / ".x.part"
    half.parent.mkdir(exist_ok=True)
    half.write_bytes(b"of a process that was killed")
    os.utime(half, (time.time() - 10_000,) * 2)
    foreign = cache / "cpu" / "notes.txt"
    foreign.write_text("somebody's own")
    monkeypatch.setattr(kept, "limit_bytes", lambda: sum(f.stat().st_size for f in files) // 2)
    kept.trim()
    left = objects(cache)
    assert files[-1] in left and files[0] in left and files[-2] not in left and 1 <= len(left) <= 3
    assert not half.exists() and foreign.exists()
    monkeypatch.setattr(kept, "limit_bytes", lambda: 1 << 30)
    for count in range(40, 46):  # what is gone is made again
        right(count)
    assert len(objects(cache)) == 6


def test_the_bound_is_a_variable(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWEAVE_CACHE_MIB", "0")
    monkeypatch.setattr(kept, "_writes", 0)
    assert not right(50)
    assert not objects(cache)
    monkeypatch.setenv("TILEWEAVE_CACHE_MIB", "much")
    with pytest.raises(BackendError, match="TILEWEAVE_CACHE_MIB='much' is no size"):
        kept.limit_bytes()


def test_a_direct_call_that_is_running_already_leaves_its_memory_alone(cache: Path) -> None:
    values, out = np.linspace(-1, 1, 23, dtype=np.float32), np.zeros(23, np.float32)
    kernel = compile(program(23))
    assert kernel.run_on(values, out)
    assert not kernel.run_on(values[:22], values)  # they share bytes
    for head in kernel._directs:
        head[0] = 1
        out[:] = 7
        assert not kernel.run_on(values, out)
        assert (out == 7).all()
        head[0] = 0
        assert not kernel.run_on(values)
    assert kernel.run_on(values, out)
    assert np.array_equal(out, np.maximum(values, 0))
