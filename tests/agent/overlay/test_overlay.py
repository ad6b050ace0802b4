"""A trial leaves no trace: real programs with real libraries, in real processes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forked
from flatout_agent import wire

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[3] / "src"
DRIVER = Path(__file__).with_name("trial_driver.py")
KEEP_BEST = """
    import os, shutil
    from pathlib import Path
    from flatout_agent import overlay
    import torch

    best = 0.0
    for epoch in range(6):
        if epoch == 1:
            overlay.mark_first_step()
        folder = Path("runs") / f"epoch-{epoch}"
        folder.mkdir(parents=True)
        torch.save({"epoch": epoch}, folder / "model.pt.tmp")
        os.replace(folder / "model.pt.tmp", folder / "model.pt")
        kept = sorted(Path("runs").glob("epoch-*"), key=lambda path: path.stat().st_mtime_ns)
        for old in kept[:-2]:
            shutil.rmtree(old)
        shutil.copy2(folder / "model.pt", "best.pt")
        last = Path("runs/latest")
        last.unlink(missing_ok=True)
        last.symlink_to(folder.name)
    assert sorted(os.listdir("runs")) == ["epoch-4", "epoch-5", "latest"], os.listdir("runs")
    assert torch.load("best.pt")["epoch"] == 5
    assert torch.load("runs/latest/model.pt", mmap=True)["epoch"] == 5
