"""`kill -9` at 40 random instants, in `make thorough` at 100.

Run as a program, this file trains, kills and resumes. It imports torch once and forks each
training, so that a life costs milliseconds, not seconds.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kills", "workers"),
    [(40, 0), (100, 0), (10, 1)],
)
def test_kill_9_at_random_instants_and_the_end_is_the_same_to_the_last_bit(
    tmp_path, kills, workers
):
    import forked  # nothing of the tests is there where this file is the program

    done = forked.bare([str(HERE), str(tmp_path), str(kills), str(workers)], tmp_path, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    print(told)
    assert told["kills"] == kills
    assert told["lives_that_resumed"] > kills // 2
    assert told["kills_in_a_write"] >= kills // 4
    assert told["newest"] > kills // 9
    assert told["resumed_otherwise"] == []
    assert told["weights"] == told["weights_undisturbed"]
    left = sorted(os.listdir(tmp_path / "run"))
    assert len(left) == 3
    assert all(name.startswith("step-") for name in left)


def main(folder, kills, workers):
    import torch

    from flatout_train.checkpoint import checkpoint
    from flatout_train.loader import loader as loading

    folder = Path(folder)
    chance = random.Random(0)

    def train(run, every, upto, log):
        torch.manual_seed(1)
        random.seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 300),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(300, 2),
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50)
        generator = torch.Generator().manual_seed(0)
        samples = torch.utils.data.TensorDataset(
            torch.randn(200, 20, generator=generator), torch.randint(2, (200,), generator=generator)
        )
        data = samples if workers == 0 else torch.utils.data.Subset(samples, range(200))
        loader = loading.loader(data, 16, shuffle=True, device="cpu", workers=workers)
        tracked = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
        kept = checkpoint.Checkpoint(run, every=every, keep=3, **tracked)
        done = kept.resume()
        log(done, digest(model))
        while done < upto:
            for inputs, targets in loader:
                noise = random.random() * torch.rand(1)
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(inputs + noise), targets)
                loss.backward()
                optimizer.step()
                scheduler.step()
                kept.after_step()
                done += 1
                if every is None:
                    log(done, digest(model))
                if done >= upto:
                    break
        kept.close()
        log(done, digest(model))

    def digest(model):
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()

    def life(*arguments):
        """A forked process that trains; it tells its steps and digests through a file."""
        path = folder / "log"
        path.write_text("")
        pid = os.fork()
        if pid:
            return pid, path
        code = 1
        try:
            with path.open("a", buffering=1) as file:
                train(*arguments, lambda *told: print(*told, file=file))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def read(path):
        lines = [line.split() for line in path.read_text().splitlines()]
        return {int(step): told for step, told in lines}

    def live(*arguments):
        pid, path = life(*arguments)
        assert os.waitpid(pid, 0)[1] == 0
        return read(path)

    def newest_of(run):
        names = os.listdir(run) if run.exists() else []
        return max((int(name[5:]) for name in names if name.startswith("step-")), default=0)

    def writes(run):
        return any(name.startswith(".") for name in os.listdir(run))

    def stop_in_a_write(pid, run):
        while True:
            wait_until(lambda: writes(run))
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
            if writes(run):
                return
            os.kill(pid, signal.SIGCONT)

    def wait_until(true):
        deadline = time.monotonic() + 120
        while not true() and time.monotonic() < deadline:
            time.sleep(0.0005)

    def wait_for_step(run, step):
        wait_until(lambda: newest_of(run) >= step)

    # What torch imports at the first step is imported once, before the forks; no thread is left.
    train(folder / "warm-up", 1, 2, lambda *told: None)
    run = folder / "run"
    resumed, in_a_write, step_s = [], 0, 0.01
    for number in range(kills):
        pid, path = life(run, chance.choice([1, 2]), 10**9)
        wait_until(path.read_text)
        begun, first = time.monotonic(), newest_of(run)
        wait_for_step(run, first + chance.randrange(12))
        if newest_of(run) > first:
            step_s = (time.monotonic() - begun) / (newest_of(run) - first)
        time.sleep(chance.random() * 3 * step_s)
        if number % 4 == 3:  # at the other instants it may write or not
            stop_in_a_write(pid, run)
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        resumed += read(path).items()
        in_a_write += writes(run)
    newest = newest_of(run)
    steps = newest + 9
    end = live(run, 2, steps)
    truth = live(folder / "undisturbed", None, steps)
    told = {
        "kills": kills,
        "kills_in_a_write": in_a_write,
        "lives_that_resumed": sum(step > 0 for step, _ in resumed),
        "newest": newest,
        "resumed_otherwise": [step for step, weights in resumed if truth[step] != weights],
        "weights": end[steps],
        "weights_undisturbed": truth[steps],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    warnings.simplefilter("error", UserWarning)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
