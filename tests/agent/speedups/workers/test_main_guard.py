from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[4] / "src"
ASK = "from flatout_agent.speedups.workers.main_guard import main_guard\n"


def _says(tmp_path: Path, script: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(ASK + script)
    return _run([str(path)], tmp_path)


def _run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("print(main_guard())", "False"),
        ("if __name__ == '__main__':\n    print(main_guard())", "True"),
        ("def main():\n    print(main_guard())\nif '__main__' == __name__:\n    main()", "True"),
        ("if __name__ != '__main__':\n    pass\nelse:\n    print(main_guard())", "True"),
        ("try:\n    if __name__ == '__main__' and True:\n        print(main_guard())\n"
         "finally:\n    pass", "True"),
        ("# if __name__ == '__main__':\nprint(main_guard())", "False"),
        ("text = \"if __name__ == '__main__':\"\nprint(main_guard())", "False"),
        ("print(main_guard())\nif __name__ == '__main__':\n    pass", "False"),
        ("def f():\n    if __name__ == '__main__':\n        print(main_guard())\nf()", "False"),
        ("if __name__ == '__main__' or True:\n    print(main_guard())", "False"),
    ],
)  # fmt: skip
def test_the_line_that_runs_decides(tmp_path: Path, script: str, said: str) -> None:
    assert _says(tmp_path, script) == said


def test_a_thread_counts_where_the_main_script_stands(tmp_path: Path) -> None:
    script = (
        "import threading\nif __name__ == '__main__':\n"
        "    t = threading.Thread(target=lambda: print(main_guard()))\n    t.start()\n    t.join()"
    )
    assert _says(tmp_path, script) == "True"


def test_a_command_is_no_script_file(tmp_path: Path) -> None:
    assert _run(["-c", ASK + "print(main_guard())"], tmp_path) == "None"


def test_a_module_is_a_script_file(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(ASK + "if __name__ == '__main__':\n    print(main_guard())")
    assert _run(["-m", "pkg.train"], tmp_path) == "True"
