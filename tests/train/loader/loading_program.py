"""A training process that is killed: writes each batch it was given, and its loader's state.

Arguments: folder, workers, seconds that a sample takes, batches after which it waits to be killed.
After each batch a line with its digest goes to `batches.txt`, then the state to `state.pt`. What is
there at the start is resumed.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

import flatout

EPOCHS = 2


class Augmented(Dataset):
    def __init__(self, cost: float) -> None:
        self.cost = cost
        self.own = np.random.default_rng(3)

    def __len__(self) -> int:
        return 90

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.cost)
        noise = random.random() + np.random.rand() + self.own.random()
        return torch.rand(3) + noise, index


def digest(batch: list[torch.Tensor]) -> str:
    data = b"".join(tensor.numpy().tobytes() for tensor in batch)
    return hashlib.sha256(data).hexdigest()[:16]


def main() -> None:
    folder, workers = Path(sys.argv[1]), sys.argv[2]
    cost, most = float(sys.argv[3]), int(sys.argv[4])
    count = workers if workers == "auto" else int(workers)
    loader = flatout.loader(Augmented(cost), 8, shuffle=True, workers=count, seed=7)
    state, batches = folder / "state.pt", folder / "batches.txt"
    if state.exists():
        saved = torch.load(state, weights_only=True)
        loader.load_state_dict(saved["loader"])
        with batches.open("r+") as file:
            file.truncate(saved["written"])
    for _ in range(loader.epoch, EPOCHS):
        for batch in loader:
            with batches.open("a") as file:
                file.write(digest(batch) + "\n")
                written = file.tell()
            torch.save({"loader": loader.state_dict(), "written": written}, folder / "new.pt")
            os.replace(folder / "new.pt", state)
            most -= 1
            while most == 0:
                time.sleep(600)


if __name__ == "__main__":
    main()