"""
LIBRARIES = {
    "torch by path and by file": """
        import io, torch
        assert torch.load("model.pt")["epoch"] == -1
        torch.save({"epoch": 1, "w": torch.ones(3)}, "model.pt")
        assert torch.load("model.pt")["epoch"] == 1
        assert torch.load("model.pt", mmap=True)["w"].sum() == 3
        with open("model.pt", "wb") as file:
            torch.save({"epoch": 2}, file)
        with open("model.pt", "rb") as file:
            assert torch.load(file)["epoch"] == 2
        torch.serialization.save({"epoch": 3}, f="modèle.pt")
        assert torch.serialization.load("modèle.pt")["epoch"] == 3
        torch.save([1], "old.pt", _use_new_zipfile_serialization=False)
        assert torch.load("old.pt") == [1]
        shared = torch.from_file("shared.bin", shared=True, size=4)
        shared.fill_(7)
        assert torch.from_file("shared.bin", size=4).tolist() == [7] * 4
    """,
    "profiler": """
        import json, os, torch
        with torch.profiler.profile() as profile:
            torch.ones(3) + 1
        profile.export_chrome_trace("trace.json")
        assert json.load(open("trace.json"))["traceEvents"]
    """,
    "safetensors": """
        import torch, numpy
        from safetensors import safe_open
        from safetensors.torch import save_file, load_file
        import safetensors.numpy
        save_file({"w": torch.ones(2)}, "w.safetensors")
        save_file({"w": torch.zeros(2)}, "w.safetensors")
        assert load_file("w.safetensors")["w"].sum() == 0
        with safe_open("w.safetensors", framework="pt") as file:
            assert list(file.keys()) == ["w"]
        safetensors.numpy.save_file({"a": numpy.ones(1)}, "a.safetensors")
        assert safetensors.numpy.load_file("a.safetensors")["a"] == 1
    """,
    "numpy": """
        import numpy as np
        np.save("array.npy", np.arange(5))
        assert np.load("array.npy", mmap_mode="r").sum() == 10
        np.savez("two.npz", a=np.ones(2), b=np.zeros(2))
        assert np.load("two.npz")["a"].sum() == 2
        np.arange(3, dtype=np.int64).tofile("raw.bin")
        assert np.fromfile("raw.bin", dtype=np.int64).tolist() == [0, 1, 2]
        mapped = np.memmap("mapped.bin", dtype=np.float32, mode="w+", shape=(4,))
        mapped[:] = 3
        mapped.flush()
        assert np.memmap("mapped.bin", dtype=np.float32, mode="r+").sum() == 12
        np.savetxt("table.csv", np.ones((2, 2)))
        assert np.loadtxt("table.csv").sum() == 4
    """,
    "images": """
        from PIL import Image
        Image.new("RGB", (4, 4), "red").save("image.png")
        Image.open("image.png").convert("L").save("image.png")
        assert Image.open("image.png").mode == "L"
    """,
    "sqlite": """
        import sqlite3
        for number in (1, 2):
            with sqlite3.connect("log.db") as base:
                base.execute("create table if not exists t (x)")
                base.execute("insert into t values (?)", (number,))
            base.close()
        base = sqlite3.connect("file:log.db?mode=ro", uri=True)
        assert base.execute("select sum(x) from t").fetchone() == (3,)
        base.close()
    """,
    "archives and temporary files": """
        import bz2, logging, pickle, shutil, tarfile, tempfile, os
        logging.basicConfig(filename="train.log", level="INFO")
        logging.info("hello")
        logging.shutdown()
        with tarfile.open("t.tar.gz", "w:gz") as archive:
            archive.add("train.log")
        shutil.unpack_archive("t.tar.gz", "unpacked")
        assert "hello" in open("unpacked/train.log").read()
        with tempfile.NamedTemporaryFile(dir=".", delete=False) as file:
            file.write(b"x")
        os.replace(file.name, "final.bin")
        with tempfile.TemporaryDirectory(dir=".") as folder:
            open(os.path.join(folder, "x"), "w").close()
        assert not os.path.exists(folder)
        with bz2.open("data.bz2", "wt") as file:
            file.write("b")
        pickle.dump(os.remove, open("function.pickle", "wb"))
        assert pickle.load(open("function.pickle", "rb")) is os.remove
    """,
    "tensorboard": """
        import glob
        from torch.utils.tensorboard import SummaryWriter
        with SummaryWriter("runs/one") as writer:
            writer.add_scalar("loss", 1.0, 1)
        events = glob.glob("runs/one/events.*")
        assert len(events) == 1 and events[0].startswith("runs/one/")
    """,
    "tokenizers": """
        import os
        from tokenizers import Tokenizer, models, trainers
        open("corpus.txt", "w").write("a cat sat on a mat " * 20)
        tokenizer = Tokenizer(models.BPE(unk_token="?"))
        tokenizer.train(["corpus.txt"], trainers.BpeTrainer(vocab_size=20, show_progress=False))
        os.mkdir("tok")
        tokenizer.save("tok/tokenizer.json")
        assert Tokenizer.from_file("tok/tokenizer.json").get_vocab() == tokenizer.get_vocab()
        assert tokenizer.model.save("tok") == ["tok/vocab.json", "tok/merges.txt"]
        assert sorted(os.listdir("tok")) == ["merges.txt", "tokenizer.json", "vocab.json"]
    """,
    "file io": """
        import io
        with io.FileIO("raw.bin", "w") as file:
            file.write(b"abc")
        assert io.FileIO("raw.bin").read() == b"abc"
        with open("raw.bin", "rb") as file:
            assert isinstance(file.raw, io.FileIO) and file.name == "raw.bin"
    """,
    "devices, caches and temporary folders": """
        import os, tempfile
        open(os.devnull, "w").write("x")
        with tempfile.TemporaryDirectory() as folder:
            open(os.path.join(folder, "x"), "w").close()
        os.environ["TRITON_CACHE_DIR"] = os.path.abspath("cache")
        os.makedirs("cache/kernel")
    """,
    "keep best": KEEP_BEST,
}
TRANSFORMERS = """
    import os, torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=10))
    data = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 32
    arguments = TrainingArguments(
        "runs/hf", max_steps=6, save_steps=2, save_total_limit=2, report_to="tensorboard",
        per_device_train_batch_size=2, logging_steps=1, disable_tqdm=True, use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    trainer.save_model()
    found = sorted(name for name in os.listdir("runs/hf") if name.startswith("checkpoint"))
    assert found == ["checkpoint-4", "checkpoint-6"], found
    assert get_last_checkpoint("runs/hf").endswith("checkpoint-6")
    trainer.args.max_steps = 8
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 8
"""
LIGHT = ("profiler", "safetensors", "tensorboard", "keep best")
"""In a fork that has imported torch already; the others import all after the overlay is there."""
Trial = Callable[..., list[str]]


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


@pytest.fixture
def user(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    (folder / "runs").mkdir(parents=True)
    for name in ("notes.txt", "best.pt", "image.png", "w.safetensors"):
        (folder / name).write_text("mine")
    (folder / "log.db").touch()
    return folder


@pytest.fixture
def trial(tmp_path: Path, user: Path) -> Trial:
    def run(
        script: str, number: int = 0, prepared: int | None = None, light: bool = False
    ) -> list[str]:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(script))
        orders = wire.TrialOrders(
            scratch=str(tmp_path / f"scratch{number}"),
            prepared=None if prepared is None else str(tmp_path / f"scratch{prepared}/prepared"),
            protect=str(user),
        )
        listed = tmp_path / f"redirected{number}"
        argv = [str(DRIVER), json.dumps(dataclasses.asdict(orders)), str(path)]
        variables = {"PYTHONPATH": str(SOURCE), "REDIRECTED": str(listed)}
        if light:
            done: Any = forked.with_variables(argv, user, tmp_path, variables)
        else:
            done = subprocess.run(
                [sys.executable, *argv],
                cwd=user,
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
            )
        assert done.returncode == 0, done.stdout + done.stderr
        return listed.read_text().splitlines()

    return run


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_program_sees_what_it_wrote_and_the_user_files_stay(
    library: str, user: Path, trial: Trial
) -> None:
    if library.startswith("torch by"):
        import torch

        torch.save({"epoch": -1}, user / "model.pt")
    before = contents(user)
    redirected = trial(LIBRARIES[library], light=library in LIGHT)
    after = contents(user)
    if library.startswith("devices"):
        assert sorted(set(after) - set(before)) == ["cache", "cache/kernel"]
        assert redirected == []
    else:
        assert after == before
        assert redirected and len(redirected) == len(set(redirected))
        assert all(path.startswith(str(user)) for path in redirected)


def test_checkpoints_of_a_framework_are_written_found_and_resumed_from(
    user: Path, trial: Trial
) -> None:
    before = contents(user)
    redirected = trial(TRANSFORMERS, light=True)
    assert contents(user) == before
    assert any("checkpoint" in path for path in redirected)


DATA_SET = """
    import os
    from pathlib import Path
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torch.utils.tensorboard import SummaryWriter
    from flatout_agent import overlay

    class Folder(Dataset):
        def __init__(self, root):
            self.files = sorted(e.path for c in os.scandir(root) for e in os.scandir(c.path))
        def __len__(self):
            return len(self.files)
        def __getitem__(self, index):
            return float(Image.open(self.files[index]).getpixel((0, 0)))

    if not os.path.exists("data"):
        Path("made").write_text("")
        for label in "ab":
            os.makedirs(f"data.part/{label}")
            for number in range(3):
                Image.new("L", (2, 2), number + 1).save(f"data.part/{label}/{number}.png")
        os.rename("data.part", "data")
    os.makedirs("output")
    open("output/arguments.json", "x").write("{}")
    writer = SummaryWriter("output/events")
    loader = DataLoader(Folder("data"), 2, num_workers=2)
    got = [x for batch in loader for x in batch.tolist()]
    assert got == [1.0, 2.0, 3.0] * 2, got
    overlay.mark_first_step()
    Path("output/model").write_text("weights")
    writer.close()
"""


def test_a_data_set_made_on_first_use_is_made_once(
    user: Path, trial: Trial, tmp_path: Path
) -> None:
    before = contents(user)
    first = {Path(path).name for path in trial(DATA_SET, 0, light=True)}
    prepared = contents(tmp_path / "scratch0" / "prepared")
    second = {Path(path).name for path in trial(DATA_SET, 1, prepared=0, light=True)}
    assert "made" in first and "0.png" in first
    assert "made" not in second and "0.png" not in second
    assert "arguments.json" in second  # outputs of the baseline are not seen
    assert contents(tmp_path / "scratch0" / "prepared") == prepared
    assert contents(user) == before


MAKE_ONCE = """
import os
if not os.path.exists("data.txt"):
    open("data.txt", "w").write("made")
assert open("data.txt").read() == "made"
"""


def test_a_given_data_set_is_copied_before_it_is_changed(user: Path, trial: Trial) -> None:
    assert len(trial(MAKE_ONCE, 0)) == 1
    assert trial(MAKE_ONCE + 'open("data.txt", "a").write(" more")', 1, prepared=0)
    assert trial(MAKE_ONCE + 'os.remove("data.txt"); os.mkdir("data.txt")', 2, prepared=0) == []
    assert trial(MAKE_ONCE, 3, prepared=0) == []
    assert not (user / "data.txt").exists()
