"""Every file in boosts/ is a whole boost: documented, tested, pure where it must be, reversible."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
from pathlib import Path
from typing import Any

from every import for_every
from flatout_agent import boosts
from flatout_agent.boost import Boost
from flatout_agent.wire import JobFacts, LoaderFacts, ModelFacts, OptimizerFacts
from law.sources import assert_whole_page

HEADINGS = [
    "What it does",
    "Why it is faster",
    "When it does nothing",
    "What it may change",
    "How it is undone",
    "References",
]
SIGNATURES = {
    "applies": ["facts", "params"],
    "promise": ["facts", "params"],
    "apply": ["job", "target", "params"],
    "by_hand": ["facts", "params"],
}
NAMES = boosts.names()

each_boost = for_every(NAMES)


def job(device: str, **changes: Any) -> JobFacts:
    return JobFacts(
        **{
            "torch": "2.13.0",
            "python": "3.12.1",
            "system": "linux",
            "device": device,
            "cores": 8,
            "threads": 8,
            "bf16": True,
            "capability": (9, 0) if device == "cuda" else None,
            "triton": True,
            "compiler": True,
            "eval_with_grad": True,
            "step_s": 0.2,
            "wait_share": 0.4,
            "loaders": (LoaderFacts("Photos", False, 32, 100, 0, False, False, "fork", True),),
            "models": (ModelFacts("ResNet", 25_000_000, "float32", device, conv2d=53, matmul=1),),
            "optimizers": (OptimizerFacts("AdamW", True, 10**6, 161, "float32", None, None),),
            **changes,
        }
    )


BARE = JobFacts(torch="2.13.0", python="3.10.2", system="win32", device="cpu")
JOBS = {
    "cpu": job("cpu"),
    "cuda": job("cuda"),
    "rocm": job("cuda", hip=True, capability=(9, 4)),
    "mps": job("mps", system="darwin"),
    "accumulating": job("cuda", micro_steps=4.0, scaler=True, autocast="float16"),
    "bare": BARE,
}


def choices(boost: Boost) -> list[dict[str, Any]]:
    """Every combination of the parameters' values."""
    return [
        dict(zip(boost.params, values, strict=True))
        for values in itertools.product(*boost.params.values())
    ]


def test_the_folder_is_the_table() -> None:
    assert len(NAMES) >= 15
    folder = Path(boosts.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert {boost_id.replace("-", "_") for boost_id in NAMES} == files


@each_boost
def test_page(boost_id: str) -> None:
    assert_whole_page(boosts.load(boost_id), HEADINGS)


@each_boost
def test_shape(boost_id: str) -> None:
    module = boosts.load(boost_id)
    assert isinstance(module.BOOST, Boost)
    wanted = dict(SIGNATURES)
    if hasattr(module, "environment"):
        wanted["environment"] = ["facts", "params"]
    if hasattr(module, "forget"):
        wanted["forget"] = ["job"]
    for name, parameters in wanted.items():
        function = getattr(module, name)
        assert inspect.isfunction(function)
        assert list(inspect.signature(function).parameters) == parameters, name


@each_boost
def test_names_only_boosts_that_exist(boost_id: str) -> None:
    boost = boosts.load(boost_id).BOOST
    named = {*boost.conflicts, *boost.covered_by}
    assert named - set(NAMES) == set()
    assert boost_id not in named


@each_boost
def test_parameters_can_stand_in_a_plan(boost_id: str) -> None:
    for name, values in boosts.load(boost_id).BOOST.params.items():
        assert name.isidentifier()
        assert len(values) == len(set(values)) >= 1
        assert [value for value in values if type(value) not in (str, int, float, bool)] == []


@each_boost
def test_has_a_test_file(boost_id: str, root: Path) -> None:
    assert (root / "tests/agent/boosts" / f"test_{boost_id.replace('-', '_')}.py").is_file()


@each_boost
def test_answers_the_host(boost_id: str) -> None:
    """For every job and every parameter: a reason or None, a likely gain, lines that parse."""
    module = boosts.load(boost_id)
    for facts, params in itertools.product(JOBS.values(), choices(module.BOOST)):
        reason = module.applies(facts, params)
        assert reason is None or (isinstance(reason, str) and reason and "\n" not in reason)
        promised = module.promise(facts, params)
        assert 0.1 < promised < 100
        if reason is None:
            assert promised >= 1.0
        lines = module.by_hand(facts, params)
        assert lines.strip()
        ast.parse(lines)


@each_boost
def test_environment_is_text(boost_id: str) -> None:
    module = importlib.import_module(f"flatout_agent.boosts.{boost_id.replace('-', '_')}")
    environment = getattr(module, "environment", lambda *_: {})
    for facts, params in itertools.product(JOBS.values(), choices(module.BOOST)):
        found = environment(facts, params)
        assert all(isinstance(item, str) for pair in found.items() for item in pair)
