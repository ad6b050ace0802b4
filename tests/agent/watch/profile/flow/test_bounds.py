"""The flow beside unusual programs: their overrides, errors, threads, memory written past torch."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections import UserDict
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from flatout_agent import wire
from flatout_agent.watch.profile.counting import flop_counter as counter
from flatout_agent.watch.profile.flow import constants
from flatout_agent.watch.profile.flow import notes as notes_module
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.flow.notes import fields
from flatout_agent.watch.profile.flow.questions.gradients import unused_gradients
from flatout_agent.watch.profile.flow.results import results

WIDTH = 64


class Model(nn.Module):
    """A layer; what else it is called with is for those who look at calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, other: Any = None) -> torch.Tensor:
        return self.layer(x)


def followed(
    inside: Callable[[torch.Tensor], Any] = lambda output: None,
    other: Any = None,
    model: nn.Module | None = None,
) -> tuple[Flow, wire.FlowSeen | None]:
    """Two steps; `inside` gets the output in each."""
    model = model or Model()
    flow = Flow([model], lambda: False)
    end = counter([model], flow)
    assert end is not None
    try:
        for _ in range(2):
            x = torch.randn(WIDTH, WIDTH)
            flow.batch([x])
            output = model(x, other)
            kept = inside(output)
            output.square().mean().backward()
            del kept
            flow.next_step()
    finally:
        end()
    return flow, results(flow)


class Noting(TorchFunctionMode):
    """As a program's own that counts what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Noted(torch.Tensor):
    """A program's own tensor."""

    names: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.names.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def calls(followed: bool) -> tuple[list[str], list[str]]:
    """What the program's own overrides see of one step."""
    model, Noted.names = Model(), []
    flow = Flow([model], lambda: False)
    x = torch.randint(0, 5, (8, 16)).as_subclass(Noted)
    end = counter([model], flow) if followed else None
    with Noting() as mode:
        if followed:
            flow.batch([x])
        model(torch.randn(WIDTH, WIDTH), x).square().mean().backward()
        (x + 1).tolist()
    if end is not None:
        end()
        assert flow.error is None
        assert flow.nodes
    return mode.names, Noted.names


def test_overrides_of_the_program_see_nothing_of_it() -> None:
    mode, tensor = calls(followed=False)
    assert calls(followed=True) == (mode, tensor)
    assert "tolist" in tensor


class Broken(UserDict[str, Any]):
    """A nest of the program's that cannot be looked into."""

    def items(self) -> Any:
        raise LookupError("not loaded")


def test_a_nest_that_raises_ends_the_following_alone() -> None:
    flow, seen = followed(other=Broken())
    assert isinstance(flow.error, LookupError)
    assert seen is None


def test_large_nests_are_not_searched_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_module, "MOST_MEMBERS", 100)
    x, y = torch.zeros(1), torch.zeros(2)
    deep: list[Any] = []
    deep.extend([deep, deep])
    batch = {"rows": [[0] * 1000 for _ in range(1000)], "deep": deep, "x": (x, {"y": y})}
    found = dict(fields(batch))
    assert list(found) == ['["x"][0]']
    assert found['["x"][0]'] is x
    assert dict(fields(({"y": y},)))['[0]["y"]'] is y


