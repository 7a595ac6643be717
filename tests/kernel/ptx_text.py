"""One PTX instruction per row of the atom table, its operand lists counted from the row's layouts.

``python tests/kernel/ptx_text.py`` asks the ptxas on PATH which targets accept each row, and rewrites the data.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path

from tileweave.kernel.atoms import atom, names

DATA = Path(__file__).parent / "data"
TARGETS = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103a", "sm_120", "sm_120a")
CLASSES = {"f32": "f", "f64": "d"}


def registers(operand, first, letter=None):
    """A braced list of as many registers as the operand's layout says."""
    letter = letter or CLASSES.get(operand.dtype, "r")
    return "{" + ", ".join(f"%{letter}{first + i}" for i in range(operand.registers)) + "}"


def instruction(name):
    """The instruction with operands, as PTX."""
    row = atom(name)
    if row.family == "mma":
        return f"{name} " + ", ".join(
            registers(row[role], 0 if role in "dc" else 300 + 8 * (role == "b")) for role in "dabc"
        )
    if row.family == "wgmma":
        kind = name.split(".")[6]
        wide = "" if name.split(".")[5] == "s32" else ", 1, 1" + (", 0, 0" if kind in ("f16", "bf16") else "")
        return f"{name} {registers(row['d'], 0)}, %l1, %l2, 1{wide}"
    if row.family == "tcgen05.cp":
        return f"{name} [%r1], %l1"
    if "block_scale" in name:
        return f"{name} [%r1], %l1, %l2, %r2, [%r3], [%r4], %p1"
    if row.family == "tcgen05.mma":
        a = "[%r3]" if name.endswith(".tensor_a") else "%l1"
        return f"{name.removesuffix('.tensor_a')} [%r1], {a}, %l2, %r2, %p1"
    if row.family in ("ldmatrix", "stmatrix"):
        d = registers(row["d"], 4)
        return f"{name} {d}, [%r1]" if row.family == "ldmatrix" else f"{name} [%r1], {d}"
    if row.family == "movmatrix":
        return f"{name} %r1, %r2"
    if row.family == "cp.async":
        size = name.rsplit(".", 1)[1]
        return f"{name.rsplit('.', 1)[0]} [%r1], [%l1], {size}"
    if row.family == "bulk copy":
        if "mbarrier" in name:
            source = "%r4" if "shared::cta" in name else "%l1"
            return f"{name} [%r1], [{source}], %r2, [%r3]" + (", %h1" if "multicast" in name else "")
        return f"{name} [%l1], [%r1], %r2"
    if row.family == "tensor copy":
        place = "{" + ", ".join(f"%r{9 + i}" for i in range(int(name.split("tensor.")[1][0]))) + "}"
        if "mbarrier" in name:
            return f"{name} [%r1], [%l1, {place}], [%r3]" + (", %h1" if "multicast" in name else "")
        return f"{name} [%l1, {place}], [%r1]"
    if row.family in ("tcgen05.ld", "tcgen05.st"):
        d, half = registers(row["d"], 4), ", 16" if "x32bx2" in name else ""
        return f"{name} {d}, [%r1]{half}" if row.family == "tcgen05.ld" else f"{name} [%r1]{half}, {d}"
    if row.family == "vector":
        letter = {"f32": "f", "b64": "l", "b16": "h", "b8": "h"}[name.rsplit(".", 1)[1]]
        width = row["d"].elements
        d = ", ".join(f"%{letter}{4 + i}" for i in range(width))
        d = "{" + d + "}" if width > 1 else d
        return f"{name} {d}, [%l1]" if name.startswith("ld") else f"{name} [%l1], {d}"
    if row.family == "multimem":
        letter = {"f32": "f", "f64": "d", "u64": "l"}.get(row["d"].dtype, "r")
        d = registers(row["d"], 4, letter)
        return f"{name} {d if row['d'].registers > 1 else d.strip('{}')}, [%l1]"
    if row.family == "shuffle":
        return f"{name} %r1, %r2, %r3, 31, -1"
    if row.family == "reduction":
        return f"{name} %f1, %f2, -1" if name.endswith("f32") else f"{name} %r1, %r2, -1"
    if row.family == "registers":
        return f"{name} 40"
    return f"{name} %r1|%p1, -1"


def module(rows, target):
    """A PTX module with one function per row; function i holds row i alone on its line."""
    declared = (
        ".reg .b32 %r<400>; .reg .f32 %f<400>; .reg .f64 %d<400>; .reg .b64 %l<99>; .reg .b16 %h<99>; .reg .pred %p<9>;"
    )
    lines = [".version 9.0", f".target {target}", ".address_size 64"]
    for i, name in enumerate(rows):
        lines += [f".visible .entry f{i}() {{ {declared}", instruction(name) + ";", "ret; }"]
    return "\n".join(lines) + "\n"


def accepted(rows, target):
    """The rows that ptxas accepts for a target."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "x.ptx"
        refused, left = set(), list(rows)
        while left:
            source.write_text(module(left, target))
            done = subprocess.run(
                ["ptxas", f"-arch={target}", str(source), "-o", "/dev/null"],
                capture_output=True,
                text=True,
                check=False,
            )
            lines = {int(n) for n in re.findall(r"line (\d+); (?:error|fatal)", done.stdout + done.stderr, re.I)}
            if done.returncode == 0:
                break
            bad = {left[(line - 4) // 3] for line in lines if line >= 4}
            if not bad:
                raise SystemExit(done.stderr[:2000])
            refused |= bad
            left = [name for name in left if name not in bad]
        return [name for name in rows if name not in refused]


def record_verdicts():
    rows = list(names())
    version = (
        subprocess.run(["ptxas", "--version"], capture_output=True, text=True, check=True)
        .stdout.split("release ")[1]
        .split(",")[0]
    )
    verdicts = {name: [] for name in rows}
    for target in TARGETS:
        for name in accepted(rows, target):
            verdicts[name].append(target)
    groups = {}
    for name, targets in verdicts.items():
        groups.setdefault(" ".join(targets), []).append(name)
    (DATA / "ptxas.json").write_text(json.dumps({"ptxas": version, "accepted": groups}, indent=1) + "\n")


if __name__ == "__main__":
    record_verdicts()
