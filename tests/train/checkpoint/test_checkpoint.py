import errno
import os
import pathlib
import random
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import forked
from flatout_train.checkpoint import checkpoint as checkpoint_itself
from flatout_train.checkpoint import files as checkpoint_files
from flatout_train.checkpoint import writing as checkpoint_writing
from flatout_train.checkpoint.checkpoint import Checkpoint
from flatout_train.errors import CheckpointError, UsageError
from flatout_train.loader.loader import loader
from flatout_train.step.train_step import train_step


def make(width=8):
    torch.manual_seed(0)
    random.seed(0)
    model = nn.Sequential(
        nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100),
    }


def train(things, checkpoint, upto):
    while checkpoint.steps < upto:
        things["optimizer"].zero_grad()
        things["model"](torch.randn(8, 4) * random.random()).square().mean().backward()
        things["optimizer"].step()
        things["scheduler"].step()
        checkpoint.after_step()


def weights(things):
    return {key: value.clone() for key, value in things["model"].state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture
def undisturbed(tmp_path):
    things = make()
    with Checkpoint(tmp_path / "undisturbed", every=None, **things) as checkpoint:
        train(things, checkpoint, 20)
    return weights(things)


@pytest.mark.parametrize("stop", [7, 10, 19])
def test_resume_goes_on_bit_for_bit(tmp_path, undisturbed, stop):
    things = make()
    with Checkpoint(tmp_path / "run", every=5, **things) as checkpoint:
        assert checkpoint.resume() == 0
        train(things, checkpoint, stop)
    things = make()
    torch.rand(3)
    with Checkpoint(tmp_path / "run", every=5, **things) as checkpoint:
        assert checkpoint.resume() == checkpoint.steps == stop // 5 * 5
        train(things, checkpoint, 20)
    assert same(weights(things), undisturbed)
    assert sorted(os.listdir(tmp_path / "run")) == [f"step-{n:08d}" for n in (10, 15, 20)]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 9])
