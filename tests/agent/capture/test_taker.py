"""A script's model is taken at its end; the script notices nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forked
from agent.conftest import AgentRun
from flatout_agent import wire

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parents[2] / "jobs"
HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 3)
    def forward(self, x):
        return self.head(self.norm(self.inner(x)).relu())

torch.manual_seed(0)
X = torch.randn(200, 8)
Y = X[:, :3].argmax(1)
training = DataLoader(TensorDataset(X[:128], Y[:128]), batch_size=32, shuffle=True)
held_out = DataLoader(TensorDataset(X[128:], Y[128:]), batch_size=30)

def train(model, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _, (x, y) in zip(range(steps), training):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def evaluate(model):
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in held_out)
    print("accuracy", right / 72)
    model.train()
"""


def taken(run: AgentRun) -> dict[str, Any]:
    assert run.of(wire.ExportRefused) == [], run.of(wire.ExportRefused)
    facts: dict[str, Any] = json.loads(
        (Path(run.one(wire.ExportSeen).folder) / "capture.json").read_text()
    )
    assert run.of(wire.Fault) == []
    return facts


@pytest.fixture
def exported(run_agent: Any, script: Callable[[str], str]) -> Callable[..., AgentRun]:
    """exported(code, **orders): the run of HEAD and this code."""

    def run(code: str, name: str = "run", **orders: Any) -> AgentRun:
        found: AgentRun = run_agent(
            [script(HEAD + code)], export=wire.ExportOrders(**orders), name=name, light=True
        )
        return found

    return run


def test_same_output_and_the_accuracy_that_the_script_reports(
    exported: Any, script: Callable[[str], str], tmp_path: Path
) -> None:
    code = """
def main():
    model = Net()
    for _ in range(2):
        train(model)
        evaluate(model)
    print(float(torch.rand(())))
main()
"""
    run = exported(code)
    plain = forked.bare([script(HEAD + code)], tmp_path, tmp_path)
    assert (run.stdout, run.stderr, run.returncode) == (plain.stdout, plain.stderr, 0)
    facts = taken(run)
    assert (facts["model"], facts["source"], facts["weights"]) == ("Net", "evaluation", "trained")
    assert facts["batch_sizes"] == [12, 30]
    told = float(plain.stdout.split()[-2])
    assert facts["metric"]["name"] == "accuracy"
    assert facts["metric"]["value"] == pytest.approx(told)


WAYS = {
    "sys.exit(0)": "import sys; train(m := Net()); evaluate(m); sys.exit(0)",
    "inference mode": "train(m := Net()); m.eval()\nwith torch.inference_mode():\n    m(X[:40])",
    "wrapped in DataParallel": "train(nn.DataParallel(m := Net())); evaluate(m)",
    "a forward that prints": "own = Net.forward\ndef forward(self, x):\n    print('called')\n"
    "    return own(self, x)\nNet.forward = forward\ntrain(m := Net()); evaluate(m)",
    "traced by torch.fx": "train(m := Net()); evaluate(m)\nimport torch.fx\n"
    "assert len(torch.fx.symbolic_trace(m).graph.nodes) == 6; evaluate(m)",
    "only evaluated": "evaluate(Net())",
}


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=way, marks=() if way == "sys.exit(0)" else pytest.mark.thorough)
        for way, code in WAYS.items()
    ],
)
def test_ways_to_end_and_to_evaluate(
    code: str, exported: Any, script: Callable[[str], str], tmp_path: Path
) -> None:
    run = exported("\n" + code)
    facts = taken(run)
    assert (facts["model"], facts["source"]) == ("Net", "evaluation")
    plain = forked.bare([script(HEAD + "\n" + code)], tmp_path, tmp_path)
    assert (run.stdout, run.returncode) == (plain.stdout, plain.returncode)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("end", "code"),
    [("1 / 0", 1), ("raise KeyboardInterrupt", 130)],
)
def test_nothing_is_taken_of_a_script_that_fails(end: str, code: int, exported: Any) -> None:
    run = exported(f"\ntrain(m := Net()); evaluate(m)\n{end}")
    assert run.returncode in (code, -2)
    assert "its model is not exported" in run.one(wire.ExportRefused).reason
    assert not list(run.folder.parent.glob("capture*"))


TWO = """
generator, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 1))
for model in (generator, critic):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    critic(generator(torch.randn(6, 4))).mean().backward()
    optimizer.step()
"""


def test_of_several_models_the_evaluated_one_else_the_largest_else_as_asked(exported: Any) -> None:
    largest = taken(exported(TWO))
    assert largest["model"] == "Sequential"
    assert "others: Linear (generator)" in largest["notes"][0]
    look = "\nwith torch.no_grad():\n    generator(torch.randn(9, 4))"
    assert taken(exported(TWO + look, "evaluated"))["model"] == "Linear"
    assert taken(exported(TWO, "asked", model="generator"))["model"] == "Linear"
    missing = exported(TWO, "missing", model="teacher").one(wire.ExportRefused)
    assert "no model 'teacher'" in missing.reason
    assert "Linear (generator)" in missing.cure


