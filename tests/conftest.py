"""What all tests share: the repository's root, GPU tests only where there is a GPU, and the same
few examples in each run of a property test (`make thorough` draws new ones, and more)."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ("processes",)
ROOT = Path(__file__).parent.parent

QUICK_COMPILER = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_VEC_ISA_OK": "0",
}
"""For a few small kernels, workers that import torch, headers that are compiled first and trials of
the CPU's instructions are most of a compiler's work. Programs that tests start inherit it."""
os.environ.update(QUICK_COMPILER)

settings.register_profile("same", derandomize=True, max_examples=40, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def collector_stays_as_it_was() -> Iterator[None]:
    """A test that leaves the collection of garbage paused breaks many that come after it."""
    before = gc.isenabled(), gc.get_threshold()
    yield
    after = gc.isenabled(), gc.get_threshold()
    gc.set_threshold(*before[1])
    (gc.enable if before[0] else gc.disable)()
    assert after == before, "left in another state"


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _leave_most_of_many(items)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays: a collection of garbage, which many tests ask for, passes it by."""
    gc.collect()
    gc.freeze()


def _leave_most_of_many(items: list[pytest.Item]) -> None:
    """All cases but the first n of a test with `few(n)` are thorough."""
    seen: Counter[str] = Counter()
    for item in items:
        few = item.get_closest_marker("few")
        if few is not None:
            name = item.nodeid.partition("[")[0]
            seen[name] += 1
            if seen[name] > few.args[0]:
                item.add_marker(pytest.mark.thorough)


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
