"""A trial: the same weights see the same batches, step times settle, the program stops itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from flatout_agent import wire
from flatout_agent.watch.window import Window, stable

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parent.parent / "jobs"
SHORT = {"min_steps": 4, "max_steps": 6, "window_s": 0.2}


def trial(reference: Path | None = None, **more) -> wire.TrialOrders:
    return wire.TrialOrders(**{**SHORT, "reference": reference and str(reference), **more})


def job(name: str, *options: str) -> list[str]:
    return [str(JOBS / f"{name}.py"), "--steps", "500", *options]


def test_baseline_and_twin_agree_to_the_last_bit(run_agent):
    base = run_agent(job("plain"), trial=trial(), name="base")
    twin = run_agent(job("plain"), trial=trial(base.folder), name="twin")
    assert base.returncode == twin.returncode == 0
    assert base.one(wire.Ended).reason == "window"
    guard = twin.one(wire.GuardMeasured)
    assert guard.error == (0.0, 0.0, 0.0)
    assert guard.worst_ratio == 0.0
    assert base.one(wire.GuardMeasured).noise > 0.1
    losses = [run.one(wire.LossesSeen).losses for run in (base, twin)]
    shared = min(map(len, losses))
    assert losses[0][:shared] == losses[1][:shared]
    phases = [step.phase for step in base.of(wire.StepTaken)]
    assert phases[:3] == ["guard"] * 3
    assert 4 <= phases.count("window") <= 6


def test_the_guard_steps_leave_training_as_it_would_have_been(run_agent, tmp_path):
    """After them weights and optimizer state are those of the start: the losses tell."""
    text = (JOBS / "plain.py").read_text().replace("if not args.no_seed:", "if False:")
    script = tmp_path / "one_batch.py"
    script.write_text(text.replace("shuffle=True", "shuffle=False").replace(
        "def make_data(count=512)", "def make_data(count=32)"))  # fmt: skip
    argv = [str(script), "--steps", "500"]
    with_guard = run_agent(argv, trial=trial(guard_steps=3), name="with").one(wire.LossesSeen)
    without = run_agent(argv, trial=trial(guard_steps=0), name="without").one(wire.LossesSeen)
    start = with_guard.losses[0]
    assert with_guard.losses[:4] == (start,) * 4
    assert with_guard.losses[3:8] == pytest.approx(without.losses[:5], rel=1e-6)


def test_another_loss_is_seen_in_the_gradient(run_agent, tmp_path):
    text = (JOBS / "plain.py").read_text()
    wrong = tmp_path / "wrong.py"
    wrong.write_text(text.replace("labels.to(device))", "labels.to(device), label_smoothing=0.4)"))
    base = run_agent(job("plain"), trial=trial(), name="base")
    other = run_agent([str(wrong), "--steps", "500"], trial=trial(base.folder), name="wrong")
    guard = other.one(wire.GuardMeasured)
    noise = base.one(wire.GuardMeasured).noise
    assert min(guard.error) > 0.2 * noise
    assert guard.norm_ratio < 0.9


def test_bf16_is_an_error_that_is_small_beside_the_noise(run_agent):
    base = run_agent(job("plain"), trial=trial(), name="base")
    noise = base.one(wire.GuardMeasured).noise
    half = run_agent(job("plain"), ("bf16-autocast",), trial(base.folder), "bf16")
    if half.notes()["bf16-autocast"].state != "engaged":
        pytest.skip(half.notes()["bf16-autocast"].reason)
    errors = half.one(wire.GuardMeasured).error
    assert len(errors) == 3
    assert 0 < max(errors) < 0.3 * noise
    assert half.one(wire.GuardMeasured).norm_ratio == pytest.approx(1.0, abs=0.05)


def test_workers_draw_other_augmentations_and_the_gradient_is_compared_all_the_same(run_agent):
    base = run_agent(job("augment", "--no-seed"), trial=trial(), name="base")
    order = wire.BoostOrder("loader-workers", {"workers": 1})
    other = run_agent(job("augment", "--no-seed"), (order,), trial(base.folder), "workers")
    if other.notes()["loader-workers"].state not in ("applied", "engaged"):
        pytest.skip(other.notes()["loader-workers"].reason)
    assert other.one(wire.GuardMeasured).error == (0.0, 0.0, 0.0)
    losses = [run.one(wire.LossesSeen).losses for run in (base, other)]
    assert losses[0][:3] == losses[1][:3]
    assert losses[0][4:8] != losses[1][4:8]


def test_dropout_differs_from_itself_with_another_seed_and_not_with_the_same(run_agent):
    base = run_agent(job("dropout"), trial=trial(), name="base")
    twin = run_agent(job("dropout"), trial=trial(base.folder), name="twin")
    other = run_agent(job("dropout"), trial=trial(base.folder, noise_seed=99), name="other")
    assert base.one(wire.JobSeen).facts.models[0].random_forward
    assert max(twin.one(wire.GuardMeasured).error) == 0.0
    assert min(other.one(wire.GuardMeasured).error) > 0.0
    # What the noise seed changed is over with the guard steps.
    losses = [run.one(wire.LossesSeen).losses for run in (base, other)]
    assert losses[0][0] != losses[1][0]
    assert losses[0][3:7] == losses[1][3:7]


def test_an_optimizer_that_moves_at_rate_0_is_compared_at_its_first_step_alone(run_agent, script):
    argv = [
        script("""
