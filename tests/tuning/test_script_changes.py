"""Boosts as changes of a script: its own names, at its own lines, or the reason why not."""

from __future__ import annotations

import difflib
import textwrap

import pytest

from flatout.commands.eject import _boosts
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.tuning.script_changes import with_boost
from flatout.tuning.script_syntax import UnclearError
from flatout_agent.wire import JobFacts, LoaderFacts, OptimizerFacts

LOADER = LoaderFacts("Rows", False, 8, 10, 0, False, False, start_method="fork", main_guard=True)
JOB = JobFacts(
    torch="2.13.0",
    python="3.12.1",
    system="linux",
    device="cpu",
    cores=8,
    loaders=(LOADER,),
    optimizers=(OptimizerFacts("SGD", True, 10, 2, "float32", fused=None, foreach=None),),
)


def changed(script: str, boost: str, job: JobFacts = JOB, **params: object) -> list[str]:
    """The lines that a boost takes out of a script (-) and puts in (+), without empty ones."""
    (ejected,) = _boosts(Plan((PlannedBoost(boost, params, 1.2, "exact"),), job=job))
    before = textwrap.dedent(script)
    after = with_boost(before, ejected, job)
    diff = list(difflib.unified_diff(before.splitlines(), after.splitlines()))[2:]
    return [line for line in diff if line[0] in "+-" and line[1:].strip()]


TRAINING = """
import torch
from torch import nn
from torch.utils import data as d

def train(net, batches, opt):
    for picture, digit in batches:
        guess = net(picture)
        loss = nn.functional.cross_entropy(guess, digit)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()

net = nn.Linear(4, 4)
rows = d.DataLoader(pictures, 8, num_workers=0)
opt = torch.optim.SGD(
    net.parameters(),
    lr=0.1,
)
train(net, rows, opt)
"""


def test_the_optimizer_is_made_with_one_argument_more() -> None:
    assert changed(TRAINING, "fused-optimizer") == ["+    fused=True,"]
    script = "from torch.optim import SGD as S\no = S([w], lr=rate(1)) # ö\n"
    assert changed(script, "fused-optimizer") == [
        "-o = S([w], lr=rate(1)) # ö",
        "+o = S([w], lr=rate(1), fused=True) # ö",
    ]


def test_the_model_runs_within_autocast_and_the_loss_does_not() -> None:
    assert changed(TRAINING, "bf16-autocast") == [
        "-        guess = net(picture)",
        '+        with torch.autocast("cpu", dtype=torch.bfloat16):',
        "+            guess = net(picture)",
        "+        guess = guess.float()",
    ]


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("loss = F.cross_entropy(net(x), y)", "loss = F.cross_entropy(output.float(), y)"),
        ("loss = net(x).loss", "loss = output.loss"),
        ("loss = net(x)['loss']", "loss = output['loss']"),
        ("hits += (net(x).argmax(1) == y).sum()", "hits += (output.float().argmax(1) == y).sum()"),
    ],
)
def test_what_the_model_returns_is_used_as_before(use: str, expected: str) -> None:
    script = f"import torch\nimport torch.nn.functional as F\nnet.parameters()\n{use}\n"
    assert changed(script, "bf16-autocast")[-1] == f"+{expected}"


def test_of_several_outputs_only_what_a_loss_takes_becomes_float32() -> None:
    script = """
    import torch
    net.parameters()
    words, hidden = net(x, hidden)
    loss = criterion(words.view(-1), y)
    out = net(x)
    out.loss.backward()
    """
    assert [line for line in changed(script, "bf16-autocast") if "float()" in line] == [
        "+words = words.float()"
    ]


EVALUATIONS = """
@torch.no_grad()
def test():
    return [net(x) for x in tests]

def validate():
    with torch.inference_mode():
        return net(x)

def score(net):
    net.eval()
    hits = net(x).argmax(1)
    with torch.no_grad():
        net.train()
    return hits
"""


def test_evaluation_keeps_its_precision() -> None:
    """And what could not be changed there does not stand in the way."""
    trained = changed(TRAINING, "bf16-autocast")
    assert changed(TRAINING + EVALUATIONS, "bf16-autocast") == trained
    inline = TRAINING.replace(
        "    for picture, digit in batches:\n",
        "    with torch.no_grad():\n        hits = net(test)\n    for picture, digit in batches:\n",
    )
    assert changed(inline, "bf16-autocast") == trained


SHARED = """
import torch

class Trainer:
    def forward_step(self, batch):
        out = self.net(batch)
        return out

    def train(self):
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        for batch in self.batches:
            self.forward_step(batch).sum().backward()
            self.opt.step()

    @torch.no_grad()
    def evaluate(self):
        return [self.forward_step(batch) for batch in self.tests]
"""


