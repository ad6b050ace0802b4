"""A policy that gathers experience between its updates: that is training, its evaluation is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent import profiled
from flatout_agent import wire

pytestmark = pytest.mark.slow

POLICY = """
import torch
from torch import nn

def push(state, action):
    total = 0.0
    for number in range(20_000):
        total += number % 7
    return [(value + 0.3 + 0.2 * action + total % 3) % 1.0 for value in state]

def play(policy, states):
    seen, rewards = [], []
    for _ in range(2):
        seen.append(torch.tensor(states))
        with torch.no_grad():
            actions = policy(seen[-1]).argmax(1).tolist()  # PLAY
        states = [push(state, action) for state, action in zip(states, actions)]
        rewards.append(torch.tensor(states).sum(1))
    return torch.cat(seen), torch.cat(rewards), states

@torch.no_grad()
def score(policy, states):
    scores = []
    for _ in range(3):
        scores.append(policy(states).max().item())  # EVALUATION
        grade(scores)
    return scores

def grade(scores):
    return sum(number % 5 for number in range(20_000))

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(policy.parameters())
states, fixed = torch.rand(4, 4).tolist(), torch.rand(8, 4)
for step in range(400):
    x, rewards, states = play(policy, states)
    loss = (policy(x).max(1).values - rewards).square().mean()  # MODEL
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        score(policy, fixed)
"""


def seconds(host: wire.HostSeen, function: str) -> float:
    """Per step, of the stacks that this function is on."""
    return sum(
        stack.s
        for stack in host.stacks
        if any(host.frames[number].function == function for number in stack.frames)
    )


def test_experience_is_sampled_and_its_evaluation_left_out(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(POLICY)
    run = profiled.run(["train.py"], tmp_path, wire.ProfileOrders(stop=True), light=True)
    (host,) = run.of(wire.HostSeen)
    seen = run.seen
    assert run.of(wire.Fault) == []
    # Of what was sampled, not of the step: on a busy machine much of that is waiting for a core.
    assert seconds(host, "push") > 0.5 * sum(stack.s for stack in host.stacks)
    assert seconds(host, "grade") < 0.2 * seconds(host, "push")
    assert seen.model_where == run.line("MODEL")
    assert seen.eval_where == run.line("EVALUATION")
    assert seen.eval_s > 0
