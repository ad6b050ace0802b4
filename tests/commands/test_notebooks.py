"""Notebooks in a real kernel: the same losses as without flatout, and what a cell shows of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kernel
from commands.test_in_process import LOOP, STATE, loop
from measuring.programs import WITH_COMPILER

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.py"))
EMPTY = "import flatout; flatout.live(plan='empty.toml');"
MODEL = WITH_COMPILER.replace("import gc,", "import gc, glob,").split("for step in")[0]
TUNED = "flatout.live(only=['gc-pause'])"
SETTLED = '"settled":true'


def cells(notebook: Path) -> list[str]:
    """Its cells: what stands between lines `# %%`; `# %% again` is the one before once more."""
    found: list[str] = []
    for text in notebook.read_text().split("\n# %%")[1:]:
        found.append(found[-1] if text.strip() == "again" else text)
    return found


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[list[Any]]]]:
    """Outputs of each notebook without flatout, and under a plan that switches nothing on.

    All in one kernel, which imports flatout after the last notebook without it.
    """
    folder = tmp_path_factory.mktemp("notebooks")
    (folder / "empty.toml").write_text("version = 1\n[boosts]\n")
    words: list[str] = []
    around = [("", "import sys; 'flatout' in sys.modules"), (EMPTY, "flatout.live(False)")]
    for before, after in around:
        for notebook in NOTEBOOKS:
            words += ["%reset -f", before, *cells(notebook), after]
    results = iter(kernel.outputs(words, folder))
    taken: dict[str, list[list[list[Any]]]] = {notebook.stem: [] for notebook in NOTEBOOKS}
    for _ in range(2):
        for notebook in NOTEBOOKS:
            taken[notebook.stem].append([next(results) for _ in range(len(cells(notebook)) + 3)])
    assert next(results, None) is None
    return taken


@pytest.mark.parametrize("name", [notebook.stem for notebook in NOTEBOOKS])
def test_a_notebook_prints_the_losses_that_it_prints_without_flatout(
    name: str, executed: dict[str, list[list[list[Any]]]]
) -> None:
    alone, under = executed[name]
    assert alone[-1][0]["data"]["text/plain"] == "False", "flatout was there already"
    assert [kernel.printed(cell) for cell in alone] == [kernel.printed(cell) for cell in under]
    assert "".join(map(kernel.printed, alone)).count(".") > 2, "it prints losses"
    errors = [[part for part in cell if part.output_type == "error"] for cell in alone]
    for before, after in zip(errors, under, strict=True):
        failed = [part for part in after if part.output_type == "error"]
        assert [part.ename for part in failed] == [part.ename for part in before]
    assert (["KeyboardInterrupt"] in [[e.ename for e in cell] for cell in errors]) == (
        name == "interrupted"
    )
    cards = [part for cell in under for part in cell if "text/html" in part.get("data", {})]
    assert cards, "a cell that trains shows a card"
    assert "inside flatout" not in str(under)


GONE = f"""
import weakref
dead = [weakref.ref(thing) for thing in (model, optimizer, model[0].weight)]
{MODEL}
del loss  # its graph holds the weights
gc.collect()
print([reference() is None for reference in dead])
"""
FEW = LOOP.replace("100_000", "60")
COLLECTING = f"""
gc.collect()
gc.freeze()  # else each collection looks at all that the kernel has imported
lists = [[] for _ in range(100_000)]
{FEW.replace("# at each step", "gc.collect()")}
gc.unfreeze()
"""
"""It has one fault that no busy machine hides."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The outputs of cells by their names."""
    folder = tmp_path_factory.mktemp("cells")
    written = {
        "model": MODEL,
        "live": f"{STATE}\n{TUNED}",
        "other": "1 + 1",
        "tuned": loop("break", SETTLED),
        "put back": "print(gc.get_threshold() == before[10], *sorted(glob.glob('flatout*')))",
        "report": "print(open('flatout-report.html').read())",
        "collected": GONE,
        "fails": "model(torch.randn(2, 63))",
        "interrupted": loop("raise KeyboardInterrupt", '"kind":"block"'),
        "off": f"flatout.live(False)\nassert state() == before\n{FEW}",
        "loaded": "%load_ext flatout",
        "magic": f"%%flatout\n{FEW}\nstep",
        "after magic": f"assert state()[:9] == before[:9]\n{FEW}",
        "profile": f"%%flatout profile 60\n{COLLECTING}",
        "wrong": "%%flatout tune\n1 + 1",
        "fails again": "model(torch.randn(2, 63))",
        "explained": "flatout.explain()",
        "unloaded": "%unload_ext flatout",
    }
    return dict(zip(written, kernel.outputs([*written.values()], folder), strict=True))