def test_a_wrong_name_ends_the_script_at_its_first_step(exported: Any) -> None:
    code = "\ndef main():\n    model = Net()\n    train(model)\n    print('was trained')\nmain()"
    run = exported(code, model="Nett")
    assert (run.returncode, run.stdout) == (0, "")
    refused = run.one(wire.ExportRefused)
    assert "no model 'Nett' was called" in refused.reason
    assert "the script was ended" in refused.reason
    assert refused.cure.startswith(
        "did you mean Net? name it by its class or variable; called: Net"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["later", "Later", "backbone", "later.backbone"])
def test_a_model_that_is_made_when_another_was_trained(name: str, exported: Any) -> None:
    """Its name stands in the script's text, so nothing is ended."""
    code = """
class Later(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(8, 3)
    def forward(self, x):
        return self.backbone(x)
train(Net())
later = Later()
evaluate(later)
"""
    wanted = "Linear" if "backbone" in name else "Later"
    if name in ("later", "Later"):
        assert taken(exported(code, model=name))["model"] == wanted
    else:  # known only once it is there, and not looked for inside of untrained models
        assert "accuracy" in exported(code, model=name).stdout


def test_a_script_without_a_model(exported: Any) -> None:
    assert "called no model" in exported("").one(wire.ExportRefused).reason


def test_ended_early_with_a_checkpoints_weights(
    exported: Any, run_agent: Any, tmp_path: Path
) -> None:
    """Its epochs are cut: the evaluation comes after two steps, and there it ends."""
    weights = tmp_path / "weights.pt"
    save = f"\ntorch.save(Net().state_dict(), {str(weights)!r})\n"
    endless = "model = Net()\nwhile True:\n    train(model, 10**9)\n    evaluate(model)\n"
    exported(save, "saved")
    run = exported(
        "\n" + endless, weights=str(weights), after_steps=2, folder=str(tmp_path / "taken")
    )
    assert run.returncode == 0
    facts = taken(run)
    assert (facts["source"], facts["weights"]) == ("evaluation", str(weights))
    assert run.stdout.count("accuracy") == 1
    never = "model = Net()\nwhile True:\n    train(model, 10**9)\n"
    facts = taken(exported("\n" + never, "never", weights=str(weights), after_steps=2))
    assert facts["source"] == "training"


ALIKE = [
    "accumulation", "augment", "by_hand", "checkpointing", "closure", "custom_optimizer", "dropout",
    "dynamic_shapes", "ema_copy", "eval_with_grad", "float64", "frozen", "gan", "iterable",
    "methods", "no_loader", "saves", "scaler", "sched", "several_losses", "unguarded", "workers",
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    ["plain", "rnn", *ALIKE],
)
def test_every_style_of_training(run_agent: Any, name: str) -> None:
    argv = [str(JOBS / f"{name}.py"), "--steps", "12"]
    facts = taken(run_agent(argv, export=wire.ExportOrders(), light=True))
    assert facts["batch_dynamic"]
    assert facts["source"] == ("evaluation" if name == "eval_with_grad" else "training")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["hf_trainer", "lightning_fit", "accelerate_loop", "own_compile"])
def test_frameworks(run_agent: Any, name: str) -> None:
    argv = [str(JOBS / f"{name}.py"), "--steps", "6"]
    facts = taken(run_agent(argv, export=wire.ExportOrders(), light=True))
    assert facts["batch_dynamic"]
    if name == "hf_trainer":
        assert [row["name"] for row in facts["inputs"]] == ["input_ids"]
        assert [row["name"] for row in facts["outputs"]] == ["logits"]
    if name == "own_compile":
        assert facts["model"] == "Net"


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="torchrun needs libuv, which Windows lacks")
def test_the_first_of_two_ranks(run_agent: Any) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = run_agent([*launcher, str(JOBS / "ddp.py"), "--steps", "6"], export=wire.ExportOrders())
    assert run.returncode == 0, run.stderr
    assert len(run.of(wire.ExportSeen)) == 1


GENERATES = """
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=32, n_embd=16, n_layer=1, n_head=2))
tokens = torch.randint(32, (4, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(input_ids=tokens, labels=tokens).loss.backward()
optimizer.step()
model.eval()
model.generate(tokens[:, :4], max_new_tokens=4, do_sample=False, pad_token_id=0)
"""


@pytest.mark.thorough
def test_text_that_is_generated_is_for_other_engines(exported: Any) -> None:
    refused = exported(GENERATES).one(wire.ExportRefused)
    assert "generating text" in refused.reason
    assert "vLLM" in refused.cure
    assert "OpenVINO GenAI" in refused.cure
