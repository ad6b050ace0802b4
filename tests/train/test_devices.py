"""device() and to_device(): what works, not what is claimed; nests of everything."""

from __future__ import annotations

import dataclasses
import warnings
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import flatout
from flatout_train.devices import RESULT, TorchBackend, choose
from flatout_train.errors import UsageError


@dataclasses.dataclass
class FakeBackend:
    kind: str
    reason: str | None = None
    answer: float | Exception = RESULT
    devices: int = 1
    asked: list[torch.device] = dataclasses.field(default_factory=list)

    def missing(self) -> str | None:
        return self.reason

    def count(self) -> int:
        return self.devices

    def current(self) -> int:
        return self.devices - 1

    def result(self, device: torch.device) -> float:
        self.asked.append(device)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_the_first_that_computes_rightly_is_taken() -> None:
    backends = [FakeBackend("cuda", reason=""), FakeBackend("xpu", devices=3), FakeBackend("mps")]
    assert choose(backends, None) == torch.device("xpu", 2)
    assert backends[1].asked == [torch.device("xpu", 2)]
    assert backends[2].asked == []


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (FakeBackend("cuda", answer=RuntimeError("no kernel image is available")), "no kernel"),
        (FakeBackend("cuda", answer=RuntimeError("devices are busy or unavailable")), "busy"),
        (FakeBackend("cuda", answer=1023.0), "1023.0 instead of 1024.0"),
        (FakeBackend("cuda", reason="the NVIDIA driver is too old"), "too old"),
    ],
)
def test_what_is_claimed_and_does_not_work_is_passed_over_with_the_reason(
    broken: FakeBackend, message: str
) -> None:
    with pytest.warns(RuntimeWarning, match=message) as caught:
        assert choose([broken, FakeBackend("xpu")], None) == torch.device("xpu", 0)
    assert len(caught) == 1


def test_a_kind_that_is_not_there_is_passed_over_silently() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose([FakeBackend("cuda", reason="")], None) == torch.device("cpu")


def test_each_local_rank_gets_its_own_device() -> None:
    assert choose([FakeBackend("cuda", devices=4)], 2) == torch.device("cuda", 2)
    assert choose([FakeBackend("cuda", devices=1)], 2) == torch.device("cuda", 0)
    with pytest.raises(UsageError, match="LOCAL_RANK is 4, but this process sees 2 cuda devices"):
        choose([FakeBackend("cuda", devices=2)], 4)


def test_torchs_own_backends_answer_on_this_machine() -> None:
    backend = TorchBackend("cpu")
    assert backend.missing() is None
    assert backend.result(torch.device("cpu")) == RESULT
    assert flatout.device() is flatout.device()


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Example:
    image: torch.Tensor
    name: str


def test_any_nest_is_moved_and_keeps_its_types() -> None:
    tensor = torch.ones(2)
    nest = {"pair": Pair(tensor, [tensor, "text"]), "example": Example(tensor, "a"), "n": 3}
    moved = flatout.to_device(nest, "meta")
    assert isinstance(moved["pair"], Pair)
    assert moved["pair"].x.is_meta
    assert moved["pair"].y[0].is_meta
    assert moved["pair"].y[1] == "text"
    assert moved["example"].image.is_meta
    assert moved["example"].name == "a"
    assert moved["n"] == 3
    assert not nest["pair"].x.is_meta


def test_objects_that_move_themselves_are_asked_to() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    from transformers import BatchEncoding  # only where this is run: it takes seconds

    encoding = BatchEncoding({"input_ids": torch.ones(1, 2)})
    moved = flatout.to_device([packed, encoding], "meta")
    assert isinstance(moved[0], PackedSequence)
    assert moved[0].data.is_meta
    assert moved[0].batch_sizes.device.type == "cpu"
    assert isinstance(moved[1], BatchEncoding)
    assert moved[1]["input_ids"].is_meta


def test_what_models_return_and_read_only_mappings_are_moved() -> None:
    from transformers.modeling_outputs import SequenceClassifierOutput

    output = SequenceClassifierOutput(logits=torch.ones(2))
    moved = flatout.to_device([output, MappingProxyType({"x": torch.ones(1)})], "meta")
    assert type(moved[0]) is SequenceClassifierOutput
    assert moved[0].logits.is_meta
    assert not output.logits.is_meta
    assert moved[1]["x"].is_meta


def test_what_is_there_already_is_not_copied() -> None:
    nest = {"x": torch.ones(2), "rest": [torch.ones(1), Pair(torch.ones(3), 1)]}
    assert flatout.to_device(nest, "cpu") is nest
    packed = pack_sequence([torch.ones(3)])
    assert flatout.to_device([packed], "cpu")[0].data is packed.data


@pytest.mark.gpu
def test_on_cuda_from_pinned_and_from_plain_memory() -> None:
    device = flatout.device()
    assert device.type == "cuda"
    plain, pinned = torch.arange(1000), torch.arange(1000).pin_memory()
    moved = flatout.to_device({"plain": plain, "pinned": pinned})
    assert moved["plain"].device == moved["pinned"].device == device
    assert torch.equal(moved["plain"].cpu(), plain)
    assert torch.equal(moved["pinned"].cpu(), plain)
    assert flatout.to_device(moved) is moved
