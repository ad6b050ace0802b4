"""Experiment trackers in a trial, and folders of the script's own with their names."""

from __future__ import annotations

import types
from typing import Any

import pytest

from flatout_agent.overlay import trackers


@pytest.mark.parametrize("name", ["wandb", "mlflow", "comet_ml", "huggingface_hub"])
def test_a_folder_of_runs_with_the_name_of_a_tracker_is_left_alone(
    name: str, tmp_path: Any
) -> None:
    own = types.ModuleType(name)
    before = dict(vars(own))
    overlay: Any = types.SimpleNamespace(scratch=str(tmp_path))
    trackers.hooks(overlay)[name](own)
    assert vars(own) == before


def test_runs_of_wandb_are_disabled() -> None:
    wandb: Any = types.ModuleType("wandb")
    wandb.init = lambda project, mode="online": (project, mode)
    trackers._disable_wandb(wandb)
    assert wandb.init(project="mine", mode="online") == ("mine", "disabled")
