"""Whatever is switched between the steps, the program computes what it would have computed."""

from __future__ import annotations

import contextlib
import copy
import gc
import multiprocessing
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset

from discovered import discovered
from flatout_agent import boosts
from flatout_agent.boost import Switch
from flatout_agent.boosts import (
    cpu_threads,
    fused_loss,
    indexed_rows,
    loader_workers,
)
from flatout_agent.speedups import precision, slice_gradients, sparse_products
from flatout_agent.speedups.precision import Bf16Support
from flatout_agent.watch import Watcher
from flatout_agent.wire import BoostOrder

SAME_BITS = (
    "allocator",
    "batch-fetch",
    "clip-grad",
    "gc-pause",
    "sample-cache",
)
REORDERS = (
    "indexed-rows",
    "packed-sequences",
    "slice-gradients",
    "channels-last",
    "fused-loss",
    "sparse-matmul",
    "fused-optimizer",
    "cpu-threads",
    "trim-padding",
)
CHANGES = ("bf16-autocast", "bf16-residual", "fast-dropout", "frozen-bf16")
APART = ("loader-workers", "compile")
"""Each has a test of its own here."""
NOT_HERE = {
    "cpu-bf16": "only some CPUs have what it switches to",
    **dict.fromkeys(
        ("cuda-graphs", "fp16-autocast", "loader-pin-memory", "tf32"), "only GPUs have it"
    ),
    "image-cache": "needs another package",
}
PARAMS: dict[str, dict[str, Any]] = {
    "allocator": {"malloc": "glibc-keep"},
    "cpu-threads": {"threads": 2},
    "loader-workers": {"workers": 1, "prefetch_factor": 2},
}
FUNCTIONS = ("dropout", "embedding", "scaled_dot_product_attention")
"""Of torch.nn.functional, that a boost stands in for."""
STEPS = 8
Plan = list[tuple[str, ...]]
quick = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*:DeprecationWarning",
    "ignore:.*lr_scheduler.step.*:UserWarning",
)


