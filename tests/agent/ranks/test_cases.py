"""Trainings of every style on several ranks: the losses are those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

import ranked
from agent.ranks.cases import CASES
from every import for_every

SCRIPT = Path(__file__).with_name("cases.py")
TOLERANCE = 1e-4
COARSE = {"autocast": 2e-3}
"""bfloat16 has three digits."""
WHOLE = {"OwnMean", "Kept", "Listed", "Codebook", "Modulated"}
"""Models that must not be cut, at least in one kind of call."""

Figures = dict[str, list[float]]


def figures(output: str) -> Figures:
    lines = [line.split() for line in output.splitlines() if line.startswith("CASE ")]
    return {words[1]: [float(word) for word in words[2:]] for words in lines}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, ranked.Ranked]:
    folder = tmp_path_factory.mktemp("ranks")
    return {size: ranked.run(folder, [str(SCRIPT)], size, 250.0, fork=False) for size in (1, 2)}


@pytest.mark.slow
def test_losses_are_those_of_one_process_and_what_mixes_rows_is_not_cut(
    runs: dict[int, ranked.Ranked],
) -> None:
    # losses are those of one process
    assert runs[1].codes == (0,), runs[1].errors
    assert runs[2].codes == (0, 0), (runs[2].refused, runs[2].faults, runs[2].errors)
    alone, together = figures(runs[1].outputs[0]), figures(runs[2].outputs[0])
    assert list(alone) == list(together)
    assert len(alone) == len(CASES)
    for_all = {}
    for name, losses in alone.items():
        bound = COARSE.get(name, TOLERANCE)
        if together[name] != pytest.approx(losses, rel=bound, abs=1e-6):
            for_all[name] = (losses, together[name])
    assert for_all == {}
    # all ranks print the same
    assert runs[2].outputs[0] == runs[2].outputs[1]
    # what mixes rows is not cut
    regions = runs[2].seen.regions
    whole = {region.model for region in regions if not region.cut}
    assert whole >= WHOLE
    reasons = {region.model: region.reason for region in regions if not region.cut}
    assert "depend on each other" in reasons["OwnMean"]
    assert "Kept.extra" in reasons["Kept"]
    assert "Listed.extra" in reasons["Listed"]
    assert "buffers" in reasons["Codebook"]
    assert all(region.reason for region in regions if not region.cut)
    # what can be cut is
    cut = {region.model for region in runs[2].seen.regions if region.cut}
    assert {"Sequential", "LossInside", "Tagger", "Checkpointed", "DataParallel"} <= cut
    assert {"ByChance", "Positions", "TransformerEncoderLayer"} <= cut


@pytest.mark.thorough
@for_every([3, 4], str)
def test_more_ranks(size: int, tmp_path: Path) -> None:
    folder = tmp_path / str(size)
    alone = ranked.run(folder, [str(SCRIPT)], 1, 250.0, fork=False)
    together = ranked.run(folder, [str(SCRIPT)], size, 250.0, fork=False)
    assert together.codes == (0,) * size, (together.refused, together.faults, together.errors)
    for name, losses in figures(alone.outputs[0]).items():
        bound = COARSE.get(name, TOLERANCE)
        assert figures(together.outputs[0])[name] == pytest.approx(losses, rel=bound, abs=1e-6), (
            name
        )
