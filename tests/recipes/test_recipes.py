"""The recipes train, from a fresh folder, as a user runs them; and are short enough to read."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TINY = {
    "resnet50": "depths=(1, 1, 1, 1), width=8, size=32, batch=8, steps={steps}",
    "bert_large": "layers=1, width=32, heads=2, context=32, batch=32, steps={steps}",
    "gpt3_small": "layers=1, width=32, heads=2, context=32, batch=16, steps={steps}",
}
"""The smallest form of each."""
CALL = {
    "resnet50": "recipe.train(tiny, data.pictures('pictures', 60), 'out')",
    "bert_large": "recipe.train(tiny, 'out', small=True)",
    "gpt3_small": "recipe.train(tiny, 'out', small=True)",
}


@pytest.fixture
def recipes(root: Path, tmp_path: Path) -> Path:
    """A copy in a folder of its own: it needs nothing of the repository."""
    folder = tmp_path / "recipes"
    shutil.copytree(root / "examples/recipes", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def train(recipes: Path, name: str, steps: int, times: int = 1) -> list[tuple[float, str]]:
    """The recipe's smallest form, `times` in a row in one process, into the same folder.

    Of each time the result and what it printed. Compiling, which takes most of a minute, is tested
    where it is made.
    """
    program = (
        f"import dataclasses, data, {name} as recipe\n"
        f"tiny = dataclasses.replace(recipe.SMALL, {TINY[name].format(steps=steps)})\n"
        "if __name__ == '__main__':\n"
        f"    for _ in range({times}): print('result', {CALL[name]})\n"
    )
    (recipes / "tiny.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "tiny.py"],
        cwd=recipes,
        env={**os.environ, "PYTHONWARNINGS": "error::UserWarning", "TORCHDYNAMO_DISABLE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    runs = re.findall(r"(.*?)^result (\S+)$", done.stdout, re.MULTILINE | re.DOTALL)
    assert len(runs) == times
    return [(float(result), printed) for printed, result in runs]


def losses(printed: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", printed)}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", TINY)
def test_recipe_tells_its_options(recipes: Path, name: str) -> None:
    command = [sys.executable, f"{name}.py", "--help"]
    done = subprocess.run(command, cwd=recipes, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--small" in done.stdout


@pytest.mark.thorough
def test_resnet_trains(recipes: Path) -> None:
    [(accuracy, printed)] = train(recipes, "resnet50", 50)
    assert 0 <= accuracy <= 1
    assert losses(printed)[50] < 2.4  # 10 classes: guessing costs 2.30, wild weights far more


@pytest.mark.thorough
def test_bert_learns(recipes: Path) -> None:
    [(accuracy, printed)] = train(recipes, "bert_large", 100)
    found = losses(printed)
    assert found[100] < found[50] < 8.3  # 4096 words: guessing costs 8.3
    assert accuracy > 0.1


@pytest.mark.thorough
def test_gpt_learns_and_goes_on_where_it_was(recipes: Path) -> None:
    (first, printed), (again, nothing) = train(recipes, "gpt3_small", 100, times=2)
    assert list(losses(printed)) == [50, 100]
    assert losses(printed)[100] < losses(printed)[50] < 8.3
    assert losses(nothing) == {}  # it was done already
    assert again == first


def test_text_comes_back_as_it_was(recipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(recipes))
    data = importlib.import_module("data")
    words = [*data.words(packages=False)[:20_000], "naïve", "✓"]
    known = data.Vocabulary(words, 600)
    tokens = known.encode(words)
    assert tokens.max() < 600
    assert len(tokens) > len(words)  # some are spelt in bytes
    assert known.decode(tokens.tolist()) == "".join(words)


def test_pictures_that_are_there_stay(recipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(recipes))
    data = importlib.import_module("data")
    folder = Path(data.pictures(recipes / "pictures", 6))
    before = {path: path.read_bytes() for path in folder.rglob("*.jpg")}
    assert sorted(path.parent.parent.name for path in before) == ["train"] * 4 + ["val"] * 2
    changed, gone = sorted(before)[:2]
    changed.write_bytes(b"mine")
    gone.unlink()
    data.pictures(folder, 6)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == {
        **before,
        changed: b"mine",
    }
