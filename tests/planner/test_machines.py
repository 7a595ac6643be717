from importlib import import_module

import pytest

from tileweave.backends import host
from tileweave.errors import DtypeError, PlanError
from tileweave.planner import Machine, machines
from tileweave.planner.machine import bytes_from, to_toml
from tileweave.words import size_text


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2 << 30), ("1kb", 1000), ("1.5 KiB", 1536), ("1e6", 10**6), (4096, 4096), ("7", 7)]
)
def test_amounts_of_memory(text, size):
    assert bytes_from(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "2 gigs", "-1GiB", "0", "1..2MB", 1.5, float("nan"), True])
def test_what_is_no_amount_of_memory_is_refused(text):
    with pytest.raises(PlanError, match="amount of memory"):
        bytes_from(text)


@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_what_is_no_count_of_machines_is_refused(count):
    with pytest.raises(PlanError, match="cannot be used"):
        machines(count)


def test_a_toml_file_describes_machines(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(
        '[defaults]\nmemory = "2GiB"\ncores = 3\n[link]\nbytes_per_second = 5e9\nseconds = 1e-5\n'
        '[task]\nseconds = 1e-3\n[[machine]]\nname = "a"\n[[machine]]\nname = "b"\nmemory = "8GiB"\n'
    )
    found = machines(path)
    assert [(m.name, m.memory_bytes, m.cores) for m in found.machines] == [("a", 2 << 30, 3), ("b", 8 << 30, 3)]
    assert (found.link_bytes_per_second, found.link_seconds, found.task_seconds) == (5e9, 1e-5, 1e-3)
    assert [m.memory_bytes for m in machines(found, memory="1GiB").machines] == [1 << 30] * 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[machine]]\nmemroy = 3", "memroy"),
        ("x = 1\n[[machine]]", "'x' is not known"),
        ("", r"no \[\[machine\]\]"),
        ("[[machine]\n", "not TOML"),
        ("[link]\nbytes_per_second = -1\n[[machine]]", "bytes_per_second is -1"),
        ("[[machine]]\nname='a'\n[[machine]]\nname='a'", "share a name"),
        ("[[level]]\nname='n'\ncount=100000000000\nbytes_per_second=1e9", "100000000000 machines"),
        ("[[machine]]\nflops = { float99 = 1e9 }", "'float99' is not an element type"),
        ("[[machine]]\ncount=65536\n[[machine]]", "65537 machines"),
        ("[[machine]]\ncaches = [[1024]]", r"caches is \[\[1024\]\]"),
        ("[[machine]]\ncaches = [[1024, 1e9], [1024, 2e9]]", "caches is"),
        ("[[machine]]\ncaches = [[1024, -1e9]]", "caches is -1"),
        ("[[machine]]\ncaches = 0", "caches is 0"),
        ("[[machine]]\ncrossing = 0", "crossing is 0"),
    ],
)
def test_a_file_that_describes_no_machines_is_refused(tmp_path, text, problem):
    path = tmp_path / "m.toml"
    path.write_text(text)
    with pytest.raises((PlanError, DtypeError), match=problem):
        machines(path)


MIB = 1 << 20


@pytest.mark.parametrize("last", [MIB, 8 * MIB, 400 * MIB])
def test_machines_of_any_host_read_back(last, tmp_path, monkeypatch):
    """Second caches of all cores together may hold as much as the last one does, or more."""
    module, path = import_module("tileweave.planner.machine.host"), tmp_path / "host.toml"
    monkeypatch.setattr(module, "cache_bytes", lambda: (MIB >> 5, MIB, last))
    monkeypatch.setattr(module, "_equal", module._equal.__wrapped__)
    for count in (1, 2, 64):
        used = machines(count)
        path.write_text(to_toml(used))
        assert machines(path) == used


def test_caches_in_code_increase_as_in_files():
    with pytest.raises(PlanError, match="sizes that increase"):
        Machine("a", MIB, caches=((2048, 1e9), (1024, 2e9)))


def test_a_rate_that_is_given_replaces_those_of_element_types(tmp_path):
    path = tmp_path / "m.toml"
    path.write_text("[[machine]]\nflops = { float16 = 4e11 }\nfunctions_per_second = 1e9")
    one = machines(path, flops_per_second=1e10).machines[0]
    assert (one.rate("float16"), one.rate("float32"), one.functions_per_second) == (1e10, 1e10, None)
    assert machines(path).machines[0].rate("float16") == 4e11


@pytest.mark.parametrize(
    ("shared", "processors", "caches"), [("0-7", 32, 4), ("0-3,64-67", 128, 16), ("5", 2, 2), ("", 4, 1)]
)
def test_last_caches_are_as_many_as_processors_need(shared, processors, caches, tmp_path, monkeypatch):
    (tmp_path / "index3").mkdir()
    (tmp_path / "index3" / "shared_cpu_list").write_text(shared + "\n")
    monkeypatch.setattr(host, "_CACHES", tmp_path)
    monkeypatch.setattr(host.os, "cpu_count", lambda: processors)
    assert host.last_caches.__wrapped__() == caches


def test_a_missing_file_is_refused():
    with pytest.raises(PlanError, match="cannot be read"):
        machines("no/such/file.toml")


def test_sizes_for_people():
    assert [size_text(n) for n in (0, 512, 1536, 300 << 20, 5 << 40)] == ["0 B", "512 B", "1.5 KiB", "300 MiB", "5 TiB"]
