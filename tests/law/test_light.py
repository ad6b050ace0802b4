"""Torch lives in the agent, the agent stands on the standard library and torch, and both are light.

Modules of the agent that run only once the program has imported torch (`WITH_TORCH`) import it at
the top; all others, which the host and processes without torch load, inside functions.

What a module imports is asked twice: of its source, inside functions too, and of a fresh
interpreter.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

from every import for_every
from law.sources import AGENT, FILES, LIBRARY, PROGRAMS, SRC, imported, name, tree

OPTIONAL = {"PIL", "cv2", "numpy", "nvidia"}
OPTIONAL |= {"torchdata", "torchvision", "turbojpeg"}
"""What the library uses where it is installed, always inside functions."""
EXPORTING = {"backends", "exporting", "loading"}
"""Folders of the programs that build, verify and run exported models."""
RUNTIMES = {"nncf", "numpy", "onnxruntime", "openvino", "tensorrt"}
"""What these import, always inside functions."""
APART = {"kernels", "launching", *EXPORTING}
ALONE = [path for path in PROGRAMS if path.parent.name not in APART]
LAUNCHING = [path for path in PROGRAMS if path.parent.name == "launching"]
BUILDING = [path for path in PROGRAMS if path.parent.name in EXPORTING]
EXPENSIVE = ["torch", "rich", "psutil", "jinja2", "tomlkit", "pynvml", "numpy"]
WITH_TORCH = (
    "capture",
    "discover",
    "live",
    "process.crash_scene",
    "process.session",
    "ranks",
    "speedups.failing_functions",
    "speedups.graphs.aliases",
    "speedups.graphs.host_values",
    "watch",
)
"""Rooms and modules of the agent below `session.begin`, or imported where they are needed."""
WITHOUT_TORCH = "flatout_agent.live.decide"
"""Within them: the rule of decision that the host shares."""

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
        if "inject" in parts or top == "flatout_agent" and (
            any(f"{name}.".startswith(f"flatout_agent.{room}.") for room in WITH_TORCH)
            and name != WITHOUT_TORCH
        ):
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
EXPLAIN = """
import json, sys
from flatout.__main__ import outcome
code = outcome(["explain", "KERN008"])
json.dump({"code": code, "loaded": list(sys.modules)}, sys.stderr)
"""


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@for_every(AGENT, name)
def test_agent_imports_standard_library_and_torch_alone(path: Path) -> None:
    allowed = sys.stdlib_module_names | {"torch", "flatout_agent"}
    if path.stem == "sitecustomize":
        allowed = allowed | {"sitecustomize"}  # the user's own, to which it hands over
    strange = {found: line for found, line in imported(tree(path)).items() if found not in allowed}
    assert strange == {}


@for_every(AGENT, name)
def test_agent_is_python_3_10(path: Path) -> None:
    """The user's interpreter may be older than the host's."""
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
    assert imported(tree(path)).keys().isdisjoint({"tomllib"})  # new in 3.11


@for_every(ALONE, name)
def test_programs_are_python_3_7_and_stand_alone(path: Path) -> None:
    """Facts are asked of any Python; torch is imported where it is tried."""
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 7))
    allowed = sys.stdlib_module_names | {"flatout_programs", "tell", "torch", "torchvision"}
    strange = {found: line for found, line in imported(tree(path)).items() if found not in allowed}
    assert strange == {}


@for_every(BUILDING, name)
def test_what_exports_imports_runtimes_inside_functions_alone(path: Path) -> None:
    """The host reads the backends' pages and needs without any of them.

    `load` is the artefact's own file, beside the example that serves it.
    """
    module = tree(path)
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
    allowed = sys.stdlib_module_names | {"flatout_programs"}
    assert imported(module).keys() <= allowed | RUNTIMES | {"torch", "load"}
    top = [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert imported(ast.Module(top, [])).keys() <= allowed


@for_every(LAUNCHING, name)
def test_what_an_engine_runs_needs_the_engine_alone(path: Path) -> None:
    """It is copied to a cluster, where flatout is a program and no package."""
    module = tree(path)
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 7))
    assert imported(module).keys() <= sys.stdlib_module_names | {"ray"}
    top = [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert imported(ast.Module(top, [])).keys() <= sys.stdlib_module_names


@for_every(LIBRARY, name)
def test_library_needs_standard_library_and_torch_alone(path: Path) -> None:
    module = tree(path)
    allowed = sys.stdlib_module_names | {"torch", "flatout_agent", "flatout_train"}
    strange = {found: line for found, line in imported(module).items() if found not in allowed}
    assert strange.keys() <= OPTIONAL
    top = [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert imported(ast.Module(top, [])).keys() <= allowed


def test_host_names_torch_nowhere() -> None:
    host = [path for path in FILES if path.is_relative_to(SRC / "flatout")]
    assert [name(path) for path in host if "torch" in imported(tree(path))] == []


def test_importing_any_module_imports_no_torch() -> None:
    names = f"WITH_TORCH, WITHOUT_TORCH = {WITH_TORCH!r}, {WITHOUT_TORCH!r}"
    found = json.loads(fresh(f"{names}\n{IMPORT_EVERYTHING}").stdout)
    assert len(found["seen"]) > 30
    assert {"flatout.__main__", "flatout.commands.eject", "flatout_agent.boosts"} <= set(
        found["seen"]
    )
    assert {"flatout_agent.process.start", WITHOUT_TORCH} <= set(found["seen"])
    assert "torch" not in found["loaded"]


def test_help_loads_nothing_expensive() -> None:
    done = fresh(HELP)
    found = json.loads(done.stderr)
    assert found["code"] == 0
    assert "Speed up:" in done.stdout
    assert [module for module in EXPENSIVE if module in found["loaded"]] == []
    commands = [item for item in found["loaded"] if item.startswith("flatout.commands.")]
    assert commands == []  # their help is read from their source


def test_explaining_a_code_loads_no_check_and_nothing_expensive() -> None:
    done = fresh(EXPLAIN)
    found = json.loads(done.stderr)
    assert found["code"] == 0
    assert done.stdout.startswith("# KERN008: ")
    assert [module for module in (*EXPENSIVE, "msgspec", "re2") if module in found["loaded"]] == []
    rooms = [item for item in found["loaded"] if item.startswith("flatout.diagnosing.")]
    assert sorted(rooms) == ["flatout.diagnosing.checks", "flatout.diagnosing.pages"]


def test_import_of_flatout_does_no_work() -> None:
    code = "import sys; before = set(sys.modules); import flatout; print(set(sys.modules) - before)"
    assert fresh(code).stdout.strip() == "{'flatout'}"


def test_a_public_name_brings_torch_when_it_is_used() -> None:
    loaded = "print('torch' in sys.modules)"
    code = f"import flatout, sys; {loaded}; flatout.device; {loaded}; print(flatout.train_step)"
    before, after, function = fresh(code).stdout.splitlines()
    assert (before, after) == ("False", "True")
    assert function.startswith("<function train_step ")
