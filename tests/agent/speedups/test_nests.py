"""Tensors inside the nests that models really return."""

import collections
import dataclasses
from types import MappingProxyType

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

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
    from transformers.modeling_outputs import SequenceClassifierOutput

    before = SequenceClassifierOutput(loss=torch.ones(()), logits=low(2, 2))
    after = cast(before)
    assert type(after) is SequenceClassifierOutput
    assert after.logits.dtype == after["logits"].dtype == torch.float32
    assert after[1].dtype == torch.float32
    assert before.logits.dtype == torch.bfloat16, "the model's own object stays as it was"


def test_distributions_are_cast_with_those_they_are_made_of():
    from torch import distributions as D

    normal = D.Normal(low(4, 2), low(4, 2))
    before = D.Independent(D.TransformedDistribution(normal, D.TanhTransform(cache_size=1)), 1)
    after = cast({"policy": before})["policy"]
    action = after.rsample()
    assert action.dtype == after.log_prob(action).dtype == torch.float32
    assert (type(after), after.event_shape) == (D.Independent, before.event_shape)
    assert before.rsample().dtype == torch.bfloat16, "the model's own object stays as it was"
    assert len(list(nests.tensors(D.Categorical(logits=low(4, 3))))) >= 1


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


def test_leaves_are_named_by_the_way_to_them():
    one = torch.zeros(2)
    batch = {"a": one, 3: [one, (one, "text")], "n": Pair(one, one), "d": Frozen(one, "x")}
    assert [path for path, _ in nests.paths(batch)] == [
        "batch['a']",
        "batch[3][0]",
        "batch[3][1][0]",
        "batch['n'].a",
        "batch['n'].b",
        "batch['d'].logits",
    ]


def test_what_the_rule_calls_a_leaf_stays_whole():
    packed = pack_sequence([torch.ones(3), torch.ones(1)])
    batch = {"x": packed, "n": 3}

    def is_packed(value):
        return isinstance(value, PackedSequence)

    assert [leaf is packed for leaf in nests.leaves(batch, is_packed)] == [True]
    assert nests.change(batch, lambda leaf: "packed", is_packed) == {"x": "packed", "n": 3}
    assert batch["x"] is packed


def test_of_read_only_mappings_comes_a_dict_where_something_changes():
    batch = MappingProxyType({"a": low(1), "n": 3})
    assert len(list(nests.tensors(batch))) == 1
    after = cast(batch)
    assert type(after) is dict
    assert after["a"].dtype == torch.float32
    assert after["n"] == 3
    assert nests.change(batch, lambda tensor: tensor) is batch


def test_nests_that_hold_themselves_end_at_the_deepest():
    tensor = torch.ones(1)
    batch = [tensor]
    batch.append(batch)
    assert len(list(nests.leaves(batch, deepest=3))) == 4
    with pytest.raises(RecursionError):
        list(nests.tensors(batch))


def test_members_are_named_and_in_order():
    assert list(nests.members({"a": 1, 2: "b"})) == [("a", 1), (2, "b")]
    assert list(nests.members(Pair(1, 2))) == [(0, 1), (1, 2)]
    assert list(nests.members(Frozen(None, "x"))) == [("logits", None), ("name", "x")]
    for plain in ("text", 3, None, Frozen, {1, 2}):
        assert nests.members(plain) is None
