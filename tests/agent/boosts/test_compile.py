"""compile: what is declined, what falls back, and (slow) the real compiler."""

import copy
import gc
import logging
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from flatout_agent.boost import Declined
from flatout_agent.boosts import compile
from flatout_agent.boosts.compile import BOOST
from flatout_agent.job import Job
from flatout_agent.live import candidates
from flatout_agent.speedups import compiling
from flatout_agent.speedups.compiled_calls import SEVERAL, CompiledCalls
from flatout_agent.speedups.compiling import GRAPH_MODES
from flatout_agent.watch.job_facts import model_facts
from flatout_agent.wire import JobFacts, ModelFacts

# Dynamo hides it from people, not from a filter that makes errors of warnings.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
MODEL = ModelFacts("Net", 1000, "float32", "cpu", matmul=2)
DEEP = ModelFacts("Deep", 1000, "float32", "cpu", matmul=9, blocks=4)
FACTS = JobFacts(
    torch="2.13.0", python="3.11", system="linux", device="cpu", compiler=True, models=(MODEL,)
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Block(nn.Module):
    def __init__(self, rate=0.0):
        super().__init__()
        self.norm, self.fc, self.rate = nn.LayerNorm(8), nn.Linear(8, 8), rate

    def forward(self, x, scale=1.0):
        return x + scale * torch.relu(self.fc(self.norm(x))) * (1 - self.rate)


class Deep(nn.Module):
    def __init__(self, depth=4, rate=0.0):
        super().__init__()
        self.blocks = nn.ModuleList(Block(rate * n) for n in range(depth))
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)


class Vary(Net):
    text = ""

    def forward(self, x):
        return super().forward(x) * len(self.text)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compile._kept.clear()
    yield
    assert not torch._dynamo.config.suppress_errors
    assert not torch._functorch.config.force_non_lazy_backward_lowering


