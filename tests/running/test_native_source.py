"""What a source tells, on small programs in real folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.running.native_source import tells

GROUP = "import torch.distributed as dist\ndef begin():\n    dist.init_process_group('gloo')\n"
OWN_HELPER = """import torch.distributed as dist
def init_distributed_mode():
    if "RANK" not in os.environ:
        return
    dist.init_process_group("gloo")
"""


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / next(iter(files))


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"train.py": "import torch, numpy\nfrom pathlib import Path\n"}, "plain"),
        ({"train.py": "from accelerate import Accelerator\n"}, "nothing"),
        ({"train.py": "import its_own_trainer\n"}, "nothing"),
        ({"train.py": "from transformers import AutoModel\n"}, "plain"),
        ({"train.py": "from transformers import Trainer\n"}, "nothing"),
        ({"train.py": "import importlib\nimportlib.import_module('accelerate')\n"}, "nothing"),
        ({"train.py": "import os\nrank = os.environ.get('RANK')\n"}, "nothing"),
        ({"train.py": "print 'Python 2'\n"}, "nothing"),
        ({"train.py": GROUP + "begin()\n"}, "ddp"),
        ({"train.py": GROUP}, "nothing"),
        ({"train.py": OWN_HELPER + "init_distributed_mode()\n"}, "perhaps ddp"),
        (
            {
                "train.py": GROUP
                + "def main():\n    begin()\nif __name__ == '__main__':\n    main()\n"
            },
            "ddp",
        ),
        ({"train.py": GROUP + "import sys\nif sys.argv[1:]:\n    begin()\n"}, "perhaps ddp"),
        (
            {"train.py": GROUP.replace("    dist", "    if ddp: return\n    dist") + "begin()\n"},
            "perhaps ddp",
        ),
        (
            {
                "train.py": "import hydra\n@hydra.main()\ndef main():\n    begin()\n"
                + GROUP
                + "main()"
            },
            "ddp",
        ),
        (
            {"train.py": GROUP + "class Run:\n    def __init__(self):\n        begin()\nRun()\n"},
            "ddp",
        ),
        (
            {"train.py": GROUP + "class Run:\n    def train(self):\n        begin()\nRun()\n"},
            "nothing",
        ),
        (
            {
                "train.py": GROUP
                + "if 0:\n    def run():\n        begin()\nimport sys\nif sys:\n    run()\n"
            },
            "perhaps ddp",
        ),
        ({"train.py": "# dist.init_process_group('gloo')\n"}, "nothing"),
        ({"train.py": GROUP + "import torch\ntorch.multiprocessing.spawn(begin)\n"}, "nothing"),
        ({"train.py": "import deepspeed\ndeepspeed.init_distributed()\n"}, "ddp"),
        ({"train.py": "import tools\ntools.begin()\n", "tools.py": GROUP}, "ddp"),
        ({"train.py": "import tools\n", "tools.py": GROUP}, "nothing"),
        (
            {"train.py": "from tools import many\nmany.begin()\n", "tools/many.py": GROUP},
            "ddp",
        ),
        (
            {
                "project/train.py": "from .tools import begin\nfrom project.models import net\n",
                "project/__init__.py": "",
                "project/tools.py": "import torch\nbegin = print\n",
                "project/models/__init__.py": "from . import net\n",
                "project/models/net.py": "from ..tools import begin\nimport torchvision\n",
            },
            "plain",
        ),
        (
            {
                "project/train.py": "from .tools import begin\n",
                "project/__init__.py": "",
                "project/tools.py": "from lightning import Fabric\n",
            },
            "nothing",
        ),
    ],
)
def test_a_source(tmp_path: Path, files: dict[str, str], told: str) -> None:
    assert tells(written(tmp_path, files)) == told


def test_what_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    assert tells(None) == "nothing"
    assert tells(tmp_path / "train.py") == "nothing"
    circle = {"a.py": "import b\n", "b.py": "import a\n"}
    assert tells(written(tmp_path, circle)) == "plain"
