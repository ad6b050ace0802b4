"""`flatout.live()`: a program that starts the agent itself, and gets all back as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

import forked
from measuring.programs import PAUSED, PLAIN

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parents[1] / "jobs"
MODEL, LOOP = PLAIN.replace("import gc,", "import gc, glob,").split("for step in")
LOOP = "for step in" + LOOP
KEPT = '"verdict":"kept"'
STATE = """
import flatout

def state():
    from torch.optim import optimizer as optimizers
    hooks = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
    loader = torch.utils.data.DataLoader.__iter__, torch.utils.data.dataloader._BaseDataLoaderIter
    return [
        *map(list, hooks), nn.Module.__call__, torch.autograd.backward, torch.autograd.grad,
        torch.save, torch.amp.GradScaler.scale, loader[0], loader[1].__next__, sys.excepthook,
        gc.get_threshold(), vars(model).get("_compiled_call_impl"), list(sys.meta_path),
    ]

def recorded(text):
    runs = sorted(glob.glob(".flatout/runs/*"), key=os.path.getmtime)
    return any(text in open(file).read() for file in glob.glob(runs[-1] + "/records/*"))

before = state()
"""
"""What the agent puts itself into, and what gc-pause changes."""


def loop(last: str, record: str = KEPT) -> str:
    """The loop that gc-pause makes faster; `last` is done once there is such a record."""
    at_step = f"time.sleep(0 if {PAUSED} else 0.01)\n    if recorded({record!r}): {last}"
    return LOOP.replace("# at each step", at_step)


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def run(folder: Path, text: str, **variables: str) -> forked.Done:
    (folder / "train.py").write_text(text)
    return forked.with_variables([str(folder / "train.py")], folder, folder, variables)


def test_what_is_faster_is_told_kept_written_and_put_back(tmp_path: Path) -> None:
    with_live = f"with flatout.live(only=['gc-pause']):\n{indented(loop('break'))}"
    last = f"    assert {PAUSED}\nassert state() == before, state()\n"
    done = run(tmp_path, f"{MODEL}{STATE}{with_live}{last}")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "flatout: gc-pause on, " in done.stderr
    assert "x faster: " in done.stderr
    assert "plan: flatout.toml" in done.stderr
    assert "inside flatout" not in done.stderr
    plan = (tmp_path / "flatout.toml").read_text()
    assert "[boosts.gc-pause]" in plan
    assert "train.py" in plan
    (report,) = (tmp_path / ".flatout").rglob("report.html")
    assert "While it trained" in report.read_text()


@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["within", "between"])
def test_an_interrupt_leaves_everything_as_written(tmp_path: Path, where: str) -> None:
    """Between two steps, and in the model's call."""
    interrupt = "raise KeyboardInterrupt"
    if where == "within":
        interrupt = "model[1].forward = stopped"
    text = f"""{MODEL}{STATE}
def stopped(inputs):
    raise KeyboardInterrupt

try:
    with flatout.live(only=["gc-pause"]):
{indented(indented(loop(interrupt)))}
except KeyboardInterrupt:
    print("interrupted")
assert state() == before, state()
vars(model[1]).pop("forward", None)
{LOOP.replace("100_000", "5")}
assert state() == before, state()
print("trained on")
"""
    done = run(tmp_path, text)
    assert (done.returncode, done.stdout) == (0, "interrupted\ntrained on\n"), done.stderr
    assert "flatout: interrupted after " in done.stderr
    assert "[boosts.gc-pause]" in (tmp_path / "flatout.toml").read_text()


@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["after", "before"])
def test_under_an_empty_plan_the_losses_are_those_of_the_program(
    tmp_path: Path, where: str
) -> None:
    """Before the program makes its model, and in the middle of its first epoch."""
    text = (JOBS / "plain.py").read_text().replace("default=80", "default=20")
    assert "default=20" in text, "more than an epoch, which has 16 steps"
    plain = run(tmp_path, text)
    live = 'import flatout; flatout.live(plan="empty.toml")'
    if where == "before":
        text = f"{live}\n{text}"
    else:
        text = text.replace("step += 1", f"step += 1\n            if step == 3: {live}")
    (tmp_path / "empty.toml").write_text("version = 1\n[boosts]\n")
    done = run(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert len(plain.stdout.splitlines()) == 20
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"flatout: {20 if where == 'before' else 17} steps")


@pytest.mark.thorough
def test_a_plan_is_applied_and_put_back(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("version = 1\n[boosts.gc-pause]\n")
    text = f"""{MODEL}{STATE}
flatout.live(plan="mine.toml")
assert not {PAUSED}, "it does not train yet"
{LOOP.replace("100_000", "40")}
assert {PAUSED}
flatout.live(False)
assert state() == before, state()
"""
    done = run(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert "engaged: gc-pause" in done.stderr
    assert "x faster" not in done.stderr


def test_without_a_training_nothing_is_said_or_left(tmp_path: Path) -> None:
    done = run(tmp_path, "import flatout, torch\nflatout.live()\ntorch.nn.Linear(2, 2)\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.glob(".flatout/runs/*"))


def test_a_boost_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "import flatout\nflatout.live(only=['gc-paus'])\n")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("there is no boost 'gc-paus'")


@pytest.mark.thorough
def test_a_program_that_flatout_has_started_has_the_agent_already(tmp_path: Path) -> None:
    text = "import flatout, torch\nwith flatout.live(): pass\n"
    done = run(tmp_path, text, FLATOUT_ORDERS=str(tmp_path / "orders.json"))
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("flatout: warning: this program was started by flatout")
    assert not (tmp_path / ".flatout").exists()


def test_a_thread_that_trains_is_waited_for(tmp_path: Path) -> None:
    """The cell that has started it ends at once; its run goes on."""
    (tmp_path / "empty.toml").write_text("version = 1\n[boosts]\n")
    text = f"""{MODEL}
import threading
import flatout
from flatout_agent.process import start

here = flatout.live(plan="empty.toml")
assert not here._run.over, "it does not train yet"

def train():
{indented(LOOP.replace("100_000", "5"))}
    start.QUIET_S = 1e9
    assert here._run.over, "this thread's own"

thread = threading.Thread(target=train)
thread.start()
thread.join()
assert not here._run.over
start.QUIET_S = 0.0
assert here._run.over
"""
    done = run(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
