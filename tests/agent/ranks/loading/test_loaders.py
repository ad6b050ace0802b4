"""Loaders of every style on several ranks: the batches are those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

import ranked
from flatout_agent import wire

SCRIPT = Path(__file__).with_name("loaders.py")
SHARED = {
    "Plain", "Odd", "Working", "Persistent", "Named", "Boxes", "AtOnce", "Nested", "Single",
    "Batched", "Encoded", "Again", "Trained",
}  # fmt: skip
SAMPLES = {
    "Ragged": "",
    "RaggedWorking": "",
    "Sorted": "depends on the others",
    "Mixed": "draws random numbers",
}
"""Shared as well, but every rank collates all samples: for a reason that says this."""
ALL = {
    "Unbatched": "single samples",
    "Counting": "counts what is read (dataset.read)",
    "Stream": "not a map-style dataset",
    "Bad": "read",
    "BadWorking": "read",
    "Threaded": "in a thread",
    "Noisy": "draws random numbers",
    "NoisyRagged": "draws random numbers",
    "LateNoisy": "draws random numbers",
}
"""Each ends so, with a reason that says this."""
WERE_SHARED = {"Bad", "BadWorking", "Threaded", "LateNoisy"}
ROUNDED = ("trained", "models_in_the_dataset")
"""What is computed, not read, is equal but for rounding."""


def lines(output: str, kind: str) -> dict[str, list[str]]:
    found = [line.split() for line in output.splitlines() if line.startswith(kind)]
    return {words[1]: words[2:] for words in found}


def loaders(done: ranked.Ranked) -> dict[str, wire.LoaderSeen]:
    """The last account of a rank; of one that was made several times the last."""
    return {loader.dataset: loader for loader in done.seen.loaders}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, ranked.Ranked]:
    folder = tmp_path_factory.mktemp("loaders")
    return {size: ranked.run(folder, [str(SCRIPT)], size, 200.0, fork=False) for size in (1, 2)}


@pytest.mark.slow
def test_batches_are_those_of_one_process(runs: dict[int, ranked.Ranked]) -> None:
    assert runs[1].codes == (0,), runs[1].errors
    assert runs[2].codes == (0, 0), (runs[2].refused, runs[2].faults, runs[2].errors)
    alone, together = (lines(runs[size].outputs[0], "LOADER") for size in (1, 2))
    for name in ROUNDED:
        first, second = (list(map(float, each.pop(name))) for each in (alone, together))
        assert first == pytest.approx(second, rel=1e-5)
    assert len(alone) > 19
    assert {name for name in alone if together[name] != alone[name]} == set()


@pytest.mark.slow
def test_all_ranks_have_the_same_batches(runs: dict[int, ranked.Ranked]) -> None:
    assert runs[2].outputs[0] == runs[2].outputs[1]


@pytest.mark.slow
def test_what_was_shared_and_why_not(runs: dict[int, ranked.Ranked]) -> None:
    seen = loaders(runs[2])
    assert {name for name, loader in seen.items() if loader.shared} == SHARED | set(SAMPLES)
    for name, reason in SAMPLES.items():
        assert seen[name].samples, name
        assert reason in seen[name].samples
    assert not any(seen[name].samples for name in SHARED)
    for name, reason in ALL.items():
        assert reason in seen[name].reason, name
    assert {name for name in ALL if seen[name].batches} == WERE_SHARED
    assert not runs[2].faults


@pytest.mark.slow
def test_a_rank_that_rehearses_alone_reads_its_own_rows(tmp_path: Path) -> None:
    cases = ["plain", "dictionaries_with_strings", "sorted_rows", "lists_of_targets"]
    done = ranked.alone(tmp_path, [str(SCRIPT), *cases], 1, 2)
    assert done.codes == (0,), (done.refused, done.faults, done.errors)
    assert all(loader.shared and loader.batches for loader in loaders(done).values())
    assert len(loaders(done)) == len(cases)


@pytest.mark.thorough
def test_workers_that_are_not_forked(tmp_path: Path) -> None:
    words = [str(SCRIPT), "spawned_workers"]
    alone, together = (ranked.run(tmp_path, words, size, 120.0, fork=False) for size in (1, 2))
    assert together.codes == (0, 0), (together.refused, together.faults, together.errors)
    assert together.outputs == alone.outputs * 2
    assert loaders(together)["Spawned"].shared
    assert loaders(together)["Spawned"].batches


@pytest.mark.thorough
def test_three_ranks(tmp_path: Path) -> None:
    alone = ranked.run(tmp_path, [str(SCRIPT)], 1, 200.0, fork=False)
    together = ranked.run(tmp_path, [str(SCRIPT)], 3, 200.0, fork=False)
    assert together.codes == (0,) * 3, (together.refused, together.faults, together.errors)
    first, second = (lines(done.outputs[0], "LOADER") for done in (alone, together))
    for each in (first, second):
        for name in ROUNDED:
            del each[name]
    assert {name for name in first if second[name] != first[name]} == set()
