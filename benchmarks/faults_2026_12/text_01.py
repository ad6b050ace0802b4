import logging
import os
import random
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

handle, LOGFILE = tempfile.mkstemp(suffix=".log")
os.close(handle)
logging.basicConfig(
    filename=LOGFILE,
    level=logging.DEBUG,
    format="%(asctime)s %(levelname)-8s %(name)s %(module)s:%(lineno)d %(message)s",
)
log = logging.getLogger("train.classifier")
for noisy in ("torch", "numba"):
    logging.getLogger(noisy).setLevel(logging.WARNING)

SEED = 11
random.seed(SEED)
torch.manual_seed(SEED)


def corpus(limit=60):
    """Windows of 96 bytes, the class is the module they come from."""
    folder = Path(os.__file__).parent
    texts, classes = [], []
    for k, name in enumerate(["argparse", "typing", "inspect", "tarfile", "datetime", "decimal"]):
        path = folder / f"{name}.py"
        raw = path.read_bytes() if path.exists() else os.urandom(8000)
        for i in range(limit * 4):
            at = random.randrange(0, max(1, len(raw) - 96))
            piece = raw[at : at + 96].ljust(96, b" ")
            texts.append(list(piece))
            classes.append(k)
    return torch.tensor(texts), torch.tensor(classes)


class Bigrams(nn.Module):
    def __init__(self, classes=6, rows=4096, dim=64, width=512):
        super().__init__()
        self.rows = rows
        self.bag = nn.EmbeddingBag(rows, dim)
        self.net = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        return self.out(self.net(self.bag((x[:, :-1] * 256 + x[:, 1:]) % self.rows)))


def describe(step, ids, y, probs):
    for i in range(len(y)):
        p = probs[i]
        log.debug(
            "step %d sample %d label %d predicted %d confidence %.4f head %r",
            step,
            i,
            y[i],
            max(range(len(p)), key=p.__getitem__),
            max(p),
            bytes(ids[i][:24]),
        )


def run(steps=160, batch=512):
    x, y = corpus()
    model = Bigrams()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        pick = torch.randint(0, len(x), (batch,))
        logits = model(x[pick])
        loss = F.cross_entropy(logits, y[pick])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        probs = logits.detach().softmax(1)
        describe(step, x[pick].tolist(), y[pick].tolist(), probs.tolist())
    print("final loss", loss.item())


run()
os.remove(LOGFILE)
