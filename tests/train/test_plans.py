"""plans: what `flatout tune` writes is understood, and what cannot be is refused clearly."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatout.knowledge import boosts as known
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.tuning import plan_file
from flatout_agent import boosts
from flatout_train import plans
from flatout_train.errors import UsageError
from flatout_train.step import layout, precision


def read(text: str, tmp_path: Path) -> plans.StepPlan:
    path = tmp_path / "flatout.toml"
    path.write_text(text, encoding="utf-8")
    return plans.read(path)


def planned(*ids: str) -> str:
    return "version = 1\n" + "".join(f"[boosts.{boost_id}]\n" for boost_id in ids)


@pytest.mark.parametrize("boost_id", boosts.names())
def test_every_boost_has_a_place_or_a_reason(boost_id: str, tmp_path: Path) -> None:
    empty, found = read(planned(), tmp_path), read(planned(boost_id), tmp_path)
    assert found != empty, "flatout_train/plans.py: STARTED, PRECISIONS or NOT_OURS"
    ignored = dict(found.ignored)
    assert (boost_id in ignored) == (boost_id in plans.NOT_OURS)
    assert not ignored or ignored[boost_id]


def test_a_boost_that_is_gone_is_ignored_with_what_to_do_instead(tmp_path: Path) -> None:
    path = tmp_path / "flatout.toml"
    path.write_text("version = 1\n[boosts.eval-without-grad]\n[boosts.tf32]\n")
    found = plans.read(path)
    assert found.precision == "tf32"
    assert "torch.no_grad()" in dict(found.ignored)["eval-without-grad"]


@st.composite
def tuned(draw: st.DrawFn) -> Plan:
    chosen = draw(st.permutations(known.every()))[: draw(st.integers(0, 6))]
    return Plan(
        boosts=tuple(
            PlannedBoost(
                boost.id,
                {name: draw(st.sampled_from(values)) for name, values in boost.params.items()},
                draw(st.none() | st.just(1.25)),
                boost.risk.value,
            )
            for boost in chosen
        ),
        command=("train.py",),
        speedup=2.0,
        created="2026-01-02",
    )


@given(tuned())
def test_what_tune_writes_is_read(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    path = tmp_path_factory.getbasetemp() / "flatout.toml"
    plan_file.write(plan, path)
    found = plans.read(path)
    ids = {boost.id for boost in plan.boosts}
    assert {boost_id for boost_id, _ in found.starts} == ids & set(plans.STARTED)
    assert found.fused == ("fused-optimizer" in ids)
    assert found.precision in (*precision.NAMES, precision.PLANNED)
    assert found.layout in layout.NAMES
    assert found.compile is False or found.compile in ("blocks", "whole", "tuned")
    assert (found.compile is not False) == ("compile" in ids)
    for boost in plan.boosts:
        if boost.id == "loader-workers":
            assert found.workers == boost.params["workers"]


def test_a_plan_as_choices(tmp_path: Path) -> None:
    text = planned("bf16-autocast", "tf32", "channels-last")
    text += '[boosts.compile]\nparams = {mode = "max-autotune"}\n[boosts.batch-fetch]\n'
    found = read("\ufeff" + text, tmp_path)
    assert (found.precision, found.compile, found.layout) == ("bf16", "tuned", "channels_last")
    assert found.graph is None
    assert not found.fused
    assert set(dict(found.ignored)) == {"tf32", "batch-fetch"}


def test_what_the_plan_does_not_name_was_not_faster_or_not_right(tmp_path: Path) -> None:
    found = read(planned(), tmp_path)
    assert (found.precision, found.compile, found.layout) == ("fp32", False, "contiguous")
    assert read(planned("cuda-graphs"), tmp_path).graph is True


@pytest.mark.parametrize("scope", ["blocks", "whole"])
def test_what_is_compiled_is_the_plans(scope: str, tmp_path: Path) -> None:
    text = planned() + f'[boosts.compile]\nparams = {{scope = "{scope}", mode = "default"}}\n'
    assert read(text, tmp_path).compile == scope
    assert read(planned("compile"), tmp_path).compile == "whole"  # as older plans say it
    text = planned() + '[boosts.compile]\nparams = {mode = "reduce-overhead"}\n'
    assert read(text, tmp_path).compile == "whole", "the step records CUDA graphs of its own"


def test_no_file_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no plan at .* flatout tune"):
        plans.read(tmp_path / "flatout.toml")
    with pytest.raises(UsageError, match="cannot read"):
        plans.read(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not a text file"):
        plans.read(tmp_path / "binary")


def test_the_collector_pauses_and_collects_after_optimizer_steps(tmp_path: Path) -> None:
    before, collected = gc.get_threshold(), []
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    gc.callbacks.append(lambda phase, info: collected.append(info["generation"]))
    started = plans.begin(read(planned("gc-pause"), tmp_path))
    try:
        assert gc.get_threshold()[0] == 100_000
        collected.clear()
        for _ in range(10):
            parameter.grad = torch.ones(2)
            optimizer.step()
        assert 1 in collected
    finally:
        started()
        gc.callbacks.pop()
    assert gc.get_threshold() == before
    assert not started.declined


def test_threads_leave_room_for_the_loaders_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout_agent.boosts import cpu_threads

    monkeypatch.setattr(cpu_threads, "usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    set_to: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: set_to[-1] if set_to else 8)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    text = planned("cpu-threads") + "[boosts.loader-workers]\nparams = {workers = 2}\n"
    plans.begin(read(text, tmp_path))()
    assert set_to == [6, 8]


def test_what_cannot_hold_here_is_declined_with_its_reason(tmp_path: Path) -> None:
    if torch.version.cuda is not None or torch.version.hip is not None:
        pytest.skip("this torch has a cuDNN to set")
    started = plans.begin(read(planned("cudnn-benchmark"), tmp_path))
    assert "without CUDA" in started.declined["cudnn-benchmark"]
    started()