@pytest.fixture(autouse=True)
def a_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With some cores, and one thread chosen by nobody; bfloat16 counts as native."""
    gc.unfreeze()  # what conftest has frozen may go at any time, and `path` counts it
    monkeypatch.setattr(loader_workers, "usable_cores", lambda: 2)
    monkeypatch.setattr(cpu_threads, "usable_cores", lambda: 2)
    monkeypatch.setattr(precision, "native_bf16", lambda device: Bf16Support(True, "here"))
    monkeypatch.setattr(fused_loss, "SMALLEST", 1)
    monkeypatch.setattr(indexed_rows, "SMALLEST", 1)
    monkeypatch.setattr(sparse_products, "SMALLEST", 1)
    monkeypatch.setattr(slice_gradients, "SMALLEST", 1)
    monkeypatch.setattr(fused_loss, "COLUMNS", 2)
    monkeypatch.setattr(DataLoader, "check_worker_number_rationality", lambda self: None)
    # A whole collection goes through all that pytest has loaded: 0.3 s at each switch.
    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda generation=0: collect(0))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Programs -------------------------------------------------------------------------------------


class Rows(Dataset[Any]):
    """Loads one row after the other, as from files."""

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> Any:
        return tuple(tensor[index].clone() for tensor in self.tensors)


class Program:
    """A training program of some steps; what it holds is its state."""

    shape: tuple[int, ...] = (6,)
    samples = 12

    def __init__(self, files: bool = False) -> None:
        torch.manual_seed(0)
        random.seed(0)
        self.models: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.others: list[Any] = []
        self.data(files)
        self.build()
        self.batches: Iterator[Any] = iter(())
        self.losses: list[float] = []
        self.evaluated: list[float] = []
        self.taken = 0

    def data(self, files: bool) -> None:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(self.samples, *self.shape, generator=generator)
        y = torch.randint(3, (self.samples,), generator=generator)
        data = Rows((x, y)) if files else TensorDataset(x, y)
        self.loader: DataLoader[Any] = DataLoader(data, batch_size=4, shuffle=True)

    def build(self) -> None:
        raise NotImplementedError

    def batch(self) -> Any:
        try:
            return next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            return next(self.batches)

    def loss(self, x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(self.models[0](x), y)

    def step(self) -> None:
        self.optimizers[0].zero_grad()
        loss = self.loss(*self.batch())
        loss.backward()
        self.optimizers[0].step()
        self.losses.append(loss.item())

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.taken += 1
            if self.taken % 2 == 0:
                self.evaluate()

    def evaluate(self) -> None:
        """With gradients on, as many do."""
        model = self.models[0].eval()
        x, _ = self.loader.dataset[0]
        self.evaluated.append(model(x[None].clone()).sum().item())
        model.train()


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        packed = pack_padded_sequence(x, [x.shape[1]] * len(x), batch_first=True)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(states[:, -1] + states[:, 0])


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return {"logits": self.second(torch.tanh(self.first(x)))[:, :3]}


class Convolutions(Program):
    shape = (3, 8, 8)

    def build(self) -> None:
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.Flatten(),
            nn.Linear(32, 3),
        )
        self.models = [model]
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)]


class Recurrent(Program):
    shape = (5, 6)

    def build(self) -> None:
        self.models = [Memory()]
        self.optimizers = [torch.optim.Adam(self.models[0].parameters(), lr=0.01)]


class Dropping(Program):
    """Dropout, layers large enough for fast-dropout, a constant of zeros, edges of a graph, and a
    scheduler.
    """

    def build(self) -> None:
        model = nn.Sequential(nn.Linear(6, 1100), nn.Dropout(0.3), nn.ReLU(), nn.Linear(1100, 3))
        self.neighbours = torch.eye(1100)[:40]
        self.edges = torch.randint(40, (2, 90), generator=torch.Generator().manual_seed(2))
        self.models = [model]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.optimizers = [optimizer]
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=99)
        self.others = [self.scheduler]

    def loss(self, x: Any, y: Any) -> Any:
        near = self.neighbours @ self.models[0][0].weight
        source, target = self.edges
        sums = near.new_zeros(near.shape).index_add(0, target, near[source])
        return super().loss(x, y) + near.square().mean() + (sums - near).square().mean()

    def step(self) -> None:
        super().step()
        self.scheduler.step()


class Tied(Program):
    """The output layer is the transposed embedding; gradients are accumulated."""

    def build(self) -> None:
        self.models = [Twice()]
        self.optimizers = [torch.optim.NAdam(self.models[0].parameters(), lr=0.01)]

    def loss(self, x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(self.models[0](x)["logits"], y)

    def evaluate(self) -> None:
        """Not this one."""

    def step(self) -> None:
        self.optimizers[0].zero_grad()
        for _ in range(3):
            (self.loss(*self.batch()) / 3).backward()
        nn.utils.clip_grad_norm_(self.models[0].parameters(), 1.0)
        self.optimizers[0].step()


class Adversaries(Program):
    """Two models, two optimizers."""

    def build(self) -> None:
        maker = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6))
        judge = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.models = [maker, judge]
        self.optimizers = [
            torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.999))
            for model in self.models
        ]

    def step(self) -> None:
        maker, judge = self.models
        x, _ = self.batch()
        made = maker(torch.randn(len(x), 6))
        for optimizer, loss in (
            (self.optimizers[1], lambda: judge(made.detach()).mean() - judge(x).mean()),
            (self.optimizers[0], lambda: -judge(made).mean()),
        ):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
            self.losses.append(value.item())


class Growing(Program):
    """A teacher; a group of parameters is added later, and the optimizer is loaded in the
    middle.
    """

    def build(self) -> None:
        model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
        self.models, self.teacher = [model], nn.Linear(6, 3)
        self.optimizers = [torch.optim.SGD(model[2].parameters(), lr=0.05, momentum=0.9)]
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)

    def loss(self, x: Any, y: Any) -> Any:
        with torch.no_grad():
            wanted = self.teacher(x)
        return super().loss(x, y) + nn.functional.mse_loss(self.models[0](x), wanted)

    def step(self) -> None:
        optimizer = self.optimizers[0]
        optimizer.zero_grad()
        loss = self.scaler.scale(self.loss(*self.batch()))
        loss.backward()
        self.scaler.step(optimizer)
        self.scaler.update()
        if self.taken == 1:
            optimizer.add_param_group({"params": list(self.models[0][0].parameters()), "lr": 0.01})
        if self.taken == 2:
            self.saved = copy.deepcopy([self.models[0].state_dict(), optimizer.state_dict()])
        if self.taken == 4:
            self.models[0].load_state_dict(self.saved[0])
            optimizer.load_state_dict(self.saved[1])


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        words = self.words(x.mul(3).long().remainder(10))
        return self.head((words + torch.tanh(words)).mean(1)).float()


class Reading(Program):
    """Embeddings in a bfloat16 region of the script's own."""

    shape = (5,)

    def build(self) -> None:
        self.models = [Words()]
        self.optimizers = [torch.optim.Adam(self.models[0].parameters(), lr=0.01)]

    def loss(self, x: Any, y: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.models[0](x)
        return nn.functional.cross_entropy(logits, y)


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        used = (x != 0)[..., None]
        return self.head((self.words(x) * used).sum(1) / used.sum(1))


class Padded(Program):
    """Rows of words, all padded to a length that none has."""

    def data(self, files: bool) -> None:
        x = torch.randint(1, 10, (self.samples, 32), generator=torch.Generator().manual_seed(1))
        lengths = torch.arange(self.samples) + 1
        x[torch.arange(32) >= lengths[:, None]] = 0
        self.loader = DataLoader(TensorDataset(x, lengths % 3), batch_size=4, shuffle=True)

    def build(self) -> None:
        self.models = [Mean()]
        self.optimizers = [torch.optim.Adam(self.models[0].parameters(), lr=0.01)]


PROGRAMS = [Convolutions, Recurrent, Dropping, Tied, Adversaries, Growing, Reading, Padded]


# The agent in this process --------------------------------------------------------------------


class Switches(Watcher):
    """Switches as a live run does: at the end of a step, first what goes, then what comes."""

    def __init__(self) -> None:
        self.plan: Iterator[tuple[str, ...]] = iter(())
        self.on: tuple[str, ...] = ()
        self.refused: dict[str, str] = {}

    def step(self) -> None:
        self.switch(next(self.plan, self.on))

    def switch(self, wanted: tuple[str, ...]) -> None:
        for boost in reversed(self.on):
            if boost not in wanted:
                self.booster.off(boost)
        for boost in wanted:
            if boost not in self.on:
                note = self.booster.on(BoostOrder(boost, PARAMS.get(boost, {})))
                if note is not None:
                    assert note.state != "failed", note.reason
                    self.refused[boost] = note.reason
        self.on = tuple(wanted)


@contextlib.contextmanager
def agent() -> Iterator[Switches]:
    switches = Switches()
    with discovered(switches) as (_, switches.booster):
        yield switches
        switches.switch(())


def switched(make: Callable[[], Program], plan: Plan) -> tuple[Program, Switches]:
    """The program under this plan, one step more with all of it off."""
    with agent() as switches:
        switches.plan = iter([*plan, ()])
        program = make()
        program.run(len(plan) + 2)
    return program, switches


def plans(*boosts: str, length: int = STEPS) -> st.SearchStrategy[Plan]:
    """What is on after each step."""
    on = st.lists(st.sampled_from(boosts), unique=True, max_size=4).map(tuple)
    return st.lists(on, min_size=1, max_size=length)


# What is compared -----------------------------------------------------------------------------


def numbers(program: Program) -> dict[str, Any]:
    """Weights, buffers and optimizer state, the losses and the random state."""
    found: dict[str, Any] = {"losses": torch.tensor(program.losses, dtype=torch.float64)}
    for number, model in enumerate(program.models):
        found |= {f"{number}.{name}": value for name, value in model.state_dict().items()}
    for number, optimizer in enumerate(program.optimizers):
        for place, values in optimizer.state_dict()["state"].items():
            found |= {f"{number}.{place}.{name}": value for name, value in values.items()}
    return found


def drawn() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate()]