@pytest.fixture
def traced(monkeypatch):
    """The real dynamo with a backend that needs no C++ compiler: seconds become milliseconds."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, **_: real(call, backend="aot_eager"))


def boosted(model, mode="default", scope="whole"):
    job = Job()
    job.models.append(model)
    return compile.apply(job, model, {"scope": scope, "mode": mode})


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def grads(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def gradients(model, x):
    model.zero_grad()
    model(x).square().mean().backward()
    return grads(model)


@pytest.mark.usefixtures("traced")
def test_evaluation_runs_as_written():
    model = Net()
    boosted(model)
    model(torch.randn(4, 8)).sum().backward()
    model.eval()
    model(torch.randn(4, 8))
    with torch.no_grad():
        model.train()(torch.randn(4, 8))
    assert compiling.counters() == (0, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_changing_shapes_recompile_once_and_are_counted():
    model = Net()
    applied = boosted(model)
    for rows in (4, 5, 6, 7):
        model(torch.randn(rows, 8)).sum().backward()
    assert compiling.counters() == (1, 0)
    assert applied.engaged() == (True, "2 graphs, 1 recompilations, 0 graph breaks")


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_hitting_the_recompilation_limit_is_not_engaged(caplog):
    model = Vary()
    applied = boosted(model)
    for number in range(torch._dynamo.config.recompile_limit + 2):
        model.text = "x" * number
        model(torch.randn(4, 8)).sum().backward()
    engaged, reason = applied.engaged()
    assert not engaged
    assert "limit" in reason
    warned = [item for item in caplog.records if item.levelno >= logging.WARNING]
    assert not warned, "dynamo's warning goes into the report, not to the user's terminal"


@pytest.mark.parametrize("scope", ["whole", "blocks"])
def test_a_failing_compiler_runs_as_written_once_per_call(monkeypatch, scope):
    def broken(graph, inputs):
        raise RuntimeError("no such kernel\nmore")

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, **_: real(call, backend=broken))
    model = nn.Sequential(Net(), nn.BatchNorm1d(4)) if scope == "whole" else Deep()
    plain, x = copy.deepcopy(model), torch.randn(4, 8)
    before = torch._dynamo.config.suppress_errors
    applied = boosted(model, scope=scope)
    for _ in range(2):
        assert torch.equal(gradients(model, x), gradients(plain, x))
    assert all(map(torch.equal, model.buffers(), plain.buffers()))
    engaged, reason = applied.engaged()
    assert not engaged
    assert "no such kernel" in reason
    assert torch._dynamo.config.suppress_errors is before


@pytest.mark.parametrize("scope", ["whole", "blocks"])
def test_an_error_that_cannot_be_suppressed_gives_up_for_good(monkeypatch, scope):
    tries = []

    def hopeless(*args, **kwargs):
        tries.append(args)
        raise torch._dynamo.exc.InternalTorchDynamoError("hopeless")

    monkeypatch.setattr(torch, "compile", lambda call, **_: hopeless)
    model, x = Deep(), torch.randn(4, 8)
    plain = gradients(model, x)
    applied = boosted(model, scope=scope)
    for _ in range(2):
        assert torch.equal(gradients(model, x), plain)
    assert len(tries) == 1
    assert applied.engaged() == (False, "the compiler failed: hopeless")


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_the_models_own_exception_passes_untouched():
    class Mine(Exception):  # noqa: N818
        pass

    class Raises(Net):
        def forward(self, x):
            if x.shape[0] == 3:
                raise Mine("mine")
            return super().forward(x)

    model = Raises()
    boosted(model)
    model(torch.randn(4, 8))
    with pytest.raises(Mine, match="mine"):
        model(torch.randn(3, 8))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.randn(4, 9))


@pytest.mark.usefixtures("traced")
def test_two_models_of_one_class_both_engage():
    job, models = Job(), [Net(), Net()]
    for model in models:
        job.models.append(model)
    applied = [compile.apply(job, model, {}) for model in models]
    for model in models:
        model(torch.randn(4, 8)).sum().backward()
    assert [item.engaged()[0] for item in applied] == [True, True]


def in_place(model):
    model.compile(backend="eager")
    return model


def hooked(model):
    model.register_forward_hook(lambda *args: None)
    return model


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (lambda: hooked(Net()), "hooks"),
        (lambda: torch.compile(Net(), backend="eager"), "itself"),
        (lambda: nn.Sequential(torch.compile(Net(), backend="eager")), "itself"),
        (lambda: in_place(Net()), "itself"),
        (lambda: nn.Sequential(in_place(Net())), "itself"),
        (lambda: nn.DataParallel(Net()), "DataParallel"),
    ],
)
def test_declined(model, word):
    target = model()
    own = vars(target).get("_compiled_call_impl")
    with pytest.raises(Declined, match=word):
        boosted(target)
    assert vars(target).get("_compiled_call_impl") is own, "the script's own"


def test_declined_without_headers_or_compiler(monkeypatch, tmp_path):
    import torch._inductor.cpp_builder as builder

    def missing():
        raise RuntimeError("No working C++ compiler found\nmore")

    with monkeypatch.context() as patch:
        patch.setattr(builder, "get_cpp_compiler", missing)
        with pytest.raises(Declined, match=r"No working C\+\+ compiler found$"):
            boosted(Net())
    monkeypatch.setattr(compiling.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(Declined, match="headers"):
        boosted(Net())


class OnCuda(Net):
    def parameters(self, recurse=True):
        yield SimpleNamespace(device=torch.device("cuda"), _backward_hooks=None)


@pytest.mark.parametrize("mode", GRAPH_MODES)
def test_graphs_are_declined_where_several_models_train(mode, monkeypatch):
    monkeypatch.setattr(compile, "missing", lambda *_: None)
    job, models = Job(), [OnCuda(), OnCuda()]
    job.models.append(models[0])
    compile.apply(job, models[0], {"mode": mode}).undo()
    job.models.append(models[1])
    for model in models:
        with pytest.raises(Declined, match="several models"):
            compile.apply(job, model, {"mode": mode})
        compile.apply(job, model, {"mode": "default"}).undo()


def test_graphs_end_where_another_model_is_seen_later(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call, **_: lambda *_: calls.append("compiled"))
    job, model, calls = Job(), Net(), []
    model.register_forward_hook(lambda *_: calls.append("as written"))
    job.models.append(model)
    applied = CompiledCalls(job, "reduce-overhead", "cuda", []).put_on(model, [])
    model(torch.randn(4, 8))
    other = Net()
    job.models.append(other)
    model(torch.randn(4, 8))
    model(torch.randn(4, 8))
    assert calls == ["compiled", "as written", "as written"]
    assert applied.engaged() == (False, SEVERAL)
    applied.undo()
    assert not job.step_callbacks


@pytest.mark.parametrize("name", ["fail_on_recompile_limit_hit", "fail_on_cache_limit_hit"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_settings_of_older_torch(name, fails, monkeypatch):
    """torch's own refuse names that they do not have, as this stand-in does."""
    seen = []
    config = SimpleNamespace(suppress_errors=False, **{name: fails})
    monkeypatch.setattr(torch._dynamo, "config", config)
    attempts = compiling.Attempts()
    attempts.run(lambda: seen.append(config.suppress_errors))
    assert seen == [not fails]
    assert config.suppress_errors is False
    assert not compiling.fails_at_limit(SimpleNamespace())


