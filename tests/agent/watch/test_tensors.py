"""Waiting for the devices that the models are on, and counting their memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout_agent.job import Job
from flatout_agent.watch import job_facts, run
from flatout_agent.watch.profile.process import MemoryInUse
from flatout_agent.watch.tensors import peak_bytes, synchronize


class Module(torch.nn.Module):
    """A model on these devices."""

    def __init__(self, *devices: str) -> None:
        super().__init__()
        self.places = [SimpleNamespace(device=torch.device(device)) for device in devices]

    def parameters(self, recurse: bool = True) -> Any:
        return iter(self.places)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The devices that are waited for."""
    devices: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", devices.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7)
    return devices


def job(*devices: str) -> Any:
    kind = torch.device(devices[0]).type if devices else "cuda"
    models = [Module(*devices)] if devices else []
    return SimpleNamespace(device=kind, models=models)


def test_the_models_devices_are_waited_for_not_the_current_one(waited: list[Any]) -> None:
    both = job("cuda:1", "cuda:2", "cuda:1")
    synchronize(both)
    assert {str(device) for device in waited} == {"cuda:1", "cuda:2"}
    assert peak_bytes(both) == 14


def test_before_there_is_a_model_the_current_device_is_meant(waited: list[Any]) -> None:
    synchronize(job())
    assert waited == [None]


def test_the_facts_of_the_machine_are_those_of_the_models_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {torch.device("cuda", 0): "old", torch.device("cuda", 1): "new"}
    capabilities = {torch.device("cuda", 0): (7, 5), torch.device("cuda", 1): (9, 0)}
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
    notes = job_facts.JobNotes()
    notes.device = torch.device("cuda", 1)
    facts = notes.facts(1.0, None, None)
    notes.close()
    found = facts.device, facts.device_name, facts.capability, facts.bf16
    assert found == ("cuda", "new", (9, 0), True)


def test_memory_after_a_step_is_that_of_the_models_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(run, "allocated_bytes", lambda device: asked.append(device) or 7)
    program = job("cuda:1")
    program.steps, program.first_device = 1, torch.device("cuda", 1)
    run.StepHistory(program).step()
    assert asked == [torch.device("cuda", 1)]


def test_a_job_tells_where_its_first_model_is() -> None:
    found, model = Job(), Module("cuda:1", "cpu")
    assert (found.first_device, found.device) == (None, "cpu")
    found.models.append(model)
    assert (found.first_device, found.device) == (torch.device("cuda", 1), "cuda")


def test_a_cpu_is_not_waited_for(waited: list[Any]) -> None:
    here = job("cpu")
    synchronize(here)
    assert waited == []
    assert (peak_bytes(here) or 1) > 0


def test_memory_in_use_is_asked_for_after_each_step_so_it_must_be_cheap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nested = {"allocated_bytes": {"all": {"current": 7}}}
    # Not memory_stats, which is slow.
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: nested)
    assert MemoryInUse("cuda").bytes() == 7