def assert_same_bits(one: Program, other: Program) -> None:
    # Without gradients torch takes other kernels for an LSTM: an evaluation's last bits differ.
    assert one.evaluated == pytest.approx(other.evaluated, rel=1e-5, abs=1e-6)
    first, second = numbers(one), numbers(other)
    assert list(first) == list(second)
    for name, value in first.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == second[name].dtype, name
            assert value.stride() == second[name].stride(), name
            assert torch.equal(value, second[name]), name
        else:
            assert value == second[name], name


def path(program: Program) -> list[Any]:
    """All that decides in which way the program runs, beside its numbers."""
    found: list[Any] = [
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        gc.isenabled(),
        gc.get_threshold(),
        gc.get_freeze_count(),
        [getattr(nn.functional, name) for name in FUNCTIONS],
        torch._C._nn.cross_entropy_loss,
        nn.utils.clip_grad_norm_.__closure__[0].cell_contents,
        [name in vars(torch.Tensor) for name in ("to", "cuda")],
        vars(program.loader).keys(),
        [program.loader.num_workers, program.loader.prefetch_factor, program.loader._iterator],
    ]
    for model in program.models:
        for name, module in model.named_modules():
            form = {key: type(value) for key, value in vars(module).items()}
            hooks = [len(value) for key, value in vars(module).items() if key.endswith("_hooks")]
            found.append((name, type(module), module.training, form, hooks, module.forward))
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            made = [tensor] if tensor.grad is None else [tensor, tensor.grad]
            found.append((name, [(t.dtype, t.stride(), type(t)) for t in made]))
            found.append((tensor._backward_hooks, tensor.requires_grad))
    for optimizer in program.optimizers:
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        hooks = [len(value) for key, value in vars(optimizer).items() if key.endswith("_hooks")]
        found.append((groups, optimizer.defaults, hooks, sorted(vars(optimizer))))
        for place, values in optimizer.state_dict()["state"].items():
            forms = {k: (type(v), getattr(v, "dtype", None)) for k, v in values.items()}
            found.append((place, forms))
    return found


