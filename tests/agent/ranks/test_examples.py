"""The examples and the recipes on two ranks: they print what one process prints."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import ranked

pytestmark = pytest.mark.slow

FIGURE = re.compile(r"(?:loss|accuracy|result) ([-\d.]+)")
EXAMPLES = {
    "bert": "--data {folder}/data --layers 2 --width 64 --steps 30 --dropout 0 --batch-size 8",
    "text": "--layers 2 --heads 2 --width 64 --context 32 --steps 30 --eval-every 10",
    "images": "--data {folder}/data --size 32 --epochs 1 --batch-size 64",
}
RECIPES = {
    "resnet50": (
        "depths=(1, 1, 1, 1), width=8, size=32, batch=8, steps=6",
        "recipe.train(tiny, data.pictures('pictures', 60), 'out')",
    ),
    "bert_large": (
        "layers=1, width=32, heads=2, context=32, batch=32, steps=6",
        "recipe.train(tiny, 'out', small=True)",
    ),
    "gpt3_small": (
        "layers=1, width=32, heads=2, context=32, batch=16, steps=6",
        "recipe.train(tiny, 'out', small=True)",
    ),
}


def figures(output: str) -> list[float]:
    return [float(figure) for figure in FIGURE.findall(output)]


def equal(folder: Path, words: list[str], rel: float = 2e-4, count: int | None = None) -> None:
    """count: figures that are compared; None: all."""
    alone, together = (ranked.run(folder, words, size, 250.0) for size in (1, 2))
    assert alone.codes == (0,), alone.errors
    assert together.codes == (0, 0), (together.refused, together.faults, together.errors)
    assert figures(alone.outputs[0])
    one, two = (figures(run.outputs[0])[:count] for run in (alone, together))
    assert two == pytest.approx(one, rel=rel)
    assert all(region.cut for region in together.seen.regions), together.seen.regions


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    ["text", "bert", "images"],
)
def test_an_example(name: str, root: Path, tmp_path: Path) -> None:
    words = EXAMPLES[name].format(folder=tmp_path).split()
    program = [str(root / "examples" / name / "train.py"), "--out", str(tmp_path / "out"), *words]
    # Its normalised layers magnify rounding: with two threads instead of one, one process alone is
    # off by 2e-2 after twenty steps.
    settings: dict[str, Any] = {"rel": 5e-3, "count": 1} if name == "images" else {}
    equal(tmp_path, program, **settings)


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    ["resnet50", *("bert_large", "gpt3_small")],
)
def test_a_recipe(name: str, root: Path, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "examples/recipes", tmp_path, dirs_exist_ok=True, ignore=ignored)
    size, call = RECIPES[name]
    (tmp_path / "tiny.py").write_text(
        f"import dataclasses, data, {name} as recipe\n"
        f"tiny = dataclasses.replace(recipe.SMALL, {size})\n"
        f"if __name__ == '__main__':\n    print('result', {call})\n"
    )
    equal(tmp_path, [str(tmp_path / "tiny.py")])