def test_train_step_and_loader_with_workers_go_on_bit_for_bit(tmp_path, stop):
    generator = torch.Generator().manual_seed(3)
    data = [(torch.randn(4, generator=generator), torch.tensor(n % 2)) for n in range(50)]

    def run(folder, upto):
        things = make()
        model = nn.Sequential(*things["model"][:3], nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        step = train_step(model, nn.CrossEntropyLoss(), optimizer, compile=False, ema=0.9)
        batches = loader(data, 8, shuffle=True, device="cpu", workers=1)
        with Checkpoint(folder, every=3, step=step, loader=batches) as checkpoint:
            done = checkpoint.resume()
            while checkpoint.steps < upto:
                for batch in batches:
                    step(batch)
                    checkpoint.after_step()
                    if checkpoint.steps == upto:
                        break
            step.close()
        return done, [value.clone() for value in (*model.parameters(), *step.ema.parameters())]

    run(tmp_path / "run", stop)
    done, resumed = run(tmp_path / "run", 16)
    _, truth = run(tmp_path / "undisturbed", 16)
    assert done == stop // 3 * 3
    assert all(map(torch.equal, resumed, truth))


def test_the_state_is_that_of_the_call_though_training_goes_on(tmp_path, monkeypatch):
    things, gate = make(), threading.Event()
    plain = checkpoint_writing.write

    def late(*arguments):
        gate.wait(120)
        return plain(*arguments)

    monkeypatch.setattr("flatout_train.checkpoint.checkpoint.write", late)
    checkpoint = Checkpoint(tmp_path, every=5, **things)
    train(things, checkpoint, 5)
    then = weights(things)
    train(things, checkpoint, 8)
    gate.set()
    checkpoint.close()
    things = make()
    with Checkpoint(tmp_path, **things) as checkpoint:
        assert checkpoint.resume() == 5
    assert same(weights(things), then)


def test_by_time_and_by_hand(tmp_path, monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(checkpoint_itself, "time", SimpleNamespace(monotonic=lambda: now_s))
    things = make()
    with Checkpoint(tmp_path / "time", every="10m", **things) as checkpoint:
        train(things, checkpoint, 1)
        now_s = 601.0
        train(things, checkpoint, 2)
        checkpoint.wait()
        assert os.listdir(tmp_path / "time") == ["step-00000002"]
    things = make()
    with Checkpoint(tmp_path / "hand", every=None, **things) as checkpoint:
        train(things, checkpoint, 4)
        assert not (tmp_path / "hand").exists()
        checkpoint.save()
        checkpoint.wait()
        assert os.listdir(tmp_path / "hand") == ["step-00000004"]


def test_a_folder_of_another_training_is_not_mixed_up(tmp_path):
    things = make()
    with Checkpoint(tmp_path, every=5, **things) as checkpoint:
        train(things, checkpoint, 5)
    with (
        Checkpoint(tmp_path, every=5, **things) as checkpoint,
        pytest.raises(CheckpointError, match=r"up to 5 steps: call resume\(\)"),
    ):
        checkpoint.after_step()


def test_a_folder_whose_checkpoint_does_not_fit_is_not_mixed_up(tmp_path):
    with Checkpoint(tmp_path, model=nn.Linear(1, 1)) as checkpoint:
        checkpoint.save()
    with Checkpoint(tmp_path, model=nn.Linear(2, 2)) as checkpoint:
        with pytest.raises(
            CheckpointError, match=r"(?s)model in .*-00000000 does not fit .*weight"
        ):
            checkpoint.resume()
        with pytest.raises(CheckpointError, match="holds checkpoints of up to 0 steps"):
            checkpoint.save()
    assert os.listdir(tmp_path) == ["step-00000000"]


def test_a_broken_newest_one_is_passed_over_and_its_step_comes_again(tmp_path):
    things = make()
    with Checkpoint(tmp_path, every=5, keep=2, **things) as checkpoint:
        train(things, checkpoint, 10)
    os.truncate(tmp_path / "step-00000010" / "optimizer.pt", 99)
    things = make()
    with (
        Checkpoint(tmp_path, every=5, keep=2, **things) as checkpoint,
        pytest.warns(UserWarning, match=r"step-00000010 is broken .* optimizer\.pt cannot be read"),
    ):
        assert checkpoint.resume() == 5
        train(things, checkpoint, 10)
    assert sorted(os.listdir(tmp_path)) == ["step-00000005", "step-00000010-2"]


def test_what_cannot_be_stored_is_refused_when_it_is_saved(tmp_path):
    class Odd:
        state_dict = staticmethod(lambda: {"rule": len})
        load_state_dict = print

    with (
        Checkpoint(tmp_path, odd=Odd()) as checkpoint,
        pytest.raises(CheckpointError, match=r"odd\['rule'\] is a builtins"),
    ):
        checkpoint.save()
    assert os.listdir(tmp_path) == []


def test_files_are_read_with_weights_only(tmp_path):
    with Checkpoint(tmp_path, model=nn.Linear(1, 1)) as checkpoint:
        checkpoint.save()
    path = tmp_path / "step-00000000" / "model.pt"
    torch.save({"weight": pathlib.PurePosixPath("x")}, path)
    with (
        Checkpoint(tmp_path, model=nn.Linear(1, 1)) as checkpoint,
        pytest.raises(CheckpointError, match=r"model\.pt cannot be loaded"),
    ):
        checkpoint.resume()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO])
def test_an_error_in_the_background_is_raised_at_the_next_step(tmp_path, monkeypatch, number):
    def fail(path, state):
        raise OSError(number, os.strerror(number))

    things = make()
    checkpoint = Checkpoint(tmp_path, every=2, **things)
    train(things, checkpoint, 2)
    checkpoint.wait()
    monkeypatch.setattr(checkpoint_files, "write", fail)
    train(things, checkpoint, 4)
    checkpoint._background._thread.join()
    then = weights(things)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.after_step()
    assert str(tmp_path) in str(caught.value)
    assert os.strerror(number) in str(caught.value)
    assert same(weights(things), then)
    assert os.listdir(tmp_path) == ["step-00000002"]
    monkeypatch.undo()
    train(things, checkpoint, 6)
    checkpoint.close()
    assert sorted(os.listdir(tmp_path)) == ["step-00000002", "step-00000006"]


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting needs root")
def test_a_really_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]).returncode:
        pytest.skip("cannot mount here")
    try:
        model = nn.Linear(300, 300)
        with Checkpoint(disk / "run", every=1, model=model) as checkpoint:
            checkpoint.after_step()
            checkpoint.wait()
            checkpoint.after_step()
            checkpoint.wait()
            checkpoint.after_step()
            with pytest.raises(CheckpointError, match=r"No space left .*make room"):
                checkpoint.wait()
            assert sorted(os.listdir(disk / "run")) == ["step-00000001", "step-00000002"]
        with Checkpoint(disk / "run", model=model) as checkpoint:
            assert checkpoint.resume() == 2
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "run").write_text("mine")
    checkpoint = Checkpoint(tmp_path / "run", model=nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match="Not a directory"):
        checkpoint.resume()
    checkpoint.close()


