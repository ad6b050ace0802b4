"""compiling: what is compiled, what falls back, and (slow) the real compiler."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout_agent.speedups.repeated_blocks import alike_blocks
from flatout_train.step import compiling

CPU = torch.device("cpu")
REAL: Any = torch.compile
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    # Dynamo hides it from people, not from a filter that makes errors of warnings.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

Pair = tuple[Tensor, Tensor]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc, self.out = nn.Linear(width, 16), nn.Linear(16, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.out(F.gelu(self.fc(self.norm(x))))
        return out


class Net(nn.Module):
    def __init__(self, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def network(depth: int = 3) -> Net:
    torch.manual_seed(0)
    return Net(depth=depth)


def batch(size: int = 5) -> Pair:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 4, generator=generator), torch.randint(3, (size,), generator=generator)


def loss_of(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda pair: F.cross_entropy(model(pair[0]), pair[1])


def gradients(model: nn.Module, call: Callable[[Any], Tensor], pair: Pair) -> Tensor:
    model.zero_grad()
    call(pair).backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("how", ["whole", "blocks"])
def test_gradients_are_the_same_at_changing_shapes_and_undo_restores(how: str) -> None:
    model, plain = network(), network()
    keys = list(model.state_dict())
    chosen = compiling.choose(how, model, loss_of(model), CPU)
    assert chosen.how == how
    assert chosen.note() == f"{how}: not called yet"
    for size in (5, 5, 3, 7, 6):
        torch.testing.assert_close(
            gradients(model, chosen.call, batch(size)),
            gradients(plain, loss_of(plain), batch(size)),
        )
    assert chosen.note() == f"{how}: 2 graphs, 1 recompilations, 0 graph breaks"
    assert list(model.state_dict()) == keys
    assert [type(m) for m in copy.deepcopy(model).modules()] == [type(m) for m in plain.modules()]
    chosen.undo()
    assert not [m for m in model.modules() if "_compiled_call_impl" in m.__dict__]


def fail_in(monkeypatch: pytest.MonkeyPatch, where: str, having: str = "") -> None:
    """A compiler that fails in one of its two passes, at graphs that have this operation."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def compile_(wanted: str) -> Any:
        def run(graph: Any, inputs: Any) -> Any:
            if wanted == where and having in graph.code:
                raise RuntimeError("no such kernel")
            return make_boxed_func(graph.forward)

        return run

    backend = aot_autograd(fw_compiler=compile_("forward"), bw_compiler=compile_("backward"))
    monkeypatch.setattr(torch, "compile", lambda call, **_: REAL(call, backend=backend))


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("asked", ["whole", "blocks"])
def test_a_failing_compiler_runs_as_written_once_per_call(
    asked: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in(monkeypatch, where)
    model, plain, calls = network(), network(), [0]

    def count(pair: Any) -> Tensor:
        calls[0] += 1
        return loss_of(model)(pair)

    chosen = compiling.choose(asked, model, count, CPU)
    for _ in range(2):
        torch.testing.assert_close(
            gradients(model, chosen.call, batch()), gradients(plain, loss_of(plain), batch())
        )
    assert calls[0] == 2
    assert chosen.note().startswith("no: the compiler failed: ")
    assert "no such kernel" in chosen.note()


class Strict(nn.Module):
    def __init__(self, checks: bool) -> None:
        super().__init__()
        self.fc, self.checks = nn.Linear(4, 4), checks

    def forward(self, x: Tensor) -> Tensor:
        if self.checks and x.shape[-1] != 4:
            raise ValueError("four are wanted")
        out: Tensor = self.fc(x)
        return out


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("asked", ["whole", "blocks"])
@pytest.mark.parametrize(("checks", "words"), [(True, "four are wanted"), (False, "mat1 and mat2")])
def test_the_callers_own_error_comes_out_and_the_next_batch_is_compiled(
    asked: str, checks: bool, words: str
) -> None:
    model = nn.Sequential(*(Strict(checks) for _ in range(3)))
    chosen = compiling.choose(asked, model, loss_of(model), CPU)
    for _ in range(2):
        with pytest.raises((ValueError, RuntimeError), match=words):
            chosen.call((torch.randn(5, 9), batch()[1]))
        assert "failed" not in chosen.note()
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        chosen.call(batch())
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before
        assert chosen.note().startswith(f"{asked}: ")


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(("memory", "renewals"), [(True, 0), (False, 1)])
def test_running_out_of_memory_costs_no_compilation(
    memory: bool, renewals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, errors = nn.Linear(4, 3), [None, MemoryError() if memory else KeyError("mine"), None]

    @torch._dynamo.disable
    def end(loss: Tensor) -> Tensor:
        error = errors.pop(0)
        if error is not None:
            raise error
        return loss

    chosen = compiling.choose("whole", model, lambda pair: end(loss_of(model)(pair)), CPU)
    chosen.call(batch())
    renewed: list[object] = []
    monkeypatch.setattr(compiling.Code, "renew", lambda code: renewed.append(code))
    with pytest.raises((MemoryError, KeyError)):
        chosen.call(batch())
    assert len(renewed) == renewals


class Halves(nn.Module):
    """Two graphs, and a count of how often the first one ran."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        torch._dynamo.graph_break()
        out: Tensor = self.fc(x.sin())
        return out


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_what_had_begun_is_not_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_in(monkeypatch, "forward", having="sin")
    model = Halves()
    chosen = compiling.choose("whole", model, loss_of(model), CPU)
    for done in (1, 2):
        chosen.call(batch()).backward()  # type: ignore[no-untyped-call]
        assert int(model.norm.num_batches_tracked or 0) == done
    assert chosen.note().startswith("whole: 2 graphs")
    assert "a part failed: " in chosen.note()


class Strided(nn.Module):
    """Like a residual network: its blocks repeat, most of its layers are elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.rest = nn.ModuleList(nn.Linear(4, 4 + size) for size in range(30))
        self.same = nn.Sequential(*(Block(8) for _ in range(3)))


@pytest.mark.parametrize(
    ("model", "groups", "how"),
    [
        (Net(depth=3), [3], "blocks"),
        (Net(depth=2), [], "whole"),
        (nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))), [], "whole"),
        (nn.Sequential(Net(depth=3), Net(depth=4)), [7], "blocks"),
        (nn.Sequential(*(Net(depth=3) for _ in range(3))), [9], "blocks"),
        (Strided(), [3], "whole"),
    ],
)
@pytest.mark.usefixtures("traced")
def test_repeated_blocks(model: nn.Module, groups: list[int], how: str) -> None:
    assert [len(group) for group in alike_blocks(model)] == groups
    device = torch.device("cuda")
    chosen = compiling.choose("auto", model, loss_of(model), device)
    assert chosen.how == how
    chosen.undo()


