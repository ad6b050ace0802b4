"""The plan's one reader: host and library refuse the same files, with the same words."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from flatout.nouns.errors import UserError
from flatout.tuning import plan_file
from flatout_agent.apply import plan
from flatout_agent.apply.plan import PlanError, WrittenBoost
from flatout_train import plans
from flatout_train.errors import UsageError

WHOLE = """\
version = 1
command = ["train.py", "--epochs", "3"]
script_sha256 = "ab12"
created = "2026-01-02"

[measured]
speedup = 1.5
interval = [1.4, 1.6]
pairs = 12
compile_s = 20
pays_after_steps = 400

[boosts.channels-last]
[boosts.compile]
gain = 1.25
risk = "rounding"
params = { mode = "default" }

[machine]
system = "Linux"
cores = 8

[job]
device = "cpu"
"""


def test_a_whole_plan() -> None:
    written = plan.read(tomllib.loads(WHOLE), Path("flatout.toml"))
    assert written.boosts == (
        WrittenBoost("channels-last"),
        WrittenBoost("compile", {"mode": "default"}, 1.25, "rounding"),
    )
    assert written.command == ("train.py", "--epochs", "3")
    assert (written.script_sha256, written.created) == ("ab12", "2026-01-02")
    assert (written.speedup, written.speedup_interval) == (1.5, (1.4, 1.6))
    assert (written.pairs, written.compile_s, written.pays_after_steps) == (12, 20.0, 400)
    assert written.machine is not None
    assert (written.machine.text("system"), written.machine.whole("cores")) == ("Linux", 8)
    assert written.job.raw == {"device": "cpu"}


def test_what_a_plan_does_not_say_is_none() -> None:
    written = plan.read({"version": 1}, Path("flatout.toml"))
    assert (written.boosts, written.command, written.machine, written.job.raw) == ((), (), None, {})
    assert (written.script_sha256, written.speedup, written.speedup_interval) == (None, None, None)


REFUSED = (
    "",
    "version = 0\n",
    "version = 2\n",
    "version = '1'\n",
    "version = 1\n[boost.x]\n",
    "version = 1\n[boosts.chanels-last]\n",
    "version = 1\nboosts = ['a']\n",
    "version = 1\n[boosts.tf32]\ngian = 2\n",
    "version = 1\n[boosts.tf32]\ngain = -1\n",
    "version = 1\n[boosts.compile]\nparams = {mode = 1}\n",
    "version = 1\n[measured]\ninterval = [1]\n",
    "version = 1\ncommand = 'train.py'\n",
)


@pytest.mark.parametrize("content", [*REFUSED, None, b"\xff\xfe\x00"])
def test_host_and_library_refuse_the_same_with_the_same_words(
    content: str | bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "flatout.toml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PlanError) as refusal:
        plan.read(tomllib.loads(plan.text(path)), path)
    message, next_step = refusal.value.message, refusal.value.next_step
    assert str(path) in message
    assert next_step
    with pytest.raises(UserError) as in_host:
        plan_file.read(path)
    assert (in_host.value.message, in_host.value.next_step) == (message, next_step)
    with pytest.raises(UsageError) as in_library:
        plans.read(path)
    assert str(in_library.value) == f"{message}. {next_step[0].upper()}{next_step[1:]}"
