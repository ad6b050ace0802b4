# %% Insurance claim frequency: residual MLP with Poisson loss
import tempfile

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(4)
rng = np.random.default_rng(4)

# %% data
n = 60_000
policies = pd.DataFrame({
    "age": rng.integers(18, 90, n),
    "power": rng.gamma(5, 20, n),
    "vehicle_age": rng.integers(0, 25, n),
    "density": rng.lognormal(5, 1.4, n),
    "bonus": rng.integers(50, 150, n),
    "exposure": rng.uniform(0.1, 1.0, n),
    "brand": rng.choice(list("ABCDEFGHIJ"), n),
    "region": rng.choice([f"R{i:02d}" for i in range(22)], n),
    "fuel": rng.choice(["diesel", "petrol", "hybrid"], n),
})
rate = np.exp(-2 + 0.01 * (policies["bonus"] - 100) + 0.6 * (policies["age"] < 25) + 0.1 * np.log(policies["density"]))
policies["claims"] = rng.poisson(rate * policies["exposure"])

# %% features
num_cols = ["age", "power", "vehicle_age", "density", "bonus"]
num = policies[num_cols].assign(density=np.log(policies["density"]))
num = ((num - num.mean()) / num.std()).to_numpy(np.float32)
cat_cols = ["brand", "region", "fuel"]
cat = np.stack([policies[c].astype("category").cat.codes for c in cat_cols], axis=1).astype(np.int64)
cards = [policies[c].nunique() for c in cat_cols]
num, cat = torch.from_numpy(num), torch.from_numpy(cat)
log_exposure = torch.from_numpy(np.log(policies["exposure"]).to_numpy(np.float32))
claims = torch.from_numpy(policies["claims"].to_numpy(np.float32))
is_train = torch.rand(n) < 0.9
train_rows, valid_rows = is_train.nonzero().squeeze(1), (~is_train).nonzero().squeeze(1)


# %% model
class ResBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.a, self.b = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.b(F.relu(self.a(self.norm(x))))


class FrequencyNet(nn.Module):
    def __init__(self, d=160, blocks=2):
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(c, 8) for c in cards)
        self.inp = nn.Linear(len(num_cols) + 8 * len(cards), d)
        self.blocks = nn.Sequential(*[ResBlock(d) for _ in range(blocks)])
        self.out = nn.Linear(d, 1)

    def forward(self, x, c):
        e = [m(c[:, k]) for k, m in enumerate(self.emb)]
        return self.out(self.blocks(self.inp(torch.cat([x, *e], dim=1)))).squeeze(1)


model = FrequencyNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
EPOCHS, BATCH = 14, 1024
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
writer = SummaryWriter(tempfile.mkdtemp(prefix="freq_"))

# %% training
step = 0
for epoch in range(EPOCHS):
    for rows in train_rows[torch.randperm(len(train_rows))].split(BATCH):
        pred = model(num[rows], cat[rows]) + log_exposure[rows]
        loss = F.poisson_nll_loss(pred, claims[rows], log_input=True)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 20 == 0:
            writer.add_scalar("train/loss", loss.item(), step)
            writer.add_scalar("train/grad_norm", norm.item(), step)
    scheduler.step()
    model.eval()
    with torch.no_grad():
        p = model(num[valid_rows], cat[valid_rows]) + log_exposure[valid_rows]
        v = F.poisson_nll_loss(p, claims[valid_rows], log_input=True).item()
    model.train()
    writer.add_scalar("valid/loss", v, step)
    print(f"epoch {epoch} step {step} loss {loss.item():.4f} valid {v:.4f}")
    for name, p in model.named_parameters():
        writer.add_histogram(name, p.detach(), epoch)
writer.close()