def assert_as_never_switched(make: Callable[[], Program], plan: Plan) -> None:
    """The same forms everywhere, and from equal numbers one step more gives equal bits."""
    was = path(make())[:12]
    program, _ = switched(make, plan)
    assert path(program)[:12] == was
    plain = make()
    plain.run(len(plan) + 2)
    for one, other in zip(path(program), path(plain), strict=True):
        assert _comparable(one) == _comparable(other)
    for place, model in enumerate(plain.models):
        model.load_state_dict(program.models[place].state_dict())
    for place, optimizer in enumerate(plain.optimizers):
        optimizer.load_state_dict(copy.deepcopy(program.optimizers[place].state_dict()))
    plain.losses, plain.saved = list(program.losses), getattr(program, "saved", None)
    plain.evaluated = list(program.evaluated)
    results = []
    for one in (program, plain):
        torch.manual_seed(9)
        random.seed(9)
        one.batches = iter(())
        one.run(1)
        results.append(drawn())
    assert results[0] == results[1]
    assert_same_bits(program, plain)


def _comparable(part: Any) -> Any:
    """Without the objects that belong to one of the programs: bound methods."""
    return [getattr(item, "__func__", item) for item in part] if type(part) is tuple else part


# What holds -----------------------------------------------------------------------------------


def test_every_boost_is_switched_here_or_says_why_not() -> None:
    """Those that wait for the next start of the program are not switched at all."""
    switched = {
        boost_id
        for boost_id in boosts.names()
        if boosts.load(boost_id).BOOST.switch is not Switch.START
    }
    assert {*SAME_BITS, *REORDERS, *CHANGES, *APART, *NOT_HERE} == switched


