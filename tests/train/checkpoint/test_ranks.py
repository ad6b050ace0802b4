"""Several ranks (gloo), forked from one program that imports torch once: this file."""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks"),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the ranks of each case told."""
    folder = tmp_path_factory.mktemp("ranks")
    import forked  # nothing of the tests is there where this file is the program

    done = forked.bare([__file__, str(folder)], folder, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "told.json").read_text())


def test_ranks_go_on_bit_for_bit_load_elsewhere_and_fail_together(told):
    # data parallel goes on bit for bit with random states and loader of each rank
    assert told["ddp again"] == told["ddp undisturbed"]
    first, second = told["ddp again"]
    assert first["weights"] == second["weights"]
    assert first["random"] != second["random"]
    # only the rank that writes copies what all share
    assert [rank["copied"] for rank in told["ddp stopped"]] == [4 + 3 * 4, 0]
    # data parallel loads in one process and back
    assert told["ddp alone"][0]["resumed"] == 4
    assert told["ddp alone"][0]["weights"] == told["ddp stopped"][0]["weights"]
    there = told["ddp alone 6"][0]["weights"]
    assert there != told["ddp alone"][0]["weights"]
    assert [rank["weights"] for rank in told["alone ddp"]] == [there] * 2
    # fsdp goes on bit for bit
    assert told["fsdp again"] == told["fsdp undisturbed"]
    # fsdp loads in one process and back
    assert told["fsdp alone"][0]["resumed"] == 4
    for kind in ("weights", "optimizer"):
        assert told["fsdp alone"][0][kind] == told["fsdp stopped"][0][kind]
        assert told["alone fsdp"][1][kind] == told["alone fsdp"][0][kind]
        assert told["alone fsdp"][0][kind] == told["fsdp alone 6"][0][kind]
    # fsdp loads with another number of ranks
    for kind in ("weights", "optimizer"):
        assert told["fsdp 3"][2][kind] == told["fsdp stopped"][0][kind]
    # a signal to one rank saves on all at the same step
    assert [rank["code"] for rank in told["signal"]] == [143, 143]
    assert told["signal saved"] == [max(rank["steps"] for rank in told["signal"])]
    # what fails on one rank fails on all
    own, other = told["refused"]
    assert "odd['rule'] is a" in own["error"]
    assert other["error"].startswith("rank 0: odd['rule']")
    assert not told["refused left"]
    own, other = told["misfit"]
    assert "rank 1:" in own["error"]
    assert "does not fit" in other["error"]
    # ranks that go on after a failed save save the same step
    assert [rank["failed_at"] for rank in told["caught"]] == [[4], [4]]
    assert told["caught saved"] == {"step-00000006": [6, 6], "step-00000008": [8, 8]}


