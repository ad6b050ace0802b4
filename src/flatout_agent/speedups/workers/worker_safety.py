"""Whether a DataLoader's work can be moved into worker processes without changing its data.

The reasons against it are for the user to read. No code of the user is called, and nothing is
fetched.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from flatout_agent.speedups.workers.main_guard import main_guard
from flatout_agent.speedups.workers.reachable import reachable

SAMPLE_BYTES = 600_000
"""Assumed if a dataset does not show its samples' size: a 3x224x224 float32 image."""


def start_method() -> str:
    """How Python starts workers here, without fixing that choice for the rest of the program."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def held_by_data(loader: Any, method: str) -> str | None:
    """What in the dataset or the collate function must not be copied to a worker, or None."""
    for name in ("dataset", "collate_fn"):
        for path, value in reachable(getattr(loader, name), name):
            reason = _cannot_be_shared(path, value, method)
            if reason is not None:
                return reason
    return None


def random_generators(loader: Any) -> list[Any]:
    """Random generators held by the dataset itself, whose copies would all draw the same."""
    generators = []
    for name in ("dataset", "collate_fn"):
        for _, value in reachable(getattr(loader, name), name):
            if _is_generator_of_numbers(value):
                generators.append(value)
    return generators


def reseed(generator: Any, seed: int) -> None:
    """Let a generator draw other numbers. seed: at most 2**32 - 1."""
    if hasattr(generator, "manual_seed"):
        generator.manual_seed(seed)
    elif hasattr(generator, "bit_generator"):
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state
    else:
        generator.seed(seed)


def _is_generator_of_numbers(value: Any) -> bool:
    kind = type(value)
    if kind.__module__ == "random":
        return kind.__name__ == "Random"
    if kind.__module__.startswith("numpy.random"):
        return kind.__name__ in ("Generator", "RandomState")
    return kind.__module__ == "torch._C" and kind.__name__ == "Generator"


def _cannot_be_shared(path: str, value: Any, method: str) -> str | None:
    if hasattr(type(value), "untyped_storage") and value.device.type not in ("cpu", "meta"):
        return f"{path} is already on {value.device}; a worker could not use it"
    if isinstance(value, types.GeneratorType) or (
        hasattr(type(value), "__next__") and not isinstance(value, io.IOBase)
    ):
        return f"{path} is an iterator; each worker would read it on its own"
    if method == "fork" and _is_open_file(value):
        return f"{path} is an open file; forked workers would share its position"
    if method != "fork" and _is_generator_of_numbers(value):
        return f"{path} is a random generator; every spawned worker would draw the same numbers"
    return None


def _is_open_file(value: Any) -> bool:
    kind = f"{type(value).__module__}.{type(value).__name__}"
    if kind.startswith(("h5py.", "lmdb.", "sqlite3.", "netCDF4.", "rasterio.")):
        return not kind.startswith(("sqlite3.Row", "h5py.h5t"))
    if not isinstance(value, io.IOBase) or value in (sys.stdin, sys.stdout, sys.stderr):
        return False
    try:
        return not value.closed and value.readable() and value.fileno() >= 0
    except (OSError, ValueError):  # io.BytesIO and the like have no descriptor to share
        return False


class _Sink:
    """A file that only counts what is written to it, and the arrays beside it."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: Any) -> int:
        self.bytes += len(data)
        return len(data)

    def take(self, array: pickle.PickleBuffer) -> None:
        self.bytes += array.raw().nbytes


class _Probe(pickle.Pickler):
    """Pickles as spawn would, but leaves out the contents of tensors, which workers share, and of
    arrays.
    """

    def reducer_override(self, value: Any) -> Any:
        if hasattr(type(value), "untyped_storage"):
            return (int, ())
        return NotImplemented


class Spawning(NamedTuple):
    """What spawned workers would be given."""

    reason: str | None = None
    """Why they cannot be."""
    copied_bytes: int = 0
    """The loader's parts of which each would have a copy."""


def cannot_be_spawned(loader: Any) -> str | None:
    """Why spawned workers cannot import the main script or receive the loader's parts."""
    return spawning(loader).reason


def spawning(loader: Any) -> Spawning:
    """Whether spawned workers can import the main script and receive the loader's parts."""
    guard = main_guard()
    if guard is None:
        return Spawning("the program is not a script file, so spawned workers could not import it")
    if not guard:
        return Spawning(
            'the script trains outside of `if __name__ == "__main__":`, so spawned workers would'
        )
    sink = _Sink()
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        try:
            _Probe(sink, 5, buffer_callback=sink.take).dump(getattr(loader, name))
        except Exception as error:  # noqa: PERF203 - the user's own __reduce__ may raise anything
            what = f"{type(error).__name__}: {error}"
            return Spawning(f"{name} cannot be pickled for spawned workers ({what})")
    return Spawning(None, sink.bytes)


def too_little_shared_memory(
    loader: Any, batches: int, free: Callable[[], int | None] | None = None
) -> str | None:
    """Why /dev/shm cannot hold `batches` batches at once, or None if it can or there is no limit.

    A container's default is 64 MiB, and a worker that runs out of it dies of a bus error.
    """
    available = (free or _free_shared_memory)()
    size = batch_bytes(loader)
    if available is None or size is None or size * batches <= available:
        return None
    return (
        f"/dev/shm has {available / 1e6:.0f} MB free, {batches} batches under way may need "
        f"{size * batches / 1e6:.0f} MB"
    )


def batch_bytes(loader: Any) -> int | None:
    """Bytes of one batch, from the tensors of the dataset if it shows them."""
    size = getattr(loader, "batch_size", None) or getattr(loader.batch_sampler, "batch_size", None)
    if not isinstance(size, int):
        return None
    try:
        count = len(loader.dataset)
    except TypeError:
        return size * SAMPLE_BYTES
    per_sample = sum(
        value.nbytes // count
        for _, value in reachable(loader.dataset, "dataset")
        if getattr(value, "shape", None) and isinstance(getattr(value, "nbytes", None), int)
        if count and len(value) == count
    )
    return size * (int(per_sample) or SAMPLE_BYTES)


def _free_shared_memory() -> int | None:
    if sys.platform != "linux":
        return None
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