def test_the_error_under_way_is_the_one_that_comes_out(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "write", lambda *_: 1 / 0)
    checkpoint = Checkpoint(tmp_path, model=nn.Linear(1, 1))
    checkpoint.save()
    with pytest.warns(UserWarning, match="division"), pytest.raises(KeyError), checkpoint:
        raise KeyError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "nothing is tracked"),
        ({"every": 0, "m": nn.Linear(1, 1)}, "every=0"),
        ({"every": "often", "m": nn.Linear(1, 1)}, "10m"),
        ({"every": "0s", "m": nn.Linear(1, 1)}, "0s"),
        ({"every": True, "m": nn.Linear(1, 1)}, "every=True"),
        ({"keep": 0, "m": nn.Linear(1, 1)}, "keep=0"),
        ({"grace": -1, "m": nn.Linear(1, 1)}, "grace=-1"),
        ({"data": torch.utils.data.DataLoader([1])}, "data=DataLoader has no state_dict"),
        ({"m": nn.Linear, "n": 1}, "n=int has no"),
        ({"a b": nn.Linear(1, 1)}, "'a b'"),
        ({"m": nn.Linear(1, 1), "M": nn.Linear(1, 1)}, "upper and lower"),
    ],
)
def test_wrong_usage(tmp_path, arguments, message):
    with pytest.raises(UsageError, match=message):
        Checkpoint(tmp_path, **arguments)


def test_a_closed_one_saves_no_more(tmp_path):
    with Checkpoint(tmp_path, model=nn.Linear(1, 1)) as checkpoint:
        pass
    for call in (checkpoint.save, checkpoint.resume, checkpoint.after_step):
        with pytest.raises(UsageError, match="closed"):
            call()
    checkpoint.close()


def test_a_generator_can_be_tracked(tmp_path):
    generator = torch.Generator().manual_seed(5)
    with Checkpoint(tmp_path, generator=generator) as checkpoint:
        checkpoint.save()
    drawn = torch.rand(3, generator=generator)
    with Checkpoint(tmp_path, generator=generator) as checkpoint:
        checkpoint.resume()
    assert torch.equal(torch.rand(3, generator=generator), drawn)


@pytest.mark.slow
def test_a_program_that_ends_without_close_still_has_its_last_checkpoint(tmp_path):
    (tmp_path / "program.py").write_text(
        "import sys, time, torch; from flatout_train.checkpoint import files\n"
        "from flatout_train.checkpoint.checkpoint import Checkpoint\n"
        "plain = files.write\n"
        "files.write = lambda *a: (time.sleep(0.3), plain(*a))[1]\n"
        "Checkpoint('run', model=torch.nn.Linear(1, 1)).save()\n"
    )
    done = forked.bare([str(tmp_path / "program.py")], tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path / "run") == ["step-00000000"]


@pytest.mark.gpu
def test_on_cuda_resume_goes_on_bit_for_bit(tmp_path):
    def run(folder, upto):
        things = make(256)
        model = things["model"].cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        with Checkpoint(folder, every=3, model=model, optimizer=optimizer) as checkpoint:
            checkpoint.resume()
            while checkpoint.steps < upto:
                optimizer.zero_grad()
                model(torch.randn(64, 4, device="cuda")).square().mean().backward()
                optimizer.step()
                checkpoint.after_step()
        return [value.cpu() for value in model.state_dict().values()]

    run(tmp_path / "run", 7)
    resumed, truth = run(tmp_path / "run", 20), run(tmp_path / "undisturbed", 20)
    assert all(map(torch.equal, resumed, truth))