def test_two_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward passes of two devices, while the first one waits for its device, as in `.item()`."""
    flow = Flow([Model()], lambda: False)
    monkeypatch.setattr(flow.notes, "operator", lambda *given: time.sleep(1e-4))

    def work() -> None:
        for _ in range(20):
            taken = torch.zeros(1)
            made = taken.neg()
            flow.operator(torch.ops.aten.neg.default, (taken,), {}, made, 0.0, 0.0)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert flow.error is None
    assert [node.made[0].node for node in flow.nodes] == list(range(40))


WEIGHT = nn.Parameter(torch.zeros(WIDTH, WIDTH, device="meta"))
STAGING = torch.zeros(WIDTH, WIDTH)
TABLE = torch.zeros(WIDTH, WIDTH, device="meta")


def staged(output: torch.Tensor) -> torch.Tensor:
    return STAGING.to("meta").mul(2).add(WEIGHT)


def test_memory_of_the_host_that_the_program_fills_without_torch() -> None:
    _, seen = followed(staged)
    assert seen is not None
    assert [row.compared for row in seen.constants] == [False], "the same in both steps"
    values = STAGING.numpy()

    def filled(output: torch.Tensor) -> torch.Tensor:
        values[0] += 1
        return staged(output)

    _, seen = followed(filled)
    assert seen is not None
    assert seen.constants == ()


def test_memory_of_a_device_that_a_kernel_gets() -> None:
    def scaled(output: torch.Tensor) -> torch.Tensor:
        return TABLE.mul(2).add(WEIGHT)

    def written(output: torch.Tensor) -> torch.Tensor:
        TABLE.data_ptr()  # for a kernel
        return scaled(output)

    for inside, told in ((scaled, 1), (written, 0)):
        _, seen = followed(inside)
        assert seen is not None
        assert len(seen.constants) == told


def test_what_comes_from_a_tensor_without_storage_is_no_constant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "MOST_BYTES", 0)  # compared by how it is made

    def multiplied(output: torch.Tensor) -> torch.Tensor:
        graph = torch.randn(WIDTH, WIDTH).to_sparse()
        return output * torch.sparse.mm(graph, STAGING)

    flow, seen = followed(multiplied)
    assert flow.error is None
    assert seen is not None
    assert seen.constants == ()


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
def test_nested_and_compressed_tensors() -> None:
    model = Model()
    model.register_buffer("graph", torch.eye(WIDTH).to_sparse_csr())

    def nested(output: torch.Tensor) -> float:
        rows = torch.nested.nested_tensor([output[0, :2].detach(), output[1, :3].detach()])
        return rows.mul(2).to_padded_tensor(0.0).sum().item()

    flow, seen = followed(nested, model=model)
    assert flow.error is None
    assert seen is not None


def test_a_weight_that_is_replaced_leaves_its_address_free() -> None:
    model = Model()
    flow = Flow([model], lambda: False)
    owned = set(flow.book.owned)
    model.layer.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
    made = [torch.zeros(WIDTH, WIDTH) for _ in range(200)]
    assert owned.isdisjoint({tensor.untyped_storage()._cdata for tensor in made})


def test_optimizers_that_cannot_be_found() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters())  # has not stepped yet
    gc.freeze()
    try:
        flow, seen = followed(model=model)
    finally:
        gc.unfreeze()
    assert seen is not None
    assert seen.gradients is None
    assert unused_gradients(flow, None) is None
    del optimizer


class Extension(torch.autograd.Function):
    """As that of an extension in C++: no operator tells what its kernels take and write."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = torch.empty(x.shape)
        address, size = torch._C.TensorBase.data_ptr, made.numel() * made.element_size()
        ctypes.memmove(address(made), address(x), size)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class Attention(Model):
    def __init__(self) -> None:
        super().__init__()
        self.keys, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, other: Any = None) -> torch.Tensor:
        keys = self.keys(x)
        return self.head(Extension.apply(self.layer(x), keys))


def test_what_unseen_kernels_take_is_not_told_as_unread() -> None:
    flow, seen = followed(model=Attention())
    assert flow.error is None
    assert seen is not None
    assert (seen.unread, seen.beside, seen.constants, seen.repeats) == ((), (), (), ())


def test_memory_that_numpy_or_another_process_writes_hides_nothing() -> None:
    distributed = torch.distributed
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def gathered(output: torch.Tensor) -> torch.Tensor:
        filled, none = torch.empty(WIDTH, WIDTH), torch.cat([torch.empty(0), output[0]])
        filled.numpy()[:] = 1
        parts = [torch.empty(WIDTH, WIDTH)]
        distributed.all_gather(parts, output.detach() + none.sum().detach())
        whole = torch.empty(WIDTH, WIDTH)
        distributed.all_gather([whole], parts[0] * filled)
        (output @ output).softmax(1)  # FUTILE
        return whole.sum().item()

    try:
        flow, seen = followed(gathered)
    finally:
        distributed.destroy_process_group()
    assert (flow.error, flow.unseen) == (None, False)
    assert seen is not None
    assert [set(row.what.split(", ")) for row in seen.unread] == [{"mm", "_softmax"}]
