"""sdpa-attention: Transformers models are set to sdpa and back, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import compile
from flatout_agent.boosts import sdpa_attention as boost
from flatout_agent.job import Job

SET = (True, "configurations of Transformers set to sdpa: 1")


class Boosted:
    """A model under the boost."""

    def __init__(self, model: nn.Module) -> None:
        job = Job()
        job.models.append(model)
        self.applied: Applied = boost.apply(job, model, {})

    def __enter__(self) -> Applied:
        return self.applied

    def __exit__(self, *_: object) -> None:
        self.applied.undo()


def bert(layers: int = 2, **options: Any) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=layers, num_attention_heads=4,
        intermediate_size=32, **{"attn_implementation": "eager", **options},
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, 6:] = 0
    return model, {"input_ids": torch.arange(18).view(2, 9), "attention_mask": mask}


def gradient(model: Any, batch: Any) -> torch.Tensor:
    model.zero_grad()
    model(**batch).last_hidden_state.square().sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    assert float((one - other).norm()) <= 1e-5 * float(one.norm())


def test_transformers_are_set_to_sdpa_and_back() -> None:
    model, batch = bert()
    before = gradient(model, batch)
    with Boosted(model) as applied:
        assert model.config._attn_implementation == "sdpa"
        assert_close(before, gradient(model, batch))
        assert applied.engaged() == SET
    assert model.config._attn_implementation == "eager"
    assert torch.equal(gradient(model, batch), before)


@pytest.mark.gpu
def test_on_a_gpu_it_is_the_same_function_and_no_call_is_watched() -> None:
    model, batch = bert()
    model, batch = model.cuda(), {name: tensor.cuda() for name, tensor in batch.items()}
    before = gradient(model, batch)
    with Boosted(model) as applied:
        found = gradient(model, batch)
        assert applied.engaged() == SET
        assert not torch.overrides._get_current_function_mode_stack()
    assert float((found - before).norm()) <= 1e-4 * float(before.norm())


def test_what_is_inside_of_another_model_is_set_too() -> None:
    model, _ = bert()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = model, nn.Linear(32, 2)

    with Boosted(Outer()) as applied:
        assert model.config._attn_implementation == "sdpa"
        assert applied.engaged() == SET
    assert model.config._attn_implementation == "eager"


def test_they_stay_eager_where_attentions_are_asked_for() -> None:
    model, batch = bert()
    wanted = model(**batch, output_attentions=True).attentions
    with Boosted(model) as applied:
        found = model(**batch, output_attentions=True).attentions
        assert model.config._attn_implementation == "eager"
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, wanted, strict=True))
        assert applied.engaged() == (False, "the program asks for attentions")
    model, batch = bert(output_attentions=True)
    with pytest.raises(Declined, match="asks for attentions"):
        Boosted(model)
    assert len(model(**batch).attentions) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_they_are_compiled_with_the_attention_that_they_are_set_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a backend that needs no C++ compiler."""
    real: Any = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, **_: real(call, backend="aot_eager"))
    monkeypatch.setattr(compile, "missing", lambda *_: None)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def graphs() -> int:
        return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    model, batch = bert(4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    job = Job()
    job.models.append(model.train())
    before = gradient(model, batch)
    attention = boost.apply(job, model, {})
    compiled = compile.apply(job, model, {"scope": "blocks"})
    for _ in range(2):
        assert_close(before, gradient(model, batch))
    made = graphs()
    attention.undo()
    for _ in range(2):
        assert_close(before, gradient(model, batch))
    assert (made, graphs()) == (1, 2), "one for each kind of attention"
    attention = boost.apply(job, model, {})
    assert_close(before, gradient(model, batch))
    assert graphs() == 2
    compiled.undo()
    attention.undo()
    assert torch.equal(gradient(model, batch), before)


# The boost itself -------------------------------------------------------------------------------


class Written(nn.Module):
    def forward(self, x: Any) -> Any:
        return (x @ x.mT).softmax(-1) @ x


def test_declined() -> None:
    for model in (nn.Linear(2, 2), Written(), bert(attn_implementation="sdpa")[0]):
        with pytest.raises(Declined, match="no model of Transformers is set to eager"):
            Boosted(model)
    with pytest.raises(Declined, match="on meta"):
        Boosted(nn.Linear(2, 2, device="meta"))
    with pytest.raises(Declined, match="DataParallel"):
        Boosted(nn.Sequential(nn.DataParallel(nn.Linear(2, 2))))
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].compile(backend="eager")
    with pytest.raises(Declined, match="compiles"):
        Boosted(model)


def test_what_cannot_be_set_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = bert()
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", lambda: False)
    with pytest.raises(Declined, match="chosen when it is made"):
        Boosted(model)
    monkeypatch.setattr(type(model), "_supports_sdpa", False)
    with pytest.raises(Declined, match="does not support sdpa"):
        Boosted(model)
    assert model.config._attn_implementation == "eager"
