"""Torch lives in the agent, the agent stands on the standard library and torch, and both are light.

What a module imports is asked twice: of its source, inside functions too, and of a fresh
interpreter.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from law.sources import AGENT, FILES, LIBRARY, PROGRAMS, SRC, imported, name, tree

OPTIONAL = {"PIL", "cv2", "numpy", "nvidia", "simplejpeg"}
OPTIONAL |= {"torchao", "torchdata", "torchvision", "turbojpeg"}
"""What the library uses where it is installed, always inside functions."""
EXPENSIVE = ["torch", "rich", "plotly", "psutil", "jinja2", "tomlkit", "pynvml", "numpy"]

IMPORT_EVERYTHING = """
import importlib, json, pathlib, sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise AssertionError("torch is imported")

sys.meta_path.insert(0, Wall())
seen = []
for top in ("flatout", "flatout_agent", "flatout_programs"):
    package = importlib.import_module(top)
    seen.append(top)
    root = pathlib.Path(package.__path__[0])
    for path in root.rglob("*.py"):
        parts = [top, *path.relative_to(root).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if "inject" in parts:
            continue
        importlib.import_module(name)
        seen.append(name)
json.dump({"seen": seen, "loaded": list(sys.modules)}, sys.stdout)
"""
HELP = """
import json, sys
from flatout.__main__ import outcome
code = outcome(["--help"])
json.dump({"code": code, "loaded": list(sys.modules)}, sys.stderr)
"""


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


STANDARD = set(sys.stdlib_module_names)


def strangers(paths: Iterable[Path], allowed: set[str]) -> list[str]:
    """file: module, for each import that is not allowed."""
    return [
        f"{name(path)}:{line}: {module}"
        for path in paths
        for module, line in imported(tree(path)).items()
        if module not in allowed
    ]


def unreadable(paths: Iterable[Path], version: tuple[int, int]) -> list[str]:
    """Files that this Python cannot parse."""
    found = []
    for path in paths:
        try:
            ast.parse(path.read_text(encoding="utf-8"), feature_version=version)
        except SyntaxError as error:
            found.append(f"{name(path)}:{error.lineno}: {error.msg}")
    return found


def test_agent_imports_standard_library_and_torch_alone() -> None:
    own = {"flatout_agent", "torch", "sitecustomize"}  # the user's own, to which it hands over
    assert strangers(AGENT, STANDARD | own) == []


def test_agent_is_python_3_10() -> None:
    """The user's interpreter may be older than the host's."""
    assert unreadable(AGENT, (3, 10)) == []
    assert [name(path) for path in AGENT if "tomllib" in imported(tree(path))] == []  # new in 3.11


def test_programs_are_python_3_7_and_stand_alone() -> None:
    """But for the kernels, which need torch: facts are asked of any Python."""
    alone = [path for path in PROGRAMS if path.parent.name != "kernels"]
    assert len(alone) > 4
    assert unreadable(alone, (3, 7)) == []
    assert unreadable(PROGRAMS, (3, 10)) == []
    own = {"flatout_agent", "flatout_programs", "tell", "torch"}
    assert strangers(alone, STANDARD | own | {"torchvision"}) == []


def test_library_needs_standard_library_and_torch_alone() -> None:
    own = STANDARD | {"torch", "flatout_agent", "flatout_train"}
    assert strangers(LIBRARY, own | OPTIONAL) == []
    at_the_top = [
        f"{name(path)}: {module}"
        for path in LIBRARY
        for module in imported(top(tree(path)))
        if module not in own
    ]
    assert at_the_top == []


def top(module: ast.Module) -> ast.Module:
    """The imports that run when the module is imported."""
    module.body = [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return module


def test_host_names_torch_nowhere() -> None:
    host = [path for path in FILES if path.is_relative_to(SRC / "flatout")]
    assert [name(path) for path in host if "torch" in imported(tree(path))] == []


def test_importing_any_module_imports_no_torch() -> None:
    found = json.loads(fresh(IMPORT_EVERYTHING).stdout)
    assert len(found["seen"]) > 30
    assert {"flatout.__main__", "flatout.commands.eject", "flatout_agent.boosts"} <= set(
        found["seen"]
    )
    assert "torch" not in found["loaded"]


def test_help_loads_nothing_expensive() -> None:
    done = fresh(HELP)
    found = json.loads(done.stderr)
    assert found["code"] == 0
    assert "Commands:" in done.stdout
    assert [module for module in EXPENSIVE if module in found["loaded"]] == []
    commands = [item for item in found["loaded"] if item.startswith("flatout.commands.")]
    assert commands == []  # their help is read from their source


def test_import_of_flatout_does_no_work() -> None:
    code = "import sys; before = set(sys.modules); import flatout; print(set(sys.modules) - before)"
    assert fresh(code).stdout.strip() == "{'flatout'}"


def test_a_public_name_brings_torch_when_it_is_used() -> None:
    code = "import flatout, sys; print('torch' in sys.modules, flatout.train_step.__name__)"
    assert fresh(code).stdout.split() == ["False", "train_step"]
    code = "import sys, flatout; flatout.device; print('torch' in sys.modules)"
    assert fresh(code).stdout.strip() == "True"