@pytest.mark.parametrize(
    ("device", "model", "wanted"),
    [
        ("cpu", DEEP, ["blocks default", "whole default", "whole max-autotune"]),
        ("cpu", MODEL, ["whole default", "whole max-autotune"]),
        ("cuda", DEEP, ["blocks default", *(f"whole {mode}" for mode in BOOST.params["mode"])]),
    ],
)
def test_blocks_are_tried_first_where_there_are_any(device, model, wanted):
    facts = JobFacts(**{**vars(FACTS), "device": device, "models": (model,)})
    found, _ = candidates.candidates(facts, ("compile",))
    found = sorted(found, key=lambda item: item.variant)
    assert [f"{item.params['scope']} {item.params['mode']}" for item in found] == wanted
    assert found[0].promise < found[1].promise


class Pool:
    """Compiled code as CUDA graphs run it: a pass writes its gradients to places of its own, and
    with the next call these hold something else.
    """

    def __init__(self, model):
        self.storages = {n: torch.empty_like(p) for n, p in model.named_parameters()}
        self.runs = 0

    def __call__(self, module, x):
        for memory in self.storages.values():
            memory.fill_(float("nan"))
        self.runs += 1
        names = list(self.storages)
        weights = [dict(module.named_parameters())[name] for name in names]
        return Pooled.apply(self, names, module, x, *weights)

    def output(self, name, value):
        """A fresh tensor in the pool, which `.grad` takes over as it is."""
        memory = self.storages[name].copy_(value)
        return torch.empty(0).set_(memory.untyped_storage(), 0, memory.shape, memory.stride())


class Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, pool, names, module, x, *weights):
        ctx.pool, ctx.names = pool, names
        with torch.enable_grad():
            ctx.copies = [weight.detach().requires_grad_() for weight in weights]
            given = dict(zip(names, ctx.copies, strict=True))
            ctx.out = torch.func.functional_call(type(module).written(module), given, (x,))
        return ctx.out.detach().clone()

    @staticmethod
    def backward(ctx, gradient):
        found = torch.autograd.grad(ctx.out, ctx.copies, gradient)
        outputs = map(ctx.pool.output, ctx.names, found)
        return None, None, None, None, *outputs


class Written(Net):
    """What the pool runs is another module: this one's calls are compiled."""

    @staticmethod
    def written(module):
        return copy.deepcopy(Net()).requires_grad_(False)


def pooled(model, monkeypatch):
    """The boost in a mode of CUDA graphs, over such a pool; and the pool."""
    pool, job = Pool(model), Job()
    monkeypatch.setattr(torch, "compile", lambda call, **_: pool)
    job.models.append(model)
    return CompiledCalls(job, "reduce-overhead", "cuda", []).put_on(model, []), pool


def lies_in(pool, gradient):
    return gradient.data_ptr() in {memory.data_ptr() for memory in pool.storages.values()}


def test_what_is_in_grad_leaves_the_graphs_memory_before_they_use_it_again(monkeypatch):
    model, batches = Written(), [torch.randn(4, 8) for _ in range(4)]
    plain = Net()
    plain.load_state_dict(model.state_dict())
    _, pool = pooled(model, monkeypatch)
    held = None
    for number, x in enumerate(batches):
        model(x).square().sum().backward()
        plain(x).square().sum().backward()
        assert lies_in(pool, model.first.weight.grad) == (number == 0), "else it tests nothing"
        held = held if held is not None else model.first.weight.grad
        torch.testing.assert_close(grads(model), grads(plain))
    assert pool.runs == 4
    assert held is model.first.weight.grad, "the program may hold it"


