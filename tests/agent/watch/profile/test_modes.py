"""Our dispatch modes leave the stack as they found it, whatever the program has done meanwhile."""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from flatout_agent.watch.profile.counting import flop_counter as counter
from flatout_agent.watch.profile.flow.follow import Flow
from flatout_agent.watch.profile.modes import StepMode, without_modes


class Seeing:
    """Counts operators."""

    operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        return func(*args, **(kwargs or {}))


class Ours(Seeing, StepMode):
    pass


class Theirs(Seeing, TorchDispatchMode):
    exits = 0

    def __exit__(self, *error: Any) -> None:
        self.exits += 1
        super().__exit__(*error)


def test_it_leaves_below_a_mode_that_the_program_has_entered() -> None:
    ours, theirs = Ours(), Theirs()
    ours.enter()
    with theirs:
        torch.ones(1)
        ours.leave()
        assert _get_current_dispatch_mode_stack() == [theirs]
        assert theirs.exits == 0, "the program has not left it"
        torch.ones(1)
    assert (ours.operators, theirs.operators, theirs.exits) == (1, 2, 1)
    assert _get_current_dispatch_mode_stack() == []
    assert not torch.utils._python_dispatch._is_in_torch_dispatch_mode


def test_left_twice() -> None:
    ours = Ours()
    ours.enter()
    ours.leave()
    ours.leave()
    assert _get_current_dispatch_mode_stack() == []


def test_nothing_sees_what_is_computed_past_all_modes() -> None:
    ours = Ours()
    ours.enter()
    with pytest.raises(ZeroDivisionError), without_modes():
        torch.ones(1)
        raise ZeroDivisionError
    torch.ones(1)
    ours.leave()
    assert ours.operators == 1


def look(queue: Any) -> None:
    """In a forked process: what is left there of ours."""
    hooks = torch.nn.modules.module
    queue.put(
        (
            len(_get_current_dispatch_mode_stack()),
            "numpy" in vars(torch.Tensor),
            len(hooks._global_forward_hooks) + len(hooks._global_forward_pre_hooks),
        )
    )


@pytest.mark.skipif(sys.platform != "linux", reason="loaders fork on Linux")
def test_a_forked_worker_is_not_followed() -> None:
    model = nn.Linear(2, 2)
    flow = Flow([model], lambda: False)
    end = counter([model], flow)
    assert end is not None
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    worker = context.Process(target=look, args=(queue,))
    worker.start()
    worker.join()
    assert queue.get() == (0, False, 0)
    model(torch.ones(2, 2))
    end()
    assert [node.name for node in flow.nodes][-1:] == ["aten.addmm"], "its parent is"
