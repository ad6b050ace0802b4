"""Credit default model: tabular transformer with Accelerate."""
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.metrics import roc_auc_score
from torch.utils.data import DataLoader, Dataset

N_FEATURES = 24


class LoanTable(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, N_FEATURES)).astype(np.float32)
        logit = x[:, 0] - 0.7 * x[:, 1] * x[:, 2] + 0.5 * np.sin(2 * x[:, 3]) - 1
        y = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.float32)
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row], self.y[row]

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        return self.x[rows], self.y[rows]


def as_is(batch):
    return batch


def loader_for(data, size, shuffle):
    return DataLoader(data, batch_size=size, shuffle=shuffle, drop_last=shuffle, collate_fn=as_is)


class FTTransformer(nn.Module):
    def __init__(self, d=48, heads=4, layers=2):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(N_FEATURES, d) * 0.1)
        self.bias = nn.Parameter(torch.zeros(N_FEATURES, d))
        self.cls = nn.Parameter(torch.randn(1, 1, d) * 0.1)
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 1))

    def forward(self, x):
        tokens = x.unsqueeze(-1) * self.weight + self.bias
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], dim=1)
        return self.head(self.enc(tokens)[:, 0]).squeeze(1)


def evaluate(accelerator, model, loader):
    model.eval()
    scores, labels = [], []
    with torch.inference_mode():
        for x, y in loader:
            s, t = accelerator.gather_for_metrics((model(x), y))
            scores.append(s)
            labels.append(t)
    model.train()
    return roc_auc_score(torch.cat(labels).numpy(), torch.cat(scores).numpy())


def main():
    set_seed(31)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    train = loader_for(LoanTable(32_000, 1), 128, shuffle=True)
    valid = loader_for(LoanTable(2_000, 2), 500, shuffle=False)
    model = FTTransformer()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=50)
    model, opt, train, valid, sched = accelerator.prepare(model, opt, train, valid, sched)
    loss_fn = nn.BCEWithLogitsLoss()
    out = tempfile.mkdtemp(prefix="loans_")

    step = 0
    for epoch in range(2):
        for x, y in train:
            with accelerator.accumulate(model):
                loss = loss_fn(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
            step += 1
            if step % 50 == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        auc = evaluate(accelerator, model, valid)
        accelerator.print(f"epoch {epoch} auc {auc:.4f}")
        accelerator.save_state(os.path.join(out, f"epoch_{epoch}"))


if __name__ == "__main__":
    main()