@pytest.mark.parametrize(
    ("make", "files"), [(make, number % 2 == 0) for number, make in enumerate(PROGRAMS)]
)
@quick
@given(plan=plans(*SAME_BITS))
def test_what_reorders_nothing_leaves_every_bit(make: Any, files: bool, plan: Plan) -> None:
    plain = make(files)
    plain.run(len(plan) + 2)
    expected = drawn()
    program, _ = switched(lambda: make(files), plan)
    assert drawn() == expected
    assert_same_bits(program, plain)
    assert_as_never_switched(lambda: make(files), plan)


@pytest.mark.parametrize("make", PROGRAMS)
@quick
@given(plan=plans(*SAME_BITS, *REORDERS, *CHANGES))
def test_after_the_last_switch_nothing_is_left(make: Any, plan: Plan) -> None:
    assert_as_never_switched(make, plan)


@pytest.mark.slow
@pytest.mark.parametrize("boost", sorted({*SAME_BITS, *REORDERS, *CHANGES}))
def test_each_alone_switched_again_and_again(boost: str) -> None:
    """And it does take hold: in some program, in its last stretch alone."""
    held = []
    for make in PROGRAMS:
        long = [(boost,), (), (), (boost,), *[(boost,)] * 11]
        assert_as_never_switched(make, [(boost,), (), (boost,), (boost,), (), (boost,)])
        with agent() as switches:
            switches.plan = iter(long)
            program = make(files=boost == "sample-cache")
            program.run(len(long) + 1)
            parts = switches.booster.applied.get(boost, [])
            held += [told[0] for told in (part.engaged() for part in parts) if told is not None]
    assert any(held)


def own_error(make: Callable[[], Program], steps: int, plain: Program) -> float:
    """How far the weights come apart where gradients are rounded in another way."""
    apart = 0.0
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)

        def rounded(grad: Any, generator: Any = generator) -> Any:
            noise = torch.randn(grad.shape, generator=generator) * (grad != 0)
            return grad + 3e-7 * grad.abs().max() * noise

        program = make()
        for model in program.models:
            for parameter in model.parameters():
                parameter.register_hook(rounded)
        program.run(steps)
        apart = max(apart, distance(program, plain))
    return apart


def distance(one: Program, other: Program) -> float:
    pairs = [
        (value.double(), second.double())
        for model, twin in zip(one.models, other.models, strict=True)
        for value, second in zip(
            model.state_dict().values(), twin.state_dict().values(), strict=True
        )
    ]
    return max(float((a - b).norm() / (b.norm() + 1e-12)) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("make", PROGRAMS)
@quick
@given(plan=plans(*REORDERS, "allocator", "batch-fetch"))
def test_what_reorders_stays_within_the_programs_own_error(make: Any, plan: Plan) -> None:
    steps = len(plan) + 2
    plain = make()
    plain.run(steps)
    expected = drawn()
    program, _ = switched(make, plan)
    assert drawn() == expected
    assert distance(program, plain) <= 10 * own_error(make, steps, plain) + 1e-6


class Longer(Convolutions):
    """Worth starting workers."""

    samples = 36


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
@settings(quick, max_examples=3)
@given(plan=plans("loader-workers", "gc-pause", "allocator", length=12))
def test_workers_leave_every_bit(plan: Plan) -> None:
    plain = Longer(files=True)
    plain.run(len(plan) + 2)
    expected = drawn()
    program, switches = switched(lambda: Longer(files=True), plan)
    assert not switches.refused
    assert drawn() == expected
    assert_same_bits(program, plain)
    assert_as_never_switched(lambda: Longer(files=True), plan)
    program.batches = iter(())
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("make", [Convolutions, Dropping])
def test_compiled_in_between(make: Any) -> None:
    assert_as_never_switched(make, [(), ("compile",), ("compile",), (), ("compile",), ()])
