"""`logits="chunked"`: the numbers of stored logits without storing them, whatever reads them."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import flatout
from flatout_train.errors import UsageError
from flatout_train.step import chunked_head, chunked_loss, compiling
from flatout_train.step.chunked_loss import ChunkedLossTerms, chunk_rows, cross_entropy
from flatout_train.step.deferred_logits import DeferredLogits
from flatout_train.step.graph.whole_step import WholeStep
from flatout_train.step.loss_region import SMALLEST
from train.step.graph.fake import FakeRecorder

# Dynamo hides it from people, not from a filter that makes errors of warnings.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
BATCH, LENGTH, WIDTH = 4, 256, 8
CLASSES = SMALLEST // (BATCH * LENGTH)
REAL: Any = torch.compile
LossFn = Callable[[nn.Module, Any], Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.fc(x))


class Words(nn.Module):
    def __init__(self, tied: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES, bias=bias)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def words(**options: Any) -> Words:
    torch.manual_seed(0)
    return Words(**options)


def tokens(ignored: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = torch.randint(CLASSES, (BATCH, LENGTH + 1), generator=generator)
    target = found[:, 1:].clone()
    if ignored is not None:
        target[:, ::3] = ignored
    return found[:, :-1], target


def made(model: nn.Module, loss_fn: LossFn | None, logits: str = "chunked", **options: Any) -> Any:
    options = {"precision": "fp32", "compile": False} | options
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return flatout.train_step(model, loss_fn, optimizer, logits=logits, **options)


def of_both(model: nn.Module, loss_fn: LossFn | None, batch: Any, **options: Any) -> Any:
    """The step with chunks, closed; its loss and gradients agree with those of stored logits."""
    losses, gradients, steps = [], [], []
    for logits in ("stored", "chunked"):
        twin = copy.deepcopy(model)
        step = made(twin, loss_fn, logits, **options)
        losses.append(step(batch).item())
        steps.append(step)
        gradients.append([p.grad for p in twin.parameters()])
        step.close()
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for stored, chunked in zip(*gradients, strict=True):
        near(chunked, stored, 0.02 if options.get("precision") == "bf16" else 1e-4)
    return steps[1]


def near(found: Tensor | None, wanted: Tensor | None, share: float) -> None:
    assert found is not None and wanted is not None
    assert found.dtype == wanted.dtype
    assert (found - wanted).norm() <= share * wanted.norm() + 1e-12


def plain(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def as_nano_gpt(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch[0])
    return F.cross_entropy(logits.view(-1, logits.size(-1)), batch[1].reshape(-1), ignore_index=-1)


def shifted(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch[0]).float()
    rows = logits[..., :-1, :].contiguous().view(-1, CLASSES)
    return F.cross_entropy(input=rows, target=batch[1][:, :-1].reshape(-1))


def transposed(model: nn.Module, batch: Any) -> Tensor:
    return nn.CrossEntropyLoss(reduction="sum")(model(batch[0]).transpose(1, 2), batch[1])


def smoothed(model: nn.Module, batch: Any) -> Tensor:
    rows = model(batch[0]).reshape(-1, CLASSES)
    return F.cross_entropy(rows, batch[1].flatten(), ignore_index=-1, label_smoothing=0.1)


def weighed(model: nn.Module, batch: Any) -> Tensor:
    weight = torch.linspace(0.5, 2.0, CLASSES)
    return F.cross_entropy(model(batch[0]).permute(0, 2, 1), batch[1], weight, ignore_index=-1)


def sliced(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0])[:, 3], batch[1][:, 3]) + plain(model, batch)


CONSUMED = [plain, as_nano_gpt, shifted, transposed, smoothed, weighed, sliced]


@pytest.mark.parametrize("loss_fn", CONSUMED)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_chunked_logits_give_the_loss_and_the_gradients_of_stored_ones(
    loss_fn: LossFn, precision: str
) -> None:
    ignored = -1 if loss_fn in (as_nano_gpt, smoothed, weighed) else None
    step = of_both(words(bias=True), loss_fn, tokens(ignored), precision=precision)
    assert step.notes["logits"].startswith("chunked: head and loss, ")
    assert "once more" not in step.notes["logits"]


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_of_several_batches_adds_up(tied: bool) -> None:
    model = words(tied=tied)
    pairs = [tokens(), (tokens()[1], tokens()[0])]
    weights = []
    for logits in ("stored", "chunked"):
        twin = copy.deepcopy(model)
        step = made(twin, plain, logits, accumulate=2)
        for _ in range(2):
            for pair in pairs:
                step(pair)
        weights.append(twin.words.weight.detach())
        step.close()
    near(weights[1] - model.words.weight, weights[0] - model.words.weight, 1e-4)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that the CPU was asked to hold."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for item in tree_leaves(output):
            if isinstance(item, Tensor) and item.device.type == "cpu":
                self.elements = max(self.elements, item.untyped_storage().nbytes())
        return output


@pytest.mark.parametrize("loss_fn", [plain, as_nano_gpt, shifted, transposed])
def test_no_tensor_is_nearly_as_large_as_the_logits(loss_fn: LossFn) -> None:
    bytes_held = {}
    for logits in ("stored", "chunked"):
        step = made(words(), loss_fn, logits)
        step(tokens())
        with Largest() as largest:
            step(tokens())
        bytes_held[logits] = largest.elements
        step.close()
    assert bytes_held["stored"] >= 4 * SMALLEST
    assert bytes_held["chunked"] <= SMALLEST


def terms(**others: Any) -> ChunkedLossTerms:
    kinds = {"product": torch.float32, "wide": torch.float32, "result": torch.float32}
    rest = {"mean": True, "ignore_index": -100, "label_smoothing": 0.0, "slope": chunked_loss.slope}
    return ChunkedLossTerms(**(kinds | rest | others))


def tensors(kind: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(2)
    rows, weight, bias = torch.randn(700, 16), torch.randn(300, 16), torch.randn(300)
    return [item.to(kind).requires_grad_() for item in (rows, weight, bias)]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("slope", [chunked_loss.slope, chunked_loss.slope_for_compiler])
def test_gradients_are_those_of_float64(mean: bool, smoothing: float, slope: Any) -> None:
    inputs = tensors()
    target = torch.randint(300, (700,))
    target[::5] = -100
    options = {"mean": mean, "label_smoothing": smoothing, "slope": slope}
    loss = cross_entropy(*inputs, target, None, terms(**options))
    found = torch.autograd.grad(3.0 * loss, inputs)
    exact = [item.detach().double().requires_grad_() for item in inputs]
    wanted = F.cross_entropy(
        F.linear(*exact), target, label_smoothing=smoothing, reduction="mean" if mean else "sum"
    )
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    for one, other in zip(found, torch.autograd.grad(3.0 * wanted, exact), strict=True):
        near(one.double(), other, 1e-5)


def test_in_bfloat16_gradients_are_as_exact_as_those_of_stored_logits() -> None:
    inputs, target = tensors(torch.bfloat16), torch.randint(300, (700,))
    kinds = {"product": torch.bfloat16, "result": torch.float32}
    found = torch.autograd.grad(cross_entropy(*inputs, target, None, terms(**kinds)), inputs)
    stored = torch.autograd.grad(F.cross_entropy(F.linear(*inputs).float(), target), inputs)
    exact = [item.detach().double().requires_grad_() for item in inputs]
    wanted = torch.autograd.grad(F.cross_entropy(F.linear(*exact), target), exact)
    for chunked, usual, true in zip(found, stored, wanted, strict=True):
        assert (chunked - true).norm() <= 1.2 * (usual - true).norm()


def test_a_loss_of_nothing_is_nan_and_has_no_gradient() -> None:
    inputs, target = tensors(), torch.full((700,), -100)
    loss = cross_entropy(*inputs, target, None, terms())
    assert loss.isnan()
    assert not any(item.any() for item in torch.autograd.grad(loss, inputs))


def test_the_gradient_has_a_gradient_and_the_graph_can_be_kept() -> None:
    *inputs, _bias = tensors(torch.float64)
    kind = dict.fromkeys(("product", "wide", "result"), torch.float64)
    target = torch.randint(300, (700,))
    loss = cross_entropy(*inputs, None, target, None, terms(**kind))
    stored = F.cross_entropy(F.linear(*inputs), target)
    twice = []
    for each in (loss, stored):
        first = torch.autograd.grad(each, inputs, create_graph=True)
        twice.append(torch.autograd.grad(sum((g**2).sum() for g in first), inputs))
    for one, other in zip(*twice, strict=True):
        near(one, other, 1e-8)
    again = [torch.autograd.grad(loss, inputs, retain_graph=True)[0] for _ in range(2)]
    assert torch.equal(*again)


def test_nothing_waits_for_the_device() -> None:
    """A tensor without values cannot be read."""
    rows, weight, bias = (
        torch.empty(shape, device="meta", dtype=torch.bfloat16, requires_grad=True)
        for shape in ((700, 16), (300, 16), (300,))
    )
    target = torch.empty(700, dtype=torch.long, device="meta")
    kinds = {"product": torch.bfloat16, "result": torch.float32}
    for others in ({}, {"label_smoothing": 0.1}, {"mean": False}):
        loss = cross_entropy(rows, weight, bias, target, None, terms(**kinds, **others))
        loss.backward()
    class_weight = torch.empty(300, device="meta")
    cross_entropy(rows, weight, bias, target, class_weight, terms(**kinds)).backward()
    with pytest.raises(RuntimeError):
        loss.item()


def test_chunks_are_bounded_and_of_one_size_where_they_can_be() -> None:
    assert chunk_rows(64 * 1024, 50304) == 4096
    assert chunk_rows(1024, 2048) == 128
    assert chunk_rows(100, 2048) == 100
    for rows, columns in ((4099, 50304), (1 << 20, 32000), (12345, 257000)):
        step = chunk_rows(rows, columns)
        assert 4 * step * columns <= chunked_loss.CHUNK_BYTES
        assert -(-rows // step) >= 8


@pytest.mark.slow
def test_hugging_face() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=CLASSES, n_positions=LENGTH, n_embd=WIDTH, n_layer=3, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    labels = tokens()[0].clone()
    labels[0, 10:] = -100
    batch = {"input_ids": tokens()[0], "labels": labels}
    for precision in ("fp32", "bf16"):
        step = of_both(model, None, batch, precision=precision)
        assert step.notes["logits"] == "chunked: lm_head and loss, 8 chunks of 128 rows"


def accuracy_too(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch[0])
    loss = F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())
    model.right = (logits.argmax(-1) == batch[1]).sum()
    return loss


def scaled(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch[0])
    rows = logits.float()[:, 1:]
    logits /= 2.0
    logits[..., :7] = -9.0
    return plain(lambda _: logits, batch) + F.cross_entropy(rows.mT, batch[1][:, 1:])  # type: ignore[arg-type]


def by_hand(model: nn.Module, batch: Any) -> Tensor:
    return F.nll_loss(F.log_softmax(model(batch[0]).transpose(1, 2), 1), batch[1])


def with_probabilities(model: nn.Module, batch: Any) -> Tensor:
    target = F.one_hot(batch[1], CLASSES).float()
    return F.cross_entropy(model(batch[0]).mT, target.mT)


def row_losses(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]).mT, batch[1], reduction="none").mean()


def weighed_and_smoothed(model: nn.Module, batch: Any) -> Tensor:
    weight = torch.linspace(0.5, 2.0, CLASSES)
    return F.cross_entropy(model(batch[0]).mT, batch[1], weight, label_smoothing=0.1)


def of_columns(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0])[..., : CLASSES - 1].mT, batch[1] % (CLASSES - 1))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 2


def through_a_function(model: nn.Module, batch: Any) -> Tensor:
    rows: Any = Double.apply(model(batch[0]).flatten(0, 1))  # torch asks no subclass about this
    return F.cross_entropy(rows, batch[1].flatten())


@pytest.mark.parametrize(
    ("loss_fn", "reason"),
    [
        (accuracy_too, "argmax"),
        (scaled, "div_"),
        (by_hand, "log_softmax"),
        (with_probabilities, "cross_entropy"),
        (row_losses, "cross_entropy"),
        (weighed_and_smoothed, "cross_entropy"),
        (of_columns, "__getitem__"),
        (through_a_function, "mul"),
    ],
)
def test_whatever_else_reads_the_logits_gets_them(loss_fn: LossFn, reason: str) -> None:
    step = of_both(words(bias=True), loss_fn, tokens())
    assert reason in step.notes["logits"]
    assert step.notes["logits"].startswith("chunked" if loss_fn is accuracy_too else "stored")


def test_logits_that_the_program_keeps_are_those_of_their_step() -> None:
    kept: list[Tensor] = []

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        kept.append(model(batch[0]))
        return F.cross_entropy(kept[-1].flatten(0, 1), batch[1].flatten())

    model = words()
    wanted = model(tokens()[0])
    step = made(model, loss_fn)
    step(tokens())
    assert torch.equal(kept[0] + 0, wanted)
    assert "keeps them" in step.notes["logits"]
    step.close()


def test_a_program_that_wants_the_gradient_of_its_logits_gets_it() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch[0])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())
        (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
        return loss + gradient.square().sum()

    step = of_both(words(), loss_fn, tokens())
    assert step.notes["logits"].startswith("stored: ")


def test_a_penalty_on_the_gradient_has_its_own_gradient() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        loss = plain(model, batch)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        return loss + sum(gradient.square().sum() for gradient in gradients)

    assert of_both(words(), loss_fn, tokens()).notes["logits"].startswith("chunked")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_checkpoints_and_hooks_around_the_model_work_as_with_stored_logits() -> None:
    def loss_fn(model: Any, batch: Any) -> Tensor:
        x = model.blocks[2](model.blocks[1](model.blocks[0](model.words(batch[0]))))
        logits = checkpoint(model.head, x, use_reentrant=False)
        return F.cross_entropy(logits.mT, batch[1])

    def whole(model: Any, batch: Any) -> Tensor:
        loss: Any = checkpoint(plain, model, batch, use_reentrant=False)
        return loss

    def loss_alone(model: Any, batch: Any) -> Tensor:
        loss: Any = checkpoint(F.cross_entropy, model(batch[0]).mT, batch[1], use_reentrant=False)
        return loss

    for each in (loss_fn, whole, loss_alone):
        assert of_both(words(), each, tokens()).notes["logits"].startswith("stored")
    assert "chunked" in of_both(words(), plain, tokens(), recompute=True).notes["logits"]
    model = words()
    model.register_full_backward_hook(lambda *_: None)
    of_both(model, plain, tokens())


def test_a_head_with_a_hook_or_of_its_own_making_runs_as_written() -> None:
    model = words()
    model.head.register_forward_hook(lambda module, args, output: output * 2)
    assert of_both(model, plain, tokens()).notes["logits"] == "stored: the head has a hook"
    model = words(tied=False)
    torch.nn.utils.parametrizations.weight_norm(model.head)
    assert "ordinary" in of_both(model, plain, tokens()).notes["logits"]


def test_what_cannot_be_chunked_says_why() -> None:
    few = tuple(item[:, :8] for item in tokens())
    assert "few" in of_both(words(), plain, few).notes["logits"]
    assert made(words(), plain, "stored").notes["logits"] == "stored: as written"
    model = nn.Sequential(nn.Linear(8, 4))
    assert made(model, plain).notes["logits"] == "stored: the model has no head"
    assert "not called yet" in made(words(), plain).notes["logits"]
    compiled: Any = REAL(words(), backend="eager")
    assert "compiles" in made(compiled, plain).notes["logits"]
    with pytest.raises(UsageError, match=r"logits='none' is unknown"):
        made(words(), plain, "none")


@pytest.mark.slow
def test_the_compiler_that_has_it_whole_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda call, **_: REAL(call, backend="aot_eager"))
    monkeypatch.setattr(compiling, "missing", lambda *_: None)
    step = of_both(words(), plain, tokens(), compile="whole")
    assert step.notes["logits"].startswith("stored: head and loss are compiled into one graph")


@pytest.mark.slow
def test_beside_compiled_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda call, **_: REAL(call, backend="aot_eager"))
    monkeypatch.setattr(compiling, "missing", lambda *_: None)
    step = of_both(words(), as_nano_gpt, tokens(-1), compile="blocks", precision="bf16")
    assert step.notes["compile"].startswith("blocks: ")
    assert step.notes["logits"].startswith("chunked")


def test_where_the_compiler_fails_a_chunk_is_computed_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> Any:
        raise torch._dynamo.exc.TorchDynamoException("no kernel for this")

    monkeypatch.setattr(torch, "compile", lambda _: fail)
    inputs, target = tensors(), torch.randint(300, (700,))
    loss = cross_entropy(*inputs, target, None, terms(slope=chunked_head._Compiled()))
    assert loss.item() == pytest.approx(F.cross_entropy(F.linear(*inputs), target).item())


def test_only_the_steps_own_calls_are_deferred() -> None:
    model = words()
    step = made(model, plain)
    step(tokens())
    assert type(model(tokens()[0])) is Tensor
    step.close()
    assert type(model(tokens()[0])) is Tensor
    assert not any(type(item) is DeferredLogits for item in gc.get_objects())


def test_an_error_of_the_programs_own_comes_out() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        raise ValueError(f"mine: {list(model(batch[0]).shape)}")

    step = made(words(), loss_fn)
    with pytest.raises(ValueError, match="mine"):
        step(tokens())
    wrong = tokens()[0], tokens()[1] + CLASSES
    with pytest.raises(IndexError, match="out of bounds"):
        made(words(), plain)(wrong)


def test_a_recorded_step_computes_the_same() -> None:
    weights = []
    for recorded in (False, True):
        model = words()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        logits = chunked_head.Logits("chunked", model, functools.partial(plain, model), "no")

        def body(batch: Any, optimizer: Any = optimizer, logits: Any = logits) -> dict[str, Tensor]:
            optimizer.zero_grad(set_to_none=True)
            loss = logits.call(batch)
            loss.backward()
            optimizer.step()
            return {"loss": loss.detach()}

        recorder = FakeRecorder(model.parameters)
        whole = WholeStep(body, model, optimizer, torch.device("cpu"), recorder=recorder)
        for _ in range(6):
            if not recorded or whole.run(tokens()) is None:
                body(tokens())
        assert recorder.replays == (3 if recorded else 0)
        assert logits.note().startswith("chunked: head and loss")
        weights.append(model.words.weight.detach() - words().words.weight)
    near(weights[1], weights[0], 1e-5)