import torch
class Own(torch.optim.Optimizer):
    def __init__(self, params): super().__init__(params, {})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]: p -= 0.1 * p.grad
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = Own(model.parameters())
for i in range(500):
    optimizer.zero_grad(); model(torch.randn(16, 8)).square().mean().backward(); optimizer.step()
""")
    ]
    base = run_agent(argv, trial=trial(), name="base")
    # The same program; its weights move in the guard steps, alike in both: still comparable.
    twin = run_agent(argv, trial=trial(base.folder), name="twin")
    assert twin.one(wire.GuardMeasured).error == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accumulation", lambda f: f.micro_steps > 1),
        ("gan", lambda f: len(f.models) == 2 and len(f.optimizers) == 2),
        ("custom_optimizer", lambda f: not f.optimizers[0].from_torch),
        ("no_loader", lambda f: not f.loaders),
        ("dynamic_shapes", lambda f: len(f.models[0].input_shapes) > 1),
        ("scaler", lambda f: f.scaler or f.autocast),
        ("methods", lambda f: len(f.models) > 1),
        ("eval_with_grad", lambda f: f.eval_seen and f.eval_with_grad),
        ("iterable", lambda f: f.loaders[0].iterable),
        ("workers", lambda f: f.loaders[0].num_workers == 2),
        ("float64", lambda f: f.models[0].dtype == "float64"),
        ("closure", lambda f: f.optimizers[0].closure),
    ],
)
def test_what_is_seen_of_each_style(run_agent, name, expected):
    run = run_agent(job(name), trial=trial(max_steps=60, window_s=1.0, min_steps=40))
    facts = run.one(wire.JobSeen).facts
    assert expected(facts), facts
    assert run.one(wire.Ended).samples > 0
    assert run.of(wire.Fault) == []


@pytest.mark.parametrize(
    ("name", "framework"),
    [("hf_trainer", "transformers"), ("lightning_fit", "lightning"),
     ("accelerate_loop", "accelerate"), ("own_compile", None)],
)  # fmt: skip
def test_frameworks_are_understood(run_agent, tmp_path, name, framework):
    run = run_agent(job(name), trial=trial(), cwd=tmp_path)
    facts = run.one(wire.JobSeen).facts
    assert run.one(wire.Ended).reason == "window", run.stderr[-2000:]
    assert facts.framework == framework
    assert facts.models
    assert facts.models[0].compiled is (name == "own_compile")
    assert run.of(wire.Fault) == []


def test_few_steps_end_with_the_program(run_agent):
    run = run_agent([str(JOBS / "few_steps.py")], trial=trial())
    ended = run.one(wire.Ended)
    assert (ended.reason, run.returncode) == ("program", 0)


def test_it_waits_at_each_gate(run_agent, tmp_path):
    waited: list[str] = []

    def open_gates() -> None:
        folder = tmp_path / "gated"
        for number in range(3):
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                told = [p.read_text() for p in folder.glob("*.jsonl")] if folder.exists() else []
                if any(f'"number":{number},' in text and '"gate"' in text for text in told):
                    break
                time.sleep(0.05)
            time.sleep(0.3)
            waited.append(str(number))
            (folder / f"gate-{number}").touch()

    opener = threading.Thread(target=open_gates)
    opener.start()
    run = run_agent(job("plain"), trial=trial(gates=3, guard_steps=0), name="gated")
    opener.join()
    windows = [step for step in run.of(wire.StepTaken) if step.phase == "window"]
    assert waited == ["0", "1", "2"]
    assert {step.window for step in windows} == {0, 1, 2}
    assert max(step.wall_s for step in windows) < 0.3, "the pause is not part of a step"


def test_stable():
    assert not stable([1.0, 1.0])
    assert stable([9.0, 1.0, 1.05, 1.1])
    assert not stable([9.0, 5.0, 3.0])
    assert stable([0.1, 1.9] * 20)
    assert not stable([3.0 - 0.1 * i for i in range(20)])


def test_a_window_has_at_least_the_steps_and_the_time_asked_for():
    window = Window(wire.TrialOrders(guard_steps=0, min_steps=3, max_steps=100, window_s=1.0))
    now, index = 0.0, 0
    while not window.complete and index < 200:
        now += 0.1
        phase = window.phase(index)
        closing = phase == "window" and window.closes(now)
        step = wire.StepTaken(index, phase, 0.1)
        if window.step_ended(step, closing, 0, 0):
            window.begins(now)
        index += 1
    assert window.complete
    assert 10 <= window._taken <= 12