def test_a_line_of_a_cell_becomes_its_card(told: dict[str, list[Any]]) -> None:
    assert kernel.kinds(told["model"]) == []
    (shown,) = told["live"]
    assert shown["data"]["text/plain"] == "<flatout.live: on>"
    assert kernel.kinds(told["other"]) == ["execute_result"]
    (card,) = told["tuned"]  # one output: what it said before was replaced
    assert card.output_type == "display_data"
    plain, html = card["data"]["text/plain"], card["data"]["text/html"]
    assert "x faster: " in plain
    assert "plan: flatout.toml" in plain
    assert "faster</b>" in html and "gc-pause" in html
    assert 'href="./flatout-report.html"' in html, "no front end opens what lies in .flatout"
    assert kernel.printed(told["put back"]) == "True flatout-report.html flatout.toml\n"


def test_the_report_names_cells_as_tracebacks_do(told: dict[str, list[Any]]) -> None:
    page = kernel.printed(told["report"])
    assert "In[4]:" in page
    assert "ipykernel" not in page
    assert "Program:" not in page, "a notebook is started by no command"


def test_what_a_cell_has_trained_is_collected_when_the_program_lets_go(
    told: dict[str, list[Any]],
) -> None:
    assert kernel.printed(told["collected"]) == "[True, True, True]\n", told["collected"]


def test_an_error_is_shown_without_frames_of_flatout(told: dict[str, list[Any]]) -> None:
    (error,) = told["fails"]
    frames = "".join(error["traceback"])
    assert "torch.randn" in frames, "the cell's own"
    assert "linear.py" in frames
    assert "flatout_agent" not in frames


def test_an_interrupt_is_the_cells_own_and_leaves_nothing(told: dict[str, list[Any]]) -> None:
    assert "error" in kernel.kinds(told["interrupted"])
    card = next(part for part in told["interrupted"] if part.output_type == "display_data")
    assert "flatout: it ran with gc-pause" in card["data"]["text/plain"], (
        "the plan of the cell before"
    )
    assert "flatout: interrupted after " in card["data"]["text/plain"]
    assert kernel.kinds(told["off"]) == [], told["off"]


def test_the_magic_is_for_its_cell_alone(told: dict[str, list[Any]]) -> None:
    assert kernel.kinds(told["loaded"]) == []
    assert sorted(kernel.kinds(told["magic"])) == ["display_data", "execute_result"]
    (value,) = (part for part in told["magic"] if part.output_type == "execute_result")
    assert value["data"]["text/plain"] == "59"
    assert kernel.kinds(told["after magic"]) == [], told["after magic"]
    (wrong,) = told["wrong"]
    assert "there are %%flatout and " in str(wrong)


def test_a_cell_is_profiled_with_the_variables_of_others(told: dict[str, list[Any]]) -> None:
    text = kernel.printed(told["profile"])
    assert "ipykernel" not in text
    assert "inside flatout" not in text
    assert "100% of the step" not in text, "what counts is what counts for `flatout profile`"
    (report,) = re.findall(r"\S+/flatout-profile\.html", text)
    assert "In[14]:" in Path(report).read_text(encoding="utf-8"), "the cell's lines"


def test_the_last_exception_is_explained(told: dict[str, list[Any]]) -> None:
    assert kernel.kinds(told["fails again"]) == ["error"]
    assert "cure" in kernel.printed(told["explained"]), told["explained"]
    assert kernel.kinds(told["unloaded"]) == []
