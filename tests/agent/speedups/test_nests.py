"""Tensors inside the nests that models really return."""

import collections
import dataclasses

import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from flatout_agent.speedups import nests

Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Frozen:
    logits: torch.Tensor
    name: str


def low(*shape):
    return torch.ones(*shape, dtype=torch.bfloat16)


def cast(value):
    return nests.change(value, lambda x: x.float() if x.dtype == torch.bfloat16 else x)


def test_nests_keep_their_type_and_other_dtypes_their_own():
    indices = torch.arange(3)
    out = cast({"a": low(2), "b": [indices, (low(1), None)], "c": Pair(low(1), "x")})
    assert out["a"].dtype == torch.float32
    assert out["b"][0] is indices
    assert out["b"][1][0].dtype == torch.float32
    assert isinstance(out["c"], Pair)
    assert out["c"].a.dtype == torch.float32
    assert out["c"].b == "x"


def test_dataclasses_and_model_outputs_keep_their_type():
    frozen = cast(Frozen(low(2), "n"))
    assert frozen.logits.dtype == torch.float32
    assert frozen.name == "n"
    before = SequenceClassifierOutput(loss=torch.ones(()), logits=low(2, 2))
    after = cast(before)
    assert type(after) is SequenceClassifierOutput
    assert after.logits.dtype == after["logits"].dtype == torch.float32
    assert after[1].dtype == torch.float32
    assert before.logits.dtype == torch.bfloat16, "the model's own object stays as it was"


def test_what_holds_nothing_to_cast_is_the_same_object():
    for value in ({"a": torch.ones(2)}, [1, "x"], Pair(1, 2), Frozen(torch.ones(1), "x"), None):
        assert cast(value) is value


def test_gradients_flow_through_the_cast():
    weight = torch.ones(2, requires_grad=True)
    cast([weight.to(torch.bfloat16) * 3])[0].sum().backward()
    assert weight.grad.tolist() == [3.0, 3.0]


def test_tensors_are_found_wherever_they_are():
    nest = {"a": torch.ones(1), "b": [Pair(torch.ones(2), None), Frozen(torch.ones(3), "x")]}
    assert [len(item) for item in nests.tensors(nest)] == [1, 2, 3]
