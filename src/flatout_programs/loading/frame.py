"""A model that flatout exported: `model = load()`, then `model(array)` or `model(name=array)`.

The answer is a dictionary from output names to numpy arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


class Model:
    """The loaded model; `inputs` and `outputs` describe its tensors."""

    def __init__(self, manifest: dict[str, Any], run: Any) -> None:
        import numpy

        self.manifest = manifest
        self.inputs = manifest["inputs"]
        self.outputs = manifest["outputs"]
        self._run = run
        self._asarray = numpy.ascontiguousarray
        self._can_cast = numpy.can_cast
        self._names = [item["name"] for item in self.inputs]
        self._wanted = [
            (item["name"], numpy.dtype(item["dtype"]), item["shape"]) for item in self.inputs
        ]
        self._output_names = [item["name"] for item in self.outputs]

    def __call__(self, *arrays: Any, **named: Any) -> dict[str, Any]:
        """Run the model once. Raises ValueError if the arrays do not fit its inputs."""
        if named:
            arrays = self._in_order(arrays, named)
        if len(arrays) != len(self._wanted):
            raise ValueError(
                f"the model takes {len(self._wanted)} arrays ({', '.join(self._names)}), not"
                f" {len(arrays)}"
            )
        outputs = self._run([self._checked(*pair) for pair in zip(arrays, self._wanted)])
        return dict(zip(self._output_names, outputs))

    def _in_order(self, arrays: Any, named: dict[str, Any]) -> tuple[Any, ...]:
        unknown = [name for name in named if name not in self._names[len(arrays) :]]
        missing = [name for name in self._names[len(arrays) :] if name not in named]
        if unknown or missing:
            raise ValueError(
                "the model takes {}; {}".format(
                    ", ".join(self._names),
                    "; ".join(
                        [
                            *(f"{name} is not among them, or given twice" for name in unknown),
                            *(f"{name} is missing" for name in missing),
                        ]
                    ),
                )
            )
        return (*arrays, *(named[name] for name in self._names[len(arrays) :]))

    def _checked(self, array: Any, wanted: Any) -> Any:
        name, dtype, shape = wanted
        array = self._asarray(array) if shape else numpy_scalar(array)
        if array.dtype != dtype:
            if not self._can_cast(array.dtype, dtype, "same_kind"):
                raise ValueError(f"{name} takes {dtype}, not {array.dtype}")
            array = array.astype(dtype)
        if not array.flags.writeable:
            array = array.copy()  # torch does not share memory that it must not write to
        if len(array.shape) != len(shape) or any(
            size is not None and size != there for size, there in zip(shape, array.shape)
        ):
            raise ValueError(
                "{} has the shape ({}), not {}".format(
                    name,
                    ", ".join("any" if size is None else str(size) for size in shape),
                    tuple(array.shape),
                )
            )
        return array


def numpy_scalar(value: Any) -> Any:
    """A value as an array without dimensions."""
    import numpy

    return numpy.asarray(value)


def load(folder: Any = None, threads: int | None = None, check: bool = False) -> Model:
    """The model of this folder.

    threads: threads of one call, or None for the cores that this process may use. check: compare
    the files with their hashes first. Raises RuntimeError if the folder or this machine does not
    fit.
    """
    folder = Path(folder) if folder is not None else Path(__file__).resolve().parent
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if check:
        check_files(folder, manifest)
    try:
        # `start` is the backend's own part, below.
        run = start(folder, manifest["options"], threads or cores())  # type: ignore[name-defined]  # noqa: F821
    except ImportError as error:
        raise RuntimeError(
            "this model needs {} ({}): {}".format(error.name, error, manifest.get("install", ""))
        ) from error
    return Model(manifest, run)


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise RuntimeError for the first file that differs from the one written."""
    for name, wanted in manifest["files"].items():
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if found != wanted:
            raise RuntimeError(f"{name} is not the file that was exported (sha256 {found})")


def cores() -> int:
    """Cores that this process may use: its affinity, and the quota of its container.

    A quota of 2.5 cores counts as 2: one more thread would wait for the next period in each call.
    """
    affinity: Any = getattr(os, "sched_getaffinity", None)  # not on every system
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    try:
        quota, period = CPU_MAX.read_text(encoding="ascii").split()
        count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return count