@pytest.mark.parametrize(
    ("asked", "model", "word"),
    [
        (False, network(), "requested"),
        ("auto", network(), "on the CPU it saves"),
        ("blocks", network(depth=2), "no repeated blocks"),
        (True, nn.DataParallel(network()), "DataParallel"),
    ],
)
@pytest.mark.usefixtures("traced")
def test_as_written_with_the_reason(asked: Any, model: nn.Module, word: str) -> None:
    call = loss_of(model)
    chosen = compiling.choose(asked, model, call, CPU)
    assert (chosen.call, chosen.how) == (call, "no")
    assert word in chosen.reason
    assert chosen.note() == f"no: {chosen.reason}"
    chosen.undo()


@pytest.mark.usefixtures("traced")
def test_what_the_script_compiles_itself_is_left_alone() -> None:
    model = network()
    model.blocks[1].compile()
    assert "itself" in compiling.choose("whole", model, loss_of(model), CPU).reason


def test_without_a_compiler_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "missing", lambda *_: "there is no g++")
    model = network()
    chosen = compiling.choose(True, model, loss_of(model), CPU)
    assert (chosen.how, chosen.reason) == ("no", "there is no g++")


@pytest.mark.parametrize(
    ("model", "how", "reason"),
    [(network(), "blocks", "3 x Block"), (nn.Linear(4, 3), "whole", "model and loss in one graph")],
)
def test_tuned_compiles_what_auto_would_with_kernels_that_are_timed(
    model: nn.Module, how: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[str] = []

    def compile_(call: Any, mode: str = "default") -> Any:
        modes.append(mode)
        return call

    monkeypatch.setattr(compiling, "missing", lambda *_: None)
    monkeypatch.setattr(torch, "compile", compile_)
    cuda = torch.device("cuda")
    assert compiling.choose("auto", model, loss_of(model), cuda).how == how
    assert set(modes) == {"default"}
    modes.clear()
    chosen = compiling.choose("tuned", model, loss_of(model), cuda)
    assert (chosen.how, chosen.reason) == (how, f"{reason}, {compiling.TUNED}")
    assert set(modes) == {compiling.TUNED}
    chosen.undo()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("asked", ["whole", "tuned"])
def test_on_the_cpu_each_keeps_the_random_numbers_of_eager(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def compile_(call: Any, **settings: Any) -> Any:
        seen.append(settings)
        return REAL(call, **settings)  # torch refuses options that it does not know

    monkeypatch.setattr(compiling, "missing", lambda *_: None)
    monkeypatch.setattr(torch, "compile", compile_)
    model = nn.Linear(4, 3)
    compiling.choose(asked, model, loss_of(model), CPU).undo()
    (options,) = [settings["options"] for settings in seen]
    assert options["fallback_random"] is True
    tuned = asked == "tuned"
    assert ("max_autotune" in options, "coordinate_descent_tuning" in options) == (tuned, tuned)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("asked", ["blocks", "whole", "tuned"])
def test_the_real_compiler(asked: str) -> None:
    model, plain = network(), network()
    chosen = compiling.choose(asked, model, loss_of(model), CPU)
    for _ in range(2):
        torch.testing.assert_close(
            gradients(model, chosen.call, batch()), gradients(plain, loss_of(plain), batch())
        )
    assert chosen.note().startswith(f"{chosen.how}: 1 graphs")


@pytest.mark.gpu
@pytest.mark.parametrize("asked", ["auto", "whole", "tuned"])
def test_the_real_compiler_on_the_gpu(asked: str) -> None:
    model, plain = network().cuda(), network().cuda()
    pair = batch()[0].cuda(), batch()[1].cuda()
    chosen = compiling.choose(asked, model, loss_of(model), torch.device("cuda"))
    losses = []
    for _ in range(4):
        wanted = gradients(plain, loss_of(plain), pair)
        model.zero_grad()
        losses.append(chosen.call(pair))
        losses[-1].backward()  # type: ignore[no-untyped-call]
        found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    assert len({float(loss.detach()) for loss in losses}) == 1, "none was written over"
    assert "failed" not in chosen.note()