def test_gradients_that_are_set_to_none_are_not_copied(monkeypatch):
    model = Written()
    _, pool = pooled(model, monkeypatch)
    copied = []
    kept = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda *a: (copied.append(1), kept(*a)))
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()
        model.zero_grad()
    assert copied == []
    for _ in range(3):  # they stay where they were copied to
        model(torch.randn(4, 8)).sum().backward()
        model.zero_grad(set_to_none=False)
    assert copied == [1]
    for _ in range(3):  # set to None after the forward pass, as some programs do
        loss = model(torch.randn(4, 8)).sum()
        model.zero_grad()
        loss.backward()
        assert lies_in(pool, model.last.weight.grad)
    assert copied == [1, 1, 1]


def test_promise_and_by_hand(monkeypatch):
    assert compile.promise(FACTS, {}) > 1.0
    gpu = JobFacts(**{**vars(FACTS), "device": "cuda", "step_s": 0.01})
    graphs = {"mode": "reduce-overhead"}
    assert compile.promise(gpu, graphs) > compile.promise(gpu, {})
    model, modes = Net(), []
    monkeypatch.setattr(torch, "compile", lambda call, mode=None: modes.append(mode))
    exec(compile.by_hand(FACTS, graphs), {"model": model})
    exec(compile.by_hand(FACTS, {}), {"model": model})
    assert modes == ["reduce-overhead", None]
    exec(compile.by_hand(FACTS, {"scope": "blocks"}), {"model": Deep()})
    assert modes[2:] == [None] * 4


@pytest.mark.slow
def test_the_real_compiler_trains_the_same_and_undo_restores():
    """With the masks that torch itself draws on a CPU."""
    logger = logging.getLogger(CompiledCalls.LOGGER)
    others = list(logger.filters)  # of tests before, in the same process, that undo nothing
    model, x = nn.Sequential(Net(), nn.Dropout(0.3)), torch.randn(4, 8)
    torch.manual_seed(1)
    plain, names = gradients(model, x), set(model.__dict__)
    applied = boosted(model)
    assert applied.engaged() is None
    torch.manual_seed(1)
    torch.testing.assert_close(gradients(model, x), plain)
    assert applied.engaged() == (True, "1 graphs, 0 recompilations, 0 graph breaks")
    applied.undo()
    assert set(model.__dict__) == names
    assert not [item for item in logger.filters if item not in others]


@pytest.mark.gpu
@pytest.mark.slow
def test_cuda_graphs_leave_the_script_its_own_outputs():
    model = Net().cuda()
    plain = copy.deepcopy(model)
    applied = boosted(model, "reduce-overhead")
    batches = [torch.randn(4, 8, device="cuda") for _ in range(6)]
    kept = []
    for x in batches:
        kept.append(model(x))
        kept[-1].sum().backward()
    for out, x in zip(kept, batches, strict=True):
        torch.testing.assert_close(out, plain(x))
        plain(x).sum().backward()
    torch.testing.assert_close(grads(model), grads(plain))
    assert applied.engaged()[0] is True


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("before", [True, False], ids=["zeroed before", "zeroed between"])
def test_with_cuda_graphs_gradients_accumulate_as_without(set_to_none, before):
    model = Net().cuda()
    plain = copy.deepcopy(model)
    job = Job()
    job.models.append(model)
    applied = compile.apply(job, model, {"mode": "reduce-overhead"})
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in (model, plain)]
    for _ in range(8):
        batches = [torch.randn(4, 8, device="cuda") for _ in range(3)]
        for net, optimizer in zip((model, plain), optimizers, strict=True):
            for number, x in enumerate(batches):
                if number == 0 and before:
                    optimizer.zero_grad(set_to_none=set_to_none)
                loss = net(x).square().mean()
                if number == 0 and not before:
                    optimizer.zero_grad(set_to_none=set_to_none)
                loss.backward()
            optimizer.step()
        for callback in list(job.step_callbacks):
            callback()
        torch.testing.assert_close(grads(model), grads(plain))
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))
    assert applied.engaged()[0] is True


@pytest.mark.usefixtures("traced")
def test_a_plain_sequential_is_compiled_although_its_forward_is_torchs_own():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    applied = boosted(model)
    model(torch.randn(2, 4)).sum().backward()
    assert applied.engaged()[0], applied.engaged()
    assert "1 graphs" in applied.engaged()[1]


