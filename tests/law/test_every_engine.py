"""Every file in engines/ is a whole engine: documented, and with all that is asked of one."""

from __future__ import annotations

import inspect
from pathlib import Path

from every import for_every
from flatout.launching import contract, engines, launch
from flatout.nouns.launched import LaunchEngine, LaunchRequest
from law.sources import assert_whole_page

HEADINGS = [
    "The command",
    "What is written",
    "What is checked first",
    "Following and stopping",
    "Restarts",
    "What was really run",
    "References",
]
ARGUMENTS = {
    "check": ["request"],
    "files": ["request"],
    "submit": ["request", "folder"],
    "state": ["job"],
    "logs": ["job"],
    "cancel": ["job"],
    "costs": ["request"],
}
each_engine = for_every(engines.names(), str)


@each_engine
def test_its_page_has_every_heading_in_order(name: str) -> None:
    assert_whole_page(engines.load(name), HEADINGS)
    assert f"flatout launch {name} " in (engines.load(name).__doc__ or "")


@each_engine
def test_it_has_all_that_is_asked_of_an_engine(name: str) -> None:
    module = engines.load(name)
    assert isinstance(module.ENGINE, LaunchEngine)
    assert set(module.ENGINE.understands) <= set(launch.FIELDS)
    for function, arguments in ARGUMENTS.items():
        assert list(inspect.signature(getattr(module, function)).parameters) == arguments


def test_the_folder_is_the_table() -> None:
    files = {path.stem for path in Path(engines.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(engines.names()) == {name for name in files if not name.startswith("_")}


def test_the_one_line() -> None:
    request = LaunchRequest("slurm", ("train.py", "--lr", "1 e"), "a", Path("/code"), gpus="all")
    assert contract.node_line(request) == (
        "flatout run --nodes auto --gpus all train.py --lr '1 e'"
    )
