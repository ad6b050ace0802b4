import inspect
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Notes:
    """Knows by itself who is calling."""

    def __init__(self):
        self.rows = {}

    def note(self, **values):
        frame = inspect.stack()[1]
        where = f"{os.path.basename(frame.filename)}:{frame.lineno}:{frame.function}"
        self.rows.setdefault(where, []).append(values)


notes = Notes()


def convnet(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * 64, 10),
    )


class Distiller:
    def __init__(self, teacher, student, temperature=3.0, alpha=0.7):
        self.teacher = teacher.eval().requires_grad_(False)
        self.student = student
        self.t = temperature
        self.alpha = alpha
        self.optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)

    def losses(self, x, y):
        with torch.no_grad():
            soft = self.teacher(x)
        out = self.student(x)
        hard = F.cross_entropy(out, y)
        kl = F.kl_div(
            F.log_softmax(out / self.t, 1), F.softmax(soft / self.t, 1), reduction="batchmean"
        ) * (self.t**2)
        return hard, kl

    def step(self, x, y):
        hard, kl = self.losses(x, y)
        loss = self.alpha * kl + (1 - self.alpha) * hard
        self.optimizer.zero_grad()
        loss.backward()
        notes.note(hard=hard.item(), kl=kl.item(), loss=loss.item())
        self.optimizer.step()
        return loss


def main():
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    distiller = Distiller(convnet(64), convnet(32))
    for epoch in range(8):
        for part in torch.randperm(len(x)).split(160):
            loss = distiller.step(x[part], y[part])
        print("epoch", epoch, "loss", loss.item(), "places", len(notes.rows))


if __name__ == "__main__":
    main()
