"""`flatout compare`: profiles, folders of runs and traces; the threshold; what is no profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands.called import Flatout
from flatout.reporting.profile import document
from reporting import profiled_examples as examples

TRACES = Path(__file__).parent.parent / "traces"


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with slow.json and fast.json; also as the folder of a run, fast/profile.json."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fast").mkdir()
    for name, profiled in (("slow", examples.naive()), ("fast", examples.healthy())):
        text = json.dumps(document.document(profiled))
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "fast" / "profile.json").write_text((tmp_path / "fast.json").read_text())
    return tmp_path


def test_two_profiles(profiles: Path, flat: Flatout) -> None:
    done = flat("compare", "slow.json", "fast.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("verdict   412 ms -> 100 ms per step")


@pytest.mark.parametrize("words", [["slow.json", "fast"], ["slow.json", "fast.json"]])
def test_json_and_the_folder_of_a_run(profiles: Path, words: list[str], flat: Flatout) -> None:
    answer = json.loads(flat.printed("compare", *words, "--json"))
    assert answer["schema"] == "flatout.profile-compare/2"
    assert answer["ratio"] > 4


@pytest.mark.slow
def test_traces_are_analysed_first(flat: Flatout) -> None:
    paths = [str(TRACES / f"{name}.json.gz") for name in ("v100_train", "a100_train")]
    answer = json.loads(flat.printed("compare", *paths, "--json"))
    assert answer["before_ms"] == pytest.approx(96.7, rel=0.01)
    assert answer["after_ms"] == pytest.approx(77.5, rel=0.01)


@pytest.mark.parametrize(
    ("before", "after", "threshold", "code"),
    [
        ("fast", "slow", "10%", 1),
        ("fast", "slow", "0.1", 1),
        ("fast", "slow", "311%", 1),
        ("fast", "slow", "312%", 0),
        ("slow", "fast", "0%", 0),
        ("slow", "slow", "0", 0),
    ],
)
def test_exit_code_1_above_the_threshold(
    before: str, after: str, threshold: str, code: int, profiles: Path, flat: Flatout
) -> None:
    """The slow one takes 411.74 ms, the fast one 100 ms."""
    done = flat("compare", "--fail-above", threshold, f"{before}.json", f"{after}.json")
    assert done.returncode == code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["slow.json"], "Missing argument 'AFTER'"),
        (["slow.json", "absent.json"], "absent.json: No such file"),
        (["slow.json", "other.json"], "other.json: this is of schema None"),
        (["slow.json", "script.py"], "script.py is not JSON"),
        (["--fail-above", "10", "slow.json", "fast.json"], "--fail-above '10' is neither"),
    ],
)
def test_wrong_usage(words: list[str], message: str, profiles: Path, flat: Flatout) -> None:
    (profiles / "other.json").write_text('{"a": 1}')
    (profiles / "script.py").write_text("import torch")
    done = flat("compare", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "\n  next: " in done.stderr
