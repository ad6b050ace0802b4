"""What boosts promise where the time of a step is known: the order in which they are tried."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from flatout_agent.boosts import load, names, speedup
from flatout_agent.live import candidates, op_shares
from flatout_agent.wire import JobFacts, LoaderFacts, ModelFacts, OptimizerFacts

MODEL = ModelFacts("Net", 1_000_000, "float32", "cpu", matmul=8, conv2d=4, random_forward=True)
FACTS = JobFacts(
    "2.13.0",
    "3.11",
    "linux",
    "cpu",
    bf16=True,
    models=(MODEL,),
    optimizers=(OptimizerFacts("AdamW", True, 1_000_000, 40, "float32", None, None),),
    compiler=True,
    step_s=0.05,
    wait_share=0.1,
)


def with_shares(**shares: float) -> JobFacts:
    return dataclasses.replace(
        FACTS, shares={kind: shares.get(kind, 0.0) for kind in op_shares.NAMES}
    )


def first_params(module: Any) -> dict[str, Any]:
    return {name: values[0] for name, values in module.BOOST.params.items()}


def promise(boost: str, facts: JobFacts) -> float:
    module = load(boost)
    return module.promise(facts, first_params(module))


@pytest.mark.parametrize(
    ("boost", "kind"),
    [
        ("bf16-autocast", "products"),
        ("cpu-bf16", "products"),
        ("channels-last", "convolutions"),
        ("fast-dropout", "dropout"),
        ("fused-optimizer", "optimizer"),
        ("compile", "others"),
    ],
)
def test_a_boost_promises_more_where_its_operations_take_more(boost: str, kind: str) -> None:
    little, much = (
        promise(boost, with_shares(**{kind: 0.1})),
        promise(boost, with_shares(**{kind: 0.8})),
    )
    assert 1.0 <= little < much < 4.0


def test_no_promise_is_below_one_or_beyond_reason() -> None:
    every = [with_shares(**{kind: 1.0}) for kind in op_shares.NAMES]
    loader = LoaderFacts("Data", False, 8, 100, 0, False, False, "fork", True)
    for facts in (FACTS, with_shares(), *every):
        for boost in names():
            value = promise(boost, dataclasses.replace(facts, loaders=(loader,)))
            assert 1.0 <= value < 40.0, boost


@pytest.mark.parametrize("boost", ["bf16-autocast", "cpu-bf16"])
def test_matrices_are_multiplied_without_a_layer_too(boost: str) -> None:
    """By a weight of the model's own, as in graph networks: what is measured counts."""
    module, model = load(boost), dataclasses.replace(MODEL, matmul=0, conv2d=0)
    for products, applies in ((0.5, True), (0.01, False)):
        facts = dataclasses.replace(with_shares(products=products), models=(model,))
        assert (module.applies(facts, first_params(module)) is None) is applies


def test_speedup_is_amdahls() -> None:
    assert speedup(FACTS, products=2.0) is None
    facts = with_shares(products=0.5, others=0.25)
    assert speedup(facts, products=2.0) == pytest.approx(1 / 0.75)
    assert speedup(facts, products=2.0, others=5.0) == pytest.approx(1 / 0.55)


def test_a_live_tuning_leaves_out_what_can_gain_nothing() -> None:
    allowed = ("fast-dropout", "bf16-autocast", "gc-pause")
    facts = dataclasses.replace(with_shares(convolutions=0.8, others=0.1), threads=1)
    kept, declined = candidates.candidates(facts, allowed)
    assert [item.id for item in kept] == ["bf16-autocast", "gc-pause"]
    reasons = {row.id: row.reason for row in declined}
    assert reasons["fast-dropout"] == "masks take 0.0% of the step"
    masks = with_shares(products=0.6, dropout=0.1, others=0.2)
    kept, _ = candidates.candidates(masks, ("fast-dropout",))
    assert [item.id for item in kept] == ["fast-dropout"]


def on_a_gpu(idle_share: float | None) -> JobFacts:
    return dataclasses.replace(FACTS, device="cuda", step_s=0.06, idle_share=idle_share)


@pytest.mark.parametrize("boost", ["bf16-autocast", "channels-last", "tf32"])
def test_faster_kernels_promise_less_where_the_device_waits_for_the_program(boost: str) -> None:
    assert 1.0 < promise(boost, on_a_gpu(0.5)) < 1.1
    assert promise(boost, on_a_gpu(0.0)) > 1.02
    assert promise(boost, on_a_gpu(0.0)) > promise(boost, on_a_gpu(0.3))


@pytest.mark.parametrize(("idle", "tried"), [(0.3, True), (0.5, True), (0.9, True), (0.99, False)])
def test_they_are_tried_as_long_as_the_device_works_at_all(idle: float, tried: bool) -> None:
    kept, _ = candidates.candidates(on_a_gpu(idle), ("bf16-autocast",))
    assert bool(kept) is tried


@pytest.mark.parametrize("boost", ["cuda-graphs", "compile"])
def test_fewer_launches_promise_as_much_as_the_device_waits(boost: str) -> None:
    little, much = promise(boost, on_a_gpu(0.02)), promise(boost, on_a_gpu(0.6))
    assert little < 1.3 < 1.9 < much
    kept, _ = candidates.candidates(on_a_gpu(0.6), (boost, "bf16-autocast"))
    assert max(kept, key=lambda item: item.promise).id == boost
    kept, declined = candidates.candidates(on_a_gpu(0.99), (boost, "bf16-autocast"))
    assert kept[0].id == boost
    assert [row.reason for row in declined] == [
        "the device waits for the program: faster kernels would gain nothing"
    ]
    waits_for_data = dataclasses.replace(on_a_gpu(0.6), wait_share=0.6)
    assert promise(boost, waits_for_data) == pytest.approx(1.0, abs=0.1)
