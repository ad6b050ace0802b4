"""cudnn-benchmark: the decision and the setting."""

import pytest
import torch

from flatout_agent.boost import Declined
from flatout_agent.boosts import cudnn_benchmark
from flatout_agent.job import Job
from flatout_agent.live.candidates import candidates
from flatout_agent.wire import JobFacts, ModelFacts

MODEL = ModelFacts("Net", 9, "float32", "cuda", conv2d=1)
FACTS = JobFacts(torch="2.13.0", python="3.11", system="linux", device="cuda", models=(MODEL,))


@pytest.fixture
def applied(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    applied = cudnn_benchmark.apply(Job(), torch, {})
    yield applied
    applied.undo()
    assert torch.backends.cudnn.benchmark is False


def test_measuring_is_on_until_undone(applied, monkeypatch):
    assert torch.backends.cudnn.benchmark is True
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert applied.engaged() == (True, "")
    with pytest.raises(Declined, match="already"):
        cudnn_benchmark.apply(Job(), torch, {})


def test_engaged_sees_what_the_script_did(applied, monkeypatch):
    assert applied.engaged() == (False, "the program did not use CUDA")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    assert "deterministic" in applied.engaged()[1]
    torch.backends.cudnn.benchmark = False
    assert applied.engaged() == (False, "the script turned it off")


def test_in_a_running_program_all_shapes_have_their_plans_already():
    found, declined = candidates(FACTS, ["cudnn-benchmark"])
    assert found == []
    assert [(item.id, item.why_untried) for item in declined] == [
        ("cudnn-benchmark", "needs_start")
    ]


def test_declined(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "cuda", None)
        with pytest.raises(Declined, match="without CUDA"):
            cudnn_benchmark.apply(Job(), torch, {})
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with pytest.raises(Declined, match="deterministic"):
        cudnn_benchmark.apply(Job(), torch, {})
    assert torch.backends.cudnn.benchmark is False


def test_promise_and_by_hand(monkeypatch):
    assert cudnn_benchmark.promise(FACTS, {}) > 1.0
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    exec(cudnn_benchmark.by_hand(FACTS, {}), {"torch": torch})
    assert torch.backends.cudnn.benchmark is True
