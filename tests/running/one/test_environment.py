import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.running.one import environment

BASE = {"PATH": "/bin", "HOME": "/home/me"}


def test_only_the_agents_variables_are_added() -> None:
    made = environment.for_program(Path("/x/orders.json"), {}, BASE)
    assert made == {
        **BASE,
        "PYTHONPATH": str(environment.INJECT),
        "FLATOUT_ORDERS": str(Path("/x/orders.json")),
    }


@pytest.mark.parametrize("own", ["/a", f"/a{os.pathsep}/b", f"/a{os.pathsep}"])
def test_the_users_python_path_is_kept_as_it_is(own: str) -> None:
    made = environment.for_program(Path("o"), {}, {"PYTHONPATH": own})
    assert made["PYTHONPATH"] == f"{environment.INJECT}{os.pathsep}{own}"


def test_an_empty_python_path_adds_no_working_folder() -> None:
    made = environment.for_program(Path("o"), {}, {"PYTHONPATH": ""})
    assert "" not in made["PYTHONPATH"].split(os.pathsep)


def test_boosts_add_their_variables() -> None:
    """What the user has set is the boost's to carry on: it was asked with that in sight."""
    made = environment.for_program(Path("o"), {"A": "mine,theirs", "C": "new"}, {"A": "mine"})
    assert (made["A"], made["C"]) == ("mine,theirs", "new")


def test_a_trial_is_seeded_and_shares_compiled_code() -> None:
    made = environment.for_trial(Path("o"), {}, 7, Path("/cache"), BASE)
    assert made["PYTHONHASHSEED"] == "7"
    assert made["TORCHINDUCTOR_CACHE_DIR"] == str(Path("/cache"))
    own = {"PYTHONHASHSEED": "3", "TORCHINDUCTOR_CACHE_DIR": "/mine"}
    assert environment.for_trial(Path("o"), {}, 7, Path("/cache"), own).items() >= own.items()


def test_a_log_takes_any_letter_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.for_log(BASE) == BASE or sys.platform == "win32"
    monkeypatch.setattr(sys, "platform", "win32")
    added = {"PYTHONIOENCODING": "utf-8:backslashreplace"}
    assert environment.for_log(BASE) == {**BASE, **added}
    own = {"PYTHONIOENCODING": "latin-1"}
    assert environment.for_log(own) == own


def test_nothing_of_flatouts_own_becomes_importable() -> None:
    """The folder put on the path holds the one file, and no package can be found through it."""
    listed = [item.name for item in environment.INJECT.iterdir() if item.name != "__pycache__"]
    assert listed == ["sitecustomize.py"]
    find = "import importlib.util as u; print(u.find_spec('flatout'), u.find_spec('psutil'))"
    made = environment.for_program(
        Path("none"), {}, {"SYSTEMROOT": os.environ.get("SYSTEMROOT", "")}
    )
    made.pop("FLATOUT_ORDERS")
    done = subprocess.run(
        [_base_python(), "-s", "-c", find], env=made, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] == "None"


def _base_python() -> str:
    """The interpreter under the virtual environment, which lacks what flatout's has."""
    return str(getattr(sys, "_base_executable", sys.executable))
