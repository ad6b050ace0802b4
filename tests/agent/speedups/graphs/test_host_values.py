"""What a forward pass copies from the host. The device is `meta`, which has no values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flatout_agent.boosts import cuda_graphs
from flatout_agent.job import Job
from flatout_agent.speedups.graphs import aliases, graphed_calls, recordings
from flatout_agent.speedups.graphs.host_values import CHANGES, TRAINED, HostValues
from flatout_agent.speedups.graphs.recordings import NotRecordable
from guarded import Made
from replayed import Capture

META = torch.device("meta")
THERE = torch.empty(3, device=META)


def put(value: Any) -> torch.Tensor:
    place = torch.empty(3, device=META)
    place[0] = value
    return place


FORMS: dict[str, Callable[[float], torch.Tensor]] = {
    "tensor": lambda number: torch.tensor(number, device=META, dtype=torch.float64),
    "as_tensor": lambda number: torch.as_tensor([number], device="meta"),
    "new_tensor": lambda number: THERE.new_tensor(number),
    "to": lambda number: torch.full((2,), number).to(META),
    "to, with a type": lambda number: torch.full((2,), number).to("meta", torch.float64),
    "to another": lambda number: torch.full((3,), number).to(THERE),
    "copy_": lambda number: torch.empty(3, device=META).copy_(torch.full((3,), number)),
    "setitem": lambda number: put(torch.tensor(number)),
}


def passes(*calls: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    values = HostValues(META)
    results = []
    for call in calls:
        with values:
            results.append(call())
    return results


@pytest.mark.parametrize("form", FORMS)
def test_what_is_the_same_each_time_is_kept(form: str) -> None:
    make = FORMS[form]
    expected = make(2.0)
    for result in passes(*[lambda: make(2.0)] * 3):
        assert (result.device, result.dtype, result.shape) == (
            expected.device, expected.dtype, expected.shape)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_what_changes_is_refused(form: str) -> None:
    make, numbers = FORMS[form], iter((2.0, 2.0, 3.0))
    with pytest.raises(NotRecordable, match=CHANGES):
        passes(*[lambda: make(next(numbers))] * 3)


def test_a_value_more_or_less_is_refused() -> None:
    make = FORMS["tensor"]
    with pytest.raises(NotRecordable, match=CHANGES):
        passes(lambda: make(1.0), lambda: make(1.0) + make(2.0))
    with pytest.raises(NotRecordable, match=CHANGES):
        passes(lambda: make(1.0) + make(2.0), lambda: make(1.0))


def test_the_programs_error_is_not_hidden() -> None:
    def fails() -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        passes(lambda: FORMS["tensor"](1.0), fails)


def test_what_stays_where_it_is_is_left_alone() -> None:
    numbers = iter((1.0, 2.0))

    def on_the_host() -> torch.Tensor:
        number = next(numbers)
        torch.tensor(number)
        torch.full((2,), number).to(torch.float64)
        torch.as_tensor(THERE, device=META)
        return THERE.to(torch.float64)

    assert [result.dtype for result in passes(on_the_host, on_the_host)] == [torch.float64] * 2


def test_the_default_device_counts_too() -> None:
    torch.set_default_device(META)
    try:
        results = passes(*[lambda: torch.tensor(2.0)] * 2)
        numbers = iter((2.0, 3.0))
        with pytest.raises(NotRecordable, match=CHANGES):
            passes(*[lambda: torch.tensor(next(numbers))] * 2)
    finally:
        torch.set_default_device(None)
    assert [result.device for result in results] == [META] * 2


def test_a_weight_on_the_host_would_no_longer_train() -> None:
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(NotRecordable, match=TRAINED):
        passes(lambda: weight.to(META))


def masked() -> Any:
    """Looks at a number that it makes on the host in each call."""

    def forward(model: Any, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.where(x > 0, model.layer(x), torch.tensor(0.0, device=x.device))

    return Made(forward, layer=torch.nn.Linear(8, 8)), {"x": torch.randn(4, 8)}


def attending() -> Any:
    """As BERT's attention in Transformers 4, whose mask is made with a number from the host."""

    def forward(model: Any, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        query, key, value = model.mixed(x).chunk(3, dim=-1)
        zero = torch.tensor(0.0, device=there.device, dtype=x.dtype)
        mask = torch.where(there[:, None, :].bool(), zero, torch.finfo(x.dtype).min)
        weights = (query @ key.transpose(1, 2) / 8**0.5 + mask).softmax(-1)
        y: torch.Tensor = model.out(weights @ value)
        return y

    layers = {"mixed": torch.nn.Linear(8, 24), "out": torch.nn.Linear(8, 8)}
    there = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    return Made(forward, **layers), {"x": torch.randn(2, 6, 8), "there": there}


def unpadded() -> Any:
    """As there: the mask of a batch without padding is made only while it is recorded."""

    def forward(model: Any, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = model.layer(x)
        if not torch.cuda.is_current_stream_capturing() and there.all():
            return y
        return y + torch.where(there.bool(), torch.tensor(0.0, device=x.device), -1e9)[..., None]

    there = torch.ones(2, 6, dtype=torch.long)
    return Made(forward, layer=torch.nn.Linear(8, 8)), {"x": torch.randn(2, 6, 8), "there": there}


MODELS: dict[str, Callable[[], Any]] = {
    "masked": masked, "attending": attending, "unpadded": unpadded
}  # fmt: skip


def trains_alike(make: Callable[[], Any], device: str, capture: Any) -> None:
    torch.manual_seed(0)
    model, inputs = make()
    model, inputs = model.to(device), {name: value.to(device) for name, value in inputs.items()}
    plain = copy.deepcopy(model)
    applied = graphed_calls.put_on(Job(), model, capture)
    for _ in range(6):
        found = []
        for net in (model, plain):
            net.zero_grad()
            output = net(**inputs)
            loss = (output if isinstance(output, torch.Tensor) else output.logits).square().sum()
            loss.backward()
            found.append([loss.detach(), *(p.grad for p in net.parameters())])
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)
        del found
    assert applied.engaged() == (True, "recorded")


@pytest.mark.parametrize("name", MODELS)
def test_a_mask_made_on_the_host_is_kept_while_passes_are_recorded(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kept: list[float] = []
    value = HostValues._value

    def noted(values: HostValues, host: torch.Tensor) -> torch.Tensor:
        kept.extend(host.flatten().tolist())
        return value(values, host)

    monkeypatch.setattr(HostValues, "_value", noted)
    monkeypatch.setattr(recordings._Host, "compare", lambda before, after: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    trains_alike(MODELS[name], "cpu", Capture())
    assert kept == [0.0] * (aliases.WARM_UPS + 1), "in each warm-up and the recording"


def bert() -> Any:
    """Transformers' own, with attention spelled out."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )  # fmt: skip
    there = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    inputs = {"input_ids": torch.randint(50, (2, 6)), "attention_mask": there}
    return transformers.BertForMaskedLM(config), inputs


@pytest.mark.gpu
@pytest.mark.parametrize("make", [*MODELS.values(), bert])
def test_a_mask_made_on_the_host_is_recorded_on_a_gpu(make: Callable[[], Any]) -> None:
    trains_alike(make, "cuda", cuda_graphs._capture)