def test_what_training_and_evaluation_share_is_told_apart_when_it_runs() -> None:
    autocast = '+        with torch.autocast("cpu", dtype=torch.bfloat16'
    lines = changed(SHARED, "bf16-autocast")
    assert lines[1] == f"{autocast}, enabled=torch.is_grad_enabled()):"
    trained_alone = SHARED.replace("@torch.no_grad()", "")
    assert changed(trained_alone, "bf16-autocast")[1] == f"{autocast}):"
    phases = TRAINING.replace(
        "guess = net(picture)",
        "with torch.set_grad_enabled(phase == 'train'):\n            guess = net(picture)",
    )
    assert "enabled=torch.is_grad_enabled()" in "".join(changed(phases, "bf16-autocast"))


def test_a_teacher_in_each_step_belongs_to_training() -> None:
    script = TRAINING.replace(
        "        loss =",
        "        with torch.no_grad():\n            wanted = teacher(picture)\n        loss =",
    )
    lines = changed(f"{script}\nteacher.parameters()", "bf16-autocast")
    assert "+            wanted = wanted.float()" in lines


def test_an_evaluation_alone_leaves_nothing_to_change() -> None:
    with pytest.raises(UnclearError, match="in evaluation alone"):
        changed(f"import torch\nnet.parameters()\n{EVALUATIONS}", "bf16-autocast")


@pytest.mark.parametrize(
    ("boost", "script", "reason"),
    [
        ("bf16-autocast", "net.parameters()\nlosses = [net(x) for x in xs]", "line 2"),
        ("bf16-autocast", "net.parameters()\nout = net(x)\nloss = out[0]", "line 3 takes a part"),
        ("bf16-autocast", "net.parameters()\nx = 1; out = net(x)", "more than one statement"),
        ("bf16-autocast", "trainer.train()", "does not call its model itself"),
        ("fused-optimizer", "import torch\ntorch.optim.SGD(w, **options)", "a list or a dict"),
        ("fused-optimizer", "import torch\no = torch.optim.SGD(p for p in w)", "no place"),
        ("loader-workers", "import torch\nrows = make_rows()", "does not call DataLoader"),
        ("channels-last", "net.parameters()\nnet(image, mask)", "which arguments of line 2"),
        ("compile", "import torch\ntorch.optim.SGD(weights)", "which model its optimizer"),
        ("gc-pause", "import torch", "where in the script its lines belong"),
        ("tf32", "print 'two'", "cannot read the script's Python"),
    ],
)
def test_what_is_not_clear_stays_a_template(boost: str, script: str, reason: str) -> None:
    params = {"scope": "whole"} if boost == "compile" else {}
    (ejected,) = _boosts(Plan((PlannedBoost(boost, params),), job=JOB))
    with pytest.raises(UnclearError, match=reason):
        with_boost(script, ejected, JOB)


def test_a_value_of_the_scripts_own_is_not_overwritten() -> None:
    script = "from torch.utils.data import DataLoader\nDataLoader(rows, num_workers=args.jobs)\n"
    with pytest.raises(UnclearError, match=r"line 2 says num_workers=args\.jobs: change it to 2"):
        changed(script, "loader-workers")


def test_the_loader_gets_workers_where_it_said_none() -> None:
    lines = changed(TRAINING, "loader-workers")
    assert "-rows = d.DataLoader(pictures, 8, num_workers=0)" in lines
    workers = "num_workers=2, prefetch_factor=2, persistent_workers=True"
    assert f"+rows = d.DataLoader(pictures, 8, {workers})" in lines
    assert "+torch.set_num_threads(6)" in lines
    assert changed(TRAINING, "loader-pin-memory")[1].endswith("num_workers=0, pin_memory=True)")


def test_workers_that_are_spawned_need_a_guard() -> None:
    with pytest.raises(UnclearError, match="__main__"):
        changed(TRAINING, "loader-workers", job=JobFacts("2.13.0", "3.14.0", "win32", "cpu"))


def test_settings_follow_the_imports() -> None:
    script = '"""Trains."""\nfrom torch import nn\nnet = nn.Linear(2, 2)\n'
    assert changed(script, "tf32") == [
        "+import torch",
        '+torch.set_float32_matmul_precision("high")',
    ]


def test_the_model_is_prepared_before_its_optimizer() -> None:
    script = """
    import torch
    class Trainer:
        def __init__(self, net):
            self.net = net
            self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        def step(self, x):
            return self.net(x).sum()
    """
    assert changed(script, "compile", scope="whole") == [
        "+        self.net.compile()  # in place, before training"
    ]
    assert changed(script, "channels-last") == [
        "+        self.net.to(memory_format=torch.channels_last)",
        "-        return self.net(x).sum()",
        "+        return self.net(x.to(memory_format=torch.channels_last)).sum()",
    ]


def test_clipping_is_given_its_public_switch() -> None:
    assert changed(TRAINING, "clip-grad")[1].endswith("(net.parameters(), 1.0, foreach=True)")
