"""The environment variables of the user's program: its own, and those that carry the agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from flatout_agent import wire

INJECT = Path(wire.__file__).absolute().parents[1] / "inject"
"""The one folder put on PYTHONPATH. It holds only `sitecustomize.py`, so that the program sees no
package of flatout's own environment."""


def for_program(
    orders: Path, boosts: Mapping[str, str], base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment with the agent, its orders and the variables that boosts ask for.

    The value of a boost already includes what the user has set.
    """
    environment = dict(os.environ if base is None else base)
    own = environment.get("PYTHONPATH")
    # Joined only when there is something: an empty entry would be the working folder.
    environment["PYTHONPATH"] = os.pathsep.join([str(INJECT), *([own] if own else [])])
    environment[wire.ORDERS_ENV] = str(orders)
    environment.update(boosts)
    return environment


def share_compiled(variables: dict[str, str], cache: Path) -> None:
    """Use what a tuning in this folder has compiled, unless the user has set a cache."""
    if cache.is_dir():
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache.absolute()))


def for_trial(
    orders: Path,
    boosts: Mapping[str, str],
    seed: int,
    compile_cache: Path,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """As `for_program`, with seeded string hashing and compiled code shared between trials."""
    environment = for_program(orders, boosts, base)
    environment.setdefault("PYTHONHASHSEED", str(seed % 2**32))
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compile_cache))
    return environment


def for_log(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program whose output goes to a log.

    Python on Windows writes any letter to a console, but to a file only those of the old code page.
    """
    environment = dict(variables)
    if sys.platform == "win32":
        environment.setdefault("PYTHONIOENCODING", "utf-8:backslashreplace")
    return environment


def warned() -> dict[str, str]:
    """Variables for a program whose cluster signals all processes before it ends them."""
    return {wire.WARNING_ENV: "SIGUSR1"} if sys.platform != "win32" else {}
