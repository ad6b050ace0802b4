import dataclasses
import pathlib
import tempfile

import torch
import torch.nn.functional as F
import yaml
from torch import nn


@dataclasses.dataclass
class Config:
    width: int = 448
    out: int = 128
    batch: int = 192
    steps: int = 140
    temperature: float = 0.2
    noise: float = 0.4
    lr: float = 0.03


@dataclasses.dataclass
class RunState:
    config: dict
    step: int = 0
    loss: float = 0.0
    recent: list = dataclasses.field(default_factory=list)
    layers: dict = dataclasses.field(default_factory=dict)

    def note(self, step, loss, model):
        self.step, self.loss = step, loss
        self.recent = (self.recent + [round(loss, 5)])[-40:]
        for name, p in model.named_parameters():
            self.layers[name] = {
                "shape": list(p.shape),
                "norm": round(p.norm().item(), 5),
                "head": [round(v, 4) for v in p.detach().flatten()[:16].tolist()],
                "grad": round(p.grad.norm().item(), 5),
            }

    def store(self, path):
        path.write_text(yaml.dump(dataclasses.asdict(self), sort_keys=True))


def make_model(c):
    return nn.Sequential(
        nn.Linear(256, c.width),
        nn.BatchNorm1d(c.width),
        nn.ReLU(),
        nn.Linear(c.width, c.width),
        nn.BatchNorm1d(c.width),
        nn.ReLU(),
        nn.Linear(c.width, c.out),
    )


def info_nce(a, b, temperature):
    a, b = F.normalize(a), F.normalize(b)
    logits = a @ b.T / temperature
    labels = torch.arange(len(a))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def main():
    torch.manual_seed(0)
    c = Config()
    folder = pathlib.Path(tempfile.mkdtemp())
    model = make_model(c)
    optimizer = torch.optim.SGD(model.parameters(), lr=c.lr, momentum=0.9)
    base = torch.randn(5000, 256)
    state = RunState(dataclasses.asdict(c))
    for step in range(c.steps):
        x = base[torch.randint(0, 5000, (c.batch,))]
        views = torch.cat([x + c.noise * torch.randn_like(x), x + c.noise * torch.randn_like(x)])
        a, b = model(views).chunk(2)
        loss = info_nce(a, b, c.temperature)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.note(step, loss.item(), model)
        state.store(folder / "state.yaml")
    print(yaml.dump({"step": state.step, "loss": state.loss}))


main()