# Block by block ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("traced")
def test_one_graph_serves_all_blocks():
    model, x = Deep(), torch.randn(4, 8)
    plain, names = gradients(model, x), set(model.__dict__)
    applied = boosted(model, scope="blocks")
    assert applied.engaged() is None
    torch.testing.assert_close(gradients(model, x), plain)
    assert applied.engaged() == (True, "4 x Block, 1 graphs, 0 recompilations, 0 graph breaks")
    model.eval()(x)
    with torch.no_grad():
        model.train()(x)
    assert graphs() == 1
    applied.undo()
    assert set(model.__dict__) == names
    assert not any("_compiled_call_impl" in module.__dict__ for module in model.modules())
    assert torch.equal(gradients(model, x), plain)


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("scope", ["blocks", "whole"])
def test_on_again_nothing_is_compiled_anew_until_it_is_forgotten(scope):
    job, model, x = Job(), Deep(), torch.randn(4, 8)
    job.models.append(model)
    for _ in range(3):
        applied = compile.apply(job, model, {"scope": scope})
        gradients(model, x)
        assert graphs() == 1
        assert applied.engaged()[0]
        applied.undo()
        gradients(model, x)
    compile.forget(job)
    compile.apply(job, model, {"scope": scope})
    gradients(model, x)
    assert graphs() == 2


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("scope", ["blocks", "whole"])
def test_a_model_that_the_program_drops_is_freed(scope):
    model = Deep()
    applied = boosted(model, scope=scope)
    gradients(model, torch.randn(4, 8))
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert not compile._kept
    applied.undo()


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("model", "count"),
    [
        (Deep(4), 4),
        (Deep(2), 0),
        (Deep(4, rate=0.1), 0),  # four constants, four graphs
        (nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3))), 3),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 3), 3),
        (nn.Sequential(Deep(3), *(nn.Linear(4 + n, 5 + n) for n in range(9))), 0),
    ],
)
def test_which_models_are_compiled_block_by_block(model, count):
    assert model_facts(model).blocks == count
    if not count:
        with pytest.raises(Declined, match="not mostly made"):
            boosted(model, scope="blocks")
        return
    applied = boosted(model, scope="blocks")
    model(torch.randn(2, 3, 8, requires_grad=True) * 1).sum().backward()
    assert graphs() == 1
    assert applied.engaged()[0]


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["whole", "blocks"])
def test_programs_that_use_a_graph_twice(scope):
    """Two backward passes through one graph, and a gradient penalty now and then."""

    def step(model, x, penalty):
        model.zero_grad()
        if penalty:
            x = x.clone().requires_grad_()
            (by_x,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            by_x.square().sum().backward()
        out = model(x.detach())
        out.square().mean().backward(retain_graph=True)
        (out.sum() * 0.1).backward()
        return [weight.grad.clone() for weight in model.parameters()]

    model, x = Deep(), torch.randn(4, 8)
    plain = [step(model, x, penalty) for penalty in (False, True)]
    applied = boosted(model, scope=scope)
    for penalty in (False, True, False):
        torch.testing.assert_close(step(model, x, penalty), plain[penalty], rtol=1e-4, atol=1e-5)
    assert applied.engaged()[0]


def test_buffers_are_donated_again_once_nothing_is_compiled():
    config, kept = torch._functorch.config, compiling.KeptBuffers()
    with config.patch(donated_buffer=True):
        kept.hold()
        kept.hold()
        kept.let_go()
        assert not config.donated_buffer
        kept.let_go()
        assert config.donated_buffer


def test_blocks_want_a_torch_that_compiles_them_once(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    with pytest.raises(Declined, match="each block anew"):
        boosted(Deep(), scope="blocks")


@pytest.mark.usefixtures("traced")
def test_blocks_that_are_computed_again_in_the_backward_pass():
    class Again(Deep):
        def forward(self, x):
            x = self.first(x)
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    model, x = Again(), torch.randn(4, 8)
    plain = gradients(model, x)
    applied = boosted(model, scope="blocks")
    torch.testing.assert_close(gradients(model, x), plain)
    assert applied.engaged() == (True, "4 x Block, 1 graphs, 0 recompilations, 0 graph breaks")
