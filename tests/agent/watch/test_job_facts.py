"""What is written down about a job changes nothing in it."""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.context

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flatout_agent.boosts import cuda_graphs
from flatout_agent.watch.job_facts import MAX_SHAPES, JobNotes, loader_facts
from flatout_agent.wire import JobFacts


def test_the_program_may_still_choose_how_its_processes_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked for its method, Python would fix the default: `set_start_method` raises from then."""
    default = multiprocessing.context._default_context  # type: ignore[attr-defined]
    monkeypatch.setattr(default, "_actual_context", None)
    data = TensorDataset(torch.ones(4))
    usual = multiprocessing.get_all_start_methods()[0]
    assert loader_facts(DataLoader(data)).start_method == usual
    multiprocessing.set_start_method("spawn")
    assert loader_facts(DataLoader(data)).start_method == "spawn"
    chosen = DataLoader(data, num_workers=1, multiprocessing_context="forkserver")
    assert loader_facts(chosen).start_method == "forkserver"


def facts_after(batches: list[int]) -> JobFacts:
    """What is told of a program that gives its model batches of these lengths."""
    notes = JobNotes()
    notes.model(nn.Conv2d(3, 8, 3))
    for batch in batches:
        notes.inputs(0, (batch, 3, 32, 32))
    facts = notes.facts(micro_steps=1.0, step_s=0.005, wait_share=None)
    notes.close()
    return facts


def why_no_graphs(facts: JobFacts) -> str | None:
    return cuda_graphs.applies(dataclasses.replace(facts, device="cuda"), {})


@pytest.mark.parametrize("batches", [[64] * 30 + [16], [16] + [64] * 30])
def test_a_smaller_last_batch_of_an_epoch_is_no_second_shape(batches: list[int]) -> None:
    facts = facts_after(batches)
    assert facts.models[0].input_shapes == ("64x3x32x32",)
    assert why_no_graphs(facts) is None


def test_shapes_that_change_are_all_told() -> None:
    facts = facts_after([*range(1, 21)] * 2)
    assert len(facts.models[0].input_shapes) == MAX_SHAPES
    assert "16 input shapes" in (why_no_graphs(facts) or "")
    assert facts_after([64, 64, 16]).models[0].input_shapes == ("64x3x32x32", "16x3x32x32")
    assert facts_after([]).models[0].input_shapes == ()


def test_a_shape_that_was_usual_at_first_only_is_one_of_many() -> None:
    """Calls in shapes beyond the counted ones count as well."""
    lengths = [64] * 100 + list(range(1, MAX_SHAPES)) + [99] * 1000
    assert len(facts_after(lengths).models[0].input_shapes) == MAX_SHAPES
