"""For every kernel a problem at sizes that divide nothing and NumPy's answer, in types that the interpreter knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.backends.triton.run import interpret
from tileweave.layout.lego import Filled

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class LaunchTrial:
    """A problem and its answer.

    Args:
        arrays: parameter -> array, or ``"*p"`` -> arrays.
        sizes: name -> number, for those that the text takes.
        wanted: result -> its values.
        tolerance: the greatest relative or absolute difference.
    """

    arrays: Mapping[str, Any]
    sizes: Mapping[str, int]
    wanted: Mapping[str, Array]
    tolerance: float


def run_trial(name: str, filled: Filled, options: Mapping[str, Any]) -> tuple[LaunchTrial, float]:
    """Runs a kernel's text in Triton's interpreter; the problem, and how far its worst result is off.

    Raises:
        BackendError: Triton is missing, or the kernel fails.
    """
    trial = _TRIALS[name](options)
    scalars = {size: trial.sizes[size] for size in filled.arguments}
    found = interpret(filled.text, name, filled.launch(**trial.sizes), trial.arrays, scalars)
    worst = 0.0
    for key, wanted in trial.wanted.items():
        values = found[key].astype(np.float64)
        if np.isnan(values).any():
            return trial, float("inf")
        worst = max(worst, float((np.abs(values - wanted) / (1 + np.abs(wanted))).max()))
    return trial, worst


def _sizes(options: Mapping[str, Any], **defaults: int) -> dict[str, int]:
    return {name: int(options.get(name, n)) for name, n in defaults.items()}


def _matmul(options: Mapping[str, Any]) -> LaunchTrial:
    sizes = _sizes(options, M=100, N=70, K=90)
    rng = np.random.default_rng(1)
    a = rng.standard_normal((sizes["M"], sizes["K"])).astype(np.float16)
    b = rng.standard_normal((sizes["K"], sizes["N"])).astype(np.float16)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    stored = {
        f"{key}_ptr": np.ascontiguousarray(x.T) if options.get(key) == "col" else x for key, x in (("a", a), ("b", b))
    }
    return LaunchTrial(stored | {"c_ptr": np.full(wanted.shape, np.nan, np.float16)}, sizes, {"c_ptr": wanted}, 2e-2)


def _softmax(options: Mapping[str, Any]) -> LaunchTrial:
    sizes = _sizes(options, M=7, N=100)
    x = np.random.default_rng(2).standard_normal((sizes["M"], sizes["N"])).astype(np.float32)
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    wanted = e / e.sum(axis=1, keepdims=True)
    return LaunchTrial({"x_ptr": x, "y_ptr": np.full_like(x, np.nan)}, sizes, {"y_ptr": wanted}, 1e-5)


def _normalised(options: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Array], Array]:
    """Sizes, the arrays of layer normalisation, and the normalised input."""
    sizes = _sizes(options, M=13, N=75)
    rng = np.random.default_rng(3)
    x, dy = (rng.standard_normal((sizes["M"], sizes["N"])).astype(np.float32) for _ in range(2))
    w, b = (rng.standard_normal(sizes["N"]).astype(np.float32) for _ in range(2))
    mean, rstd = x.mean(axis=1), 1 / np.sqrt(x.var(axis=1) + float(options.get("eps", 1e-5)))
    arrays = {"x_ptr": x, "w_ptr": w, "b_ptr": b, "dy_ptr": dy, "mean_ptr": mean, "rstd_ptr": rstd.astype(np.float32)}
    return sizes, arrays, (x - mean[:, None]) * rstd[:, None]


def _layernorm(options: Mapping[str, Any]) -> LaunchTrial:
    sizes, given, unit = _normalised(options)
    arrays = {key: given[key] for key in ("x_ptr", "w_ptr", "b_ptr")}
    wanted = {"y_ptr": unit * given["w_ptr"] + given["b_ptr"], "mean_ptr": given["mean_ptr"]}
    wanted["rstd_ptr"] = given["rstd_ptr"]
    return LaunchTrial(
        arrays | {key: np.full_like(v, np.nan, np.float32) for key, v in wanted.items()}, sizes, wanted, 1e-3
    )


def _layernorm_dx(options: Mapping[str, Any]) -> LaunchTrial:
    sizes, given, unit = _normalised(options)
    g = given["w_ptr"] * given["dy_ptr"]
    along = (unit * g).mean(axis=1, keepdims=True)
    wanted = (g - unit * along - g.mean(axis=1, keepdims=True)) * given["rstd_ptr"][:, None]
    arrays = {key: given[key] for key in ("x_ptr", "w_ptr", "dy_ptr", "mean_ptr", "rstd_ptr")}
    return LaunchTrial(arrays | {"dx_ptr": np.full_like(given["x_ptr"], np.nan)}, sizes, {"dx_ptr": wanted}, 1e-3)


def _layernorm_dwdb(options: Mapping[str, Any]) -> LaunchTrial:
    sizes, given, unit = _normalised(options)
    arrays = {key: given[key] for key in ("x_ptr", "dy_ptr", "mean_ptr", "rstd_ptr")}
    wanted = {"dw_ptr": (given["dy_ptr"] * unit).sum(axis=0), "db_ptr": given["dy_ptr"].sum(axis=0)}
    return LaunchTrial(arrays | {key: np.full(sizes["N"], np.nan, np.float32) for key in wanted}, sizes, wanted, 1e-3)


def _grouped_gemm(options: Mapping[str, Any]) -> LaunchTrial:
    rng = np.random.default_rng(4)
    problems = [tuple(int(n) for n in rng.integers(5, 70, 3)) for _ in range(int(options.get("groups", 4)))]
    a = [rng.standard_normal((m, k)).astype(np.float16) for m, _n, k in problems]
    b = [rng.standard_normal((k, n)).astype(np.float16) for _m, n, k in problems]
    c = [np.full((m, n), np.nan, np.float16) for m, n, _k in problems]
    wanted = {
        f"c_ptrs.{g}": x.astype(np.float64) @ y.astype(np.float64) for g, (x, y) in enumerate(zip(a, b, strict=True))
    }
    arrays = {"*a_ptrs": a, "*b_ptrs": b, "*c_ptrs": c, "sizes_ptr": np.array(problems, np.int32)}
    return LaunchTrial(arrays, {}, wanted, 2e-2)


_TRIALS: dict[str, Callable[[Mapping[str, Any]], LaunchTrial]] = {
    "matmul": _matmul,
    "softmax": _softmax,
    "layernorm": _layernorm,
    "layernorm_dx": _layernorm_dx,
    "layernorm_dwdb": _layernorm_dwdb,
    "grouped_gemm": _grouped_gemm,
}
