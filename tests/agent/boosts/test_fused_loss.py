"""fused-loss: torch's own loss and gradients, to any order, and the original put back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy as imported_by_name
from torch.utils.checkpoint import checkpoint

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import fused_loss as boost
from flatout_agent.job import Job
from flatout_agent.speedups import loss_in_pieces
from flatout_agent.wire import JobFacts
from switched import switched, told

FACTS = JobFacts("2.13.0", "3.11", "linux", "cpu")
ORIGINAL = torch._C._nn.cross_entropy_loss
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def boosted(model: nn.Module | None = None) -> Applied:
    return boost.apply(Job(), model or nn.Linear(2, 2), {})


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is small counts as large, and falls into many pieces."""
    monkeypatch.setattr(boost, "SMALLEST", 1)
    monkeypatch.setattr(boost, "COLUMNS", 2)
    monkeypatch.setattr(loss_in_pieces, "PIECE", 16)


@pytest.fixture
def applied() -> Iterator[Applied]:
    torch.manual_seed(7)
    with switched(boost) as applied:
        yield applied
    assert torch._C._nn.cross_entropy_loss is ORIGINAL


def written(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The way as written, whatever is on."""
    current = torch._C._nn.cross_entropy_loss
    torch._C._nn.cross_entropy_loss = ORIGINAL
    try:
        return functional.cross_entropy(*args, **kwargs)
    finally:
        torch._C._nn.cross_entropy_loss = current


@dataclasses.dataclass(frozen=True)
class Case:
    rows: int
    columns: int
    half: bool
    reduction: str
    ignored: int
    share_ignored: float
    smoothing: float
    weighted: bool
    spread: float
    offset: float
    more: tuple[int, ...]
    factor: float
    seed: int

    def parts(self) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        generator = torch.Generator().manual_seed(self.seed)
        values = torch.randn(self.rows, *self.more, self.columns, generator=generator)
        logits = (values * self.spread + self.offset).movedim(-1, 1)
        shape = (self.rows, *self.more)
        target = torch.randint(self.columns, shape, generator=generator)
        away = torch.rand(shape, generator=generator) < self.share_ignored
        options: dict[str, Any] = {"reduction": self.reduction, "ignore_index": self.ignored}
        options["label_smoothing"] = self.smoothing
        if self.weighted:
            options["weight"] = torch.rand(self.columns, generator=generator)
        dtype = torch.bfloat16 if self.half else torch.float32
        return logits.to(dtype), target.masked_fill_(away, self.ignored), options


def cases() -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        rows=st.integers(1, 9),
        columns=st.integers(2, 40),
        half=st.booleans(),
        reduction=st.sampled_from(["mean", "sum"]),
        ignored=st.sampled_from([-100, -1, 0, 1]),
        share_ignored=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
        smoothing=st.sampled_from([0.0, 0.1, 1.0]),
        weighted=st.booleans(),
        spread=st.sampled_from([0.0, 1.0, 30.0, 300.0]),
        offset=st.sampled_from([0.0, -1000.0]),
        more=st.sampled_from([(), (3,), (2, 3)]),
        factor=st.sampled_from([1.0, 0.5, 3.0, 1000.0]),
        seed=st.integers(0, 99),
    )


def both(case: Case, function: Any, exact: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    logits, target, options = case.parts()
    if exact:
        logits = logits.double()
        options = {key: _doubled(value) for key, value in options.items()}
    logits.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=case.half and not exact):
        loss = function(logits, target, **options)
    (gradient,) = torch.autograd.grad(loss * case.factor, logits)
    return loss.detach(), gradient


def _doubled(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) else value


def assert_as_exact(
    found: torch.Tensor, usual: torch.Tensor, exact: torch.Tensor, rounded: float
) -> None:
    """Of the same kind, and no farther from the exact numbers than sums in another order may be."""
    assert (found.dtype, found.shape) == (usual.dtype, usual.shape)
    assert torch.equal(found.isnan(), usual.isnan())
    assert torch.equal(found.isinf(), usual.isinf())
    kept = exact.isfinite() & usual.isfinite()
    found, usual, exact = (item.double()[kept] for item in (found, usual, exact))
    if not kept.any():
        return
    unit = torch.finfo(torch.float32).eps * max(1.0, float(exact.abs().max()))
    allowed = 3 * float((usual - exact).norm()) + 3 * unit + rounded * float(exact.norm())
    assert float((found - exact).norm()) <= allowed


@quick
@given(case=cases())
@example(Case(4, 3, False, "mean", -100, 1.0, 0.0, False, 1.0, 0.0, (), 1.0, 0))
@example(Case(4, 40, False, "mean", -100, 0.3, 0.1, False, 300.0, 0.0, (), 1.0, 0))
@example(Case(4, 3, True, "sum", -100, 0.0, 0.0, False, 30.0, 0.0, (), 3.0, 0))
def test_loss_and_gradient_are_those_of_torch(applied: Applied, case: Case) -> None:
    before = applied.engaged()
    found = both(case, functional.cross_entropy)
    assert (applied.engaged() != before) == (not (case.weighted and case.smoothing))
    usual, exact = both(case, written), both(case, written, exact=True)
    # Half precision is rounded before the multiplication, and by it.
    rounded = 2**-8 if case.half and case.factor not in (1.0, 0.5) else 0.0
    for one, other, best in zip(found, usual, exact, strict=True):
        assert_as_exact(one, other, best, rounded)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("column", [0, 2])
def test_what_is_not_finite(applied: Applied, value: float, smoothing: float, column: int) -> None:
    results = []
    for function in (functional.cross_entropy, written):
        logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
        logits[2, column] = logits[4, column] = value
        logits.requires_grad_()
        target = torch.tensor([0, 1, 2, 3, -100, 4])
        loss = function(logits, target, label_smoothing=smoothing)
        results.append([loss.detach(), *torch.autograd.grad(loss, logits)])
    assert told(applied)[0]
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, equal_nan=True)


def test_large_pieces_and_threads(applied: Applied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    logits = torch.randn(1100, 2000, requires_grad=True)
    target = torch.randint(2000, (1100,))
    before, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            loss = functional.cross_entropy(logits, target)
            before.append([loss, *torch.autograd.grad(loss, logits)])
    finally:
        torch.set_num_threads(threads)
    loss = written(logits, target)
    usual = [loss, *torch.autograd.grad(loss, logits)]
    assert applied.engaged() == (True, "2 losses computed")
    for found in before:
        assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(found, usual, strict=True))


# Deeper uses of the graph ---------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_gradients(smoothing: float, weighted: bool) -> None:
    target = torch.tensor([0, 3, -100, 2])
    weight = torch.tensor([1.0, 2.0, 0.0, 0.5]).double() if weighted else None

    def loss(logits: torch.Tensor) -> torch.Tensor:
        wanted = loss_in_pieces.terms(logits, target, weight, True, -100, smoothing)
        assert wanted is not None
        with torch.no_grad():
            made = loss_in_pieces.loss_and_gradient(logits, wanted)
        first: torch.Tensor = loss_in_pieces.node().apply(logits, made)[0]
        return first

    logits = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, logits)
    assert torch.autograd.gradgradcheck(loss, logits)

    def slope(logits: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(loss(logits).square(), logits, create_graph=True)
        return found

    assert torch.autograd.gradgradcheck(slope, logits)


def _penalty(function: Any, logits: torch.Tensor, touched: bool) -> list[torch.Tensor]:
    target = torch.tensor([1, 0, 5, -100])
    leaf = logits.clone().requires_grad_()
    values = leaf * 1
    with torch.autocast("cpu", torch.bfloat16, enabled=leaf.dtype is torch.bfloat16):
        loss = function(values, target)
    if touched:
        values.mul_(2)
    (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
    (loss + 100 * first.float().square().sum()).backward()
    assert leaf.grad is not None
    return [first.detach(), leaf.grad]


@pytest.mark.parametrize("touched", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_gradient_penalty(applied: Applied, dtype: torch.dtype, touched: bool) -> None:
    """Also where the program writes into its logits after the loss."""
    logits = (3 * torch.randn(4, 7)).to(dtype)
    found = _penalty(functional.cross_entropy, logits, touched)
    assert told(applied)[0]
    near = 1e-5 if dtype is torch.float32 else 0.1 if touched else 0.02
    for one, other in zip(found, _penalty(written, logits, touched), strict=True):
        assert float((one - other).float().norm()) <= near * float(other.float().norm())


def test_a_second_backward_pass_over_a_kept_graph(applied: Applied) -> None:
    logits = torch.randn(5, 7, requires_grad=True)
    loss = 3 * functional.cross_entropy(logits, torch.tensor([0, 1, 2, 3, 4]))
    first = torch.autograd.grad(loss, logits, retain_graph=True)[0].clone()
    changed = torch.autograd.grad(loss, logits, retain_graph=True)[0].mul_(5)
    last = torch.autograd.grad(loss, logits)[0]
    assert torch.equal(first * 5, changed)
    assert torch.equal(first, last)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_gradients_are_the_programs_own_to_change(applied: Applied) -> None:
    """Two losses of the same logits, accumulation into `.grad`, hooks that write."""
    results = []
    for function in (functional.cross_entropy, written):
        torch.manual_seed(0)
        model = nn.Linear(4, 9)
        x, target = torch.randn(6, 4), torch.randint(9, (6,))
        for _ in range(3):
            logits = model(x)
            logits.retain_grad()
            logits.register_hook(lambda grad: grad.clamp_(min=-0.1))
            (function(logits, target) + 0.3 * function(logits, target.flip(0))).backward()
            logits.grad.zero_()
        results.append([parameter.grad for parameter in model.parameters()])
    assert told(applied)[0]
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(*results, strict=True))


def test_gradients_end_in_no_graph(applied: Applied) -> None:
    logits = torch.randn(5, 7, requires_grad=True)
    functional.cross_entropy(logits, torch.arange(5)).backward()
    assert logits.grad is not None
    assert not logits.grad.requires_grad
    assert logits.grad.is_leaf


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_loss_that_is_computed_again(applied: Applied, reentrant: bool) -> None:
    layer, x = nn.Linear(4, 9), torch.randn(6, 4, requires_grad=True)
    target = torch.randint(9, (6,))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(layer(x), target)

    plain = torch.autograd.grad(loss(x), [x])
    checkpoint(loss, x, use_reentrant=reentrant).backward()
    # The reentrant kind needs no gradient the first time.
    assert applied.engaged() == (True, f"{2 if reentrant else 3} losses computed")
    assert torch.equal(plain[0], x.grad)  # type: ignore[arg-type]


def test_saved_tensors_elsewhere(applied: Applied) -> None:
    logits, target = torch.randn(5, 7, requires_grad=True), torch.arange(5)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy(), torch.from_numpy):
        loss = functional.cross_entropy(logits, target)
    assert told(applied)[0]
    found = torch.autograd.grad(3 * loss, logits)[0]
    assert torch.allclose(found, torch.autograd.grad(3 * written(logits, target), logits)[0])


def test_many_gradients_at_once(applied: Applied) -> None:
    logits, target = torch.randn(5, 7, requires_grad=True), torch.arange(5)
    loss = functional.cross_entropy(logits, target)
    factors = torch.tensor([1.0, 2.0])
    (found,) = torch.autograd.grad(loss, logits, factors, is_grads_batched=True)
    (usual,) = torch.autograd.grad(written(logits, target), logits)
    assert torch.allclose(found, factors.view(2, 1, 1) * usual)
    second = torch.autograd.functional.hessian(
        lambda x: functional.cross_entropy(x, target), logits.detach()
    )
    usual = torch.autograd.functional.hessian(lambda x: written(x, target), logits.detach())
    assert torch.allclose(second, usual, atol=1e-6)
    assert told(applied)[0]


# What stays as it is --------------------------------------------------------------------------

LOGITS = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))
TARGET = torch.tensor([0, 1, 2, 3, 4, -100])
OTHERS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "probabilities": lambda: (LOGITS.clone().requires_grad_(), LOGITS.softmax(1)),
    "one row": lambda: (LOGITS[0].clone().requires_grad_(), TARGET[0]),
    "each row": lambda: (LOGITS.clone().requires_grad_(), TARGET, None, None, -100, None, "none"),
    "double": lambda: (LOGITS.double().requires_grad_(), TARGET),
    "half": lambda: (LOGITS.bfloat16().requires_grad_(), TARGET),
    "no gradient": lambda: (LOGITS, TARGET),
    "images": lambda: (LOGITS.view(3, 2, 5).clone().requires_grad_(), torch.ones(3, 5).long()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_stays_as_it_is(applied: Applied, name: str) -> None:
    found, usual = (function(*OTHERS[name]()) for function in (functional.cross_entropy, written))
    assert not told(applied)[0]
    assert torch.equal(found, usual)
    assert (found.dtype, found.requires_grad) == (usual.dtype, usual.requires_grad)
    assert str(found.grad_fn).split()[0] == str(usual.grad_fn).split()[0]


def test_the_dtype_under_autocast_decides(applied: Applied) -> None:
    logits = LOGITS.half().requires_grad_()
    with torch.autocast("cpu", torch.float16):
        functional.cross_entropy(logits, TARGET)
    assert not told(applied)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert functional.cross_entropy(LOGITS.bfloat16().requires_grad_(), TARGET).dtype == (
            torch.float32
        )
    assert told(applied)[0]


@pytest.mark.parametrize(("target", "kind"), [(5, IndexError), (-1, IndexError), (99, IndexError)])
def test_errors_are_those_of_torch(applied: Applied, target: int, kind: type[Exception]) -> None:
    logits = LOGITS.clone().requires_grad_()
    targets = torch.tensor([0, 1, 2, 3, target, 4])
    assert loss_in_pieces.terms(logits, targets, None, True, -100, 0.0) is None
    with pytest.raises(kind, match=f"Target {target} is out of bounds"):
        functional.cross_entropy(logits, targets)
    with pytest.raises(ValueError, match="batch_size"):
        functional.cross_entropy(logits, TARGET[:4])
    with pytest.raises(RuntimeError, match="label_smoothing must be between"):
        functional.cross_entropy(logits, TARGET, label_smoothing=1.5)
    with pytest.raises(RuntimeError, match="weight tensor"):
        functional.cross_entropy(logits, TARGET, weight=torch.ones(3))
    with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'weight'"):
        functional.cross_entropy(logits, TARGET, weight=torch.ones(5, requires_grad=True))
    assert not told(applied)[0]


def test_an_error_of_ours_reaches_nobody(applied: Applied, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(loss_in_pieces, "loss_and_gradient", broken)
    logits = LOGITS.clone().requires_grad_()
    assert torch.equal(functional.cross_entropy(logits, TARGET), written(logits, TARGET))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
def test_modes_of_torch_that_need_its_own(applied: Applied) -> None:
    logits = LOGITS.clone().requires_grad_()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(logits, LOGITS)
        functional.cross_entropy(dual, TARGET)
    for mode in (torch.autograd.detect_anomaly(), torch.no_grad()):
        with mode:
            functional.cross_entropy(logits, TARGET)
    torch.use_deterministic_algorithms(True)
    try:
        functional.cross_entropy(logits, TARGET)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not told(applied)[0]


# On and off -----------------------------------------------------------------------------------


def test_every_way_to_call_it_is_reached(applied: Applied) -> None:
    logits = LOGITS.clone().requires_grad_()
    for number, call in enumerate(
        (functional.cross_entropy, imported_by_name, nn.CrossEntropyLoss()), 1
    ):
        call(logits, TARGET)
        assert applied.engaged() == (True, f"{number} losses computed")


def test_small_losses_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    applied = boosted()
    for rows, columns in ((6, 5), (300_000, 10)):
        target = torch.randint(columns, (rows,))
        functional.cross_entropy(torch.randn(rows, columns, requires_grad=True), target)
    applied.undo()
    assert applied.engaged() == (False, "no cross entropy of 2,097,152 logits or more was seen")


# What it says ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, 1])
def test_it_declines_where_torch_computes_something_else(
    monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    made = loss_in_pieces.loss_and_gradient

    def other(*args: Any) -> loss_in_pieces.Made:
        found = made(*args)
        changes = [{"loss": found.loss * 1.1}, {"gradient": found.gradient * 1.1}]
        return dataclasses.replace(found, **changes[wrong])

    monkeypatch.setattr(boost, "_loss", boost.Loss)
    monkeypatch.setattr(loss_in_pieces, "loss_and_gradient", other)
    with pytest.raises(Declined, match="differ"):
        boosted()
    monkeypatch.setattr(loss_in_pieces, "terms", lambda *args: 1 / 0)
    with pytest.raises(Declined, match="does not work"):
        boosted()
    assert torch._C._nn.cross_entropy_loss is ORIGINAL


def test_by_hand_is_cross_entropy() -> None:
    names: dict[str, Any] = {"torch": torch}
    logits, target = torch.randn(150, 9, requires_grad=True), torch.randint(9, (150,))
    exec(boost.by_hand(FACTS, {}), {**names, "logits": logits, "target": target}, names)
    usual = functional.cross_entropy(logits, target)
    assert torch.allclose(names["loss"], usual)
    found = torch.autograd.grad(2 * names["loss"], logits)[0]
    assert torch.allclose(found, 2 * torch.autograd.grad(usual, logits)[0], atol=1e-8)