def main(folder):
    import hashlib

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    from flatout_train.checkpoint import files
    from flatout_train.checkpoint.checkpoint import Checkpoint
    from flatout_train.errors import CheckpointError
    from flatout_train.loader.loader import loader

    folder = Path(folder)

    def whole(value):
        return value.full_tensor() if hasattr(value, "full_tensor") else value

    def digest(values):
        digest = hashlib.sha256()
        for value in values:
            digest.update(whole(value.detach()).contiguous().numpy().tobytes())
        return digest.hexdigest()

    def make(kind, rank):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.3), nn.Linear(7, 3))
        torch.manual_seed(rank)
        if kind == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        if kind == "fsdp":
            for part in (model[0], model[2], model):
                fully_shard(part)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return model, optimizer

    def train(kind, name, every, upto, rank):
        model, optimizer = make(kind, rank)
        data = torch.arange(200.0).reshape(40, 5).sin()
        batches = loader(data, 3, shuffle=True, device="cpu")
        tracked = {"model": model, "optimizer": optimizer, "loader": batches}
        checkpoint = Checkpoint(folder / name, every=every, **tracked)
        resumed = checkpoint.resume()
        while checkpoint.steps < upto:
            for batch in batches:
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                checkpoint.after_step()
                if checkpoint.steps == upto:
                    break
        checkpoint.close()
        states = optimizer.state_dict()["state"]
        copied = sum(tensor.is_floating_point() for tensor in checkpoint._copies._new)
        return {
            "resumed": resumed if upto == 4 else None,
            "copied": copied if upto == 4 else None,
            "weights": digest(model.parameters()),
            "optimizer": digest(
                states[n][part] for n in states for part in ("step", "exp_avg", "exp_avg_sq")
            ),
            "random": torch.rand(3).tolist(),
        }

    def signalled(rank):
        model, optimizer = make("ddp", rank)
        checkpoint = Checkpoint(folder / "signal", every=None, model=model, optimizer=optimizer)
        while True:
            model(torch.ones(2, 5)).sum().backward()
            optimizer.step()
            checkpoint.after_step()
            (folder / f"signal.{rank}").write_text(f"{checkpoint.steps} {os.getpid()}")

    def refused(rank):
        class Odd:
            state_dict = staticmethod(lambda: {"rule": len if rank == 0 else 1})
            load_state_dict = print

        checkpoint = Checkpoint(folder / "refused", odd=Odd())
        try:
            checkpoint.save()
            checkpoint.wait()
        except CheckpointError as error:
            return {"error": str(error)}

    def misfit(rank):
        class Picky:
            state_dict = staticmethod(dict)

            def load_state_dict(self, state):
                assert rank == 0

        model = make("plain", rank)[0]
        with Checkpoint(folder / "misfit", model=model, picky=Picky()) as checkpoint:
            checkpoint.save()
        with Checkpoint(folder / "misfit", model=model, picky=Picky()) as checkpoint:
            try:
                checkpoint.resume()
            except CheckpointError as error:
                return {"error": str(error)}

    def caught(rank):
        """The first save fails, and only rank 0 can know so one step before the next."""

        class Own:
            def state_dict(self):
                return {"steps": checkpoint.steps}

            load_state_dict = print

        def full(path, state):
            while not gate.exists():
                time.sleep(0.01)
            raise OSError(28, "No space left on device")

        gate, plain, failed_at = folder / "gate", files.write, []
        checkpoint = Checkpoint(folder / "caught", every=2, own=Own())
        files.write = full
        for step in range(1, 9):
            if step == 3 + rank:
                gate.touch() if rank else None
                checkpoint._background._thread.join()
                files.write = plain
            try:
                checkpoint.after_step()
            except CheckpointError:
                failed_at.append(step)
        checkpoint.close()
        return {"failed_at": failed_at}

    def start(world, body, *arguments):
        """Fork the ranks; their process numbers."""
        pids = []
        store = folder / f"store-{time.monotonic_ns()}"
        for rank in range(world):
            pids.append(os.fork())
            if pids[-1]:
                continue
            code = 1
            try:
                if body != alone:
                    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world)
                told = body(*arguments, rank)
                (folder / f"told.{rank}").write_text(json.dumps(told))
                if body != alone:
                    dist.barrier()
                code = 0
            except SystemExit as end:
                code = end.code
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        return pids

    def alone(*arguments):
        return train("plain", *arguments)

    def ranks(world, body, *arguments):
        codes = [
            os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            for pid in start(world, body, *arguments)
        ]
        assert codes == [0] * world, codes
        return [json.loads((folder / f"told.{rank}").read_text()) for rank in range(world)]

    def copy(name, target):
        subprocess.run(["cp", "-r", folder / name, folder / target], check=True)

    train("plain", "warm-up", None, 1, 0)
    told = {}
    for kind in ("ddp", "fsdp"):
        told[f"{kind} undisturbed"] = ranks(2, train, kind, f"{kind}-1", None, 9)
        told[f"{kind} stopped"] = ranks(2, train, kind, kind, 4, 4)
        copy(kind, f"{kind}-one")
        copy(kind, f"{kind}-3")
        told[f"{kind} again"] = ranks(2, train, kind, kind, 4, 9)
        told[f"{kind} alone"] = ranks(1, alone, f"{kind}-one", 4, 4)
        told[f"{kind} alone 6"] = ranks(1, alone, f"{kind}-one", 6, 6)
        told[f"alone {kind}"] = ranks(2, train, kind, f"{kind}-one", None, 6)
    told["fsdp 3"] = ranks(3, train, "fsdp", "fsdp-3", None, 4)
    told["refused"] = ranks(2, refused)
    told["refused left"] = (folder / "refused").exists()
    told["misfit"] = ranks(2, misfit)
    told["caught"] = ranks(2, caught)
    told["caught saved"] = {
        path.name: [torch.load(file)["steps"] for file in sorted(path.glob("own*"))]
        for path in sorted((folder / "caught").iterdir())
    }
    pids = start(2, signalled)
    notes = [folder / f"signal.{rank}" for rank in range(2)]
    while not all(note.exists() for note in notes):
        time.sleep(0.05)
    time.sleep(1)
    os.kill(pids[1], signal.SIGTERM)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    steps = [1 + int(note.read_text().split()[0]) for note in notes]
    told["signal"] = [
        {"code": code, "steps": step} for code, step in zip(codes, steps, strict=True)
    ]
    told["signal saved"] = [int(name[5:]) for name in os.listdir(folder / "signal")]
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
