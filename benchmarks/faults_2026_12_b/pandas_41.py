# %% [markdown]
# Energy load forecasting from weather and calendar features

# %%
import os
import tempfile

import numpy as np
import pandas as pd
import torch
import torch.nn as nn

SEED = 11
rng = np.random.default_rng(SEED)
torch.manual_seed(SEED)

# %%
hours = pd.date_range("2021-01-01", periods=24 * 365 * 2, freq="h")
raw = pd.DataFrame({"ts": hours})
doy = raw["ts"].dt.dayofyear
raw["temp"] = 10 - 9 * np.cos(2 * np.pi * doy / 365) + rng.normal(0, 2.5, len(raw))
raw["wind"] = rng.gamma(2.0, 2.5, len(raw))
raw["cloud"] = rng.beta(2, 2, len(raw))
hour = raw["ts"].dt.hour
raw["load"] = (
    50 + 12 * np.sin(2 * np.pi * (hour - 7) / 24) + 0.6 * (raw["temp"] - 16).abs()
    - 6 * (raw["ts"].dt.dayofweek >= 5) + rng.normal(0, 1.5, len(raw)))

# %%
feat = raw.copy()
for lag in (1, 2, 3, 24, 25, 48, 168):
    feat[f"load_lag{lag}"] = feat["load"].shift(lag)
for w in (6, 24, 168):
    feat[f"load_mean{w}"] = feat["load"].shift(1).rolling(w).mean()
    feat[f"temp_mean{w}"] = feat["temp"].rolling(w).mean()
feat["hour_sin"] = np.sin(2 * np.pi * hour / 24)
feat["hour_cos"] = np.cos(2 * np.pi * hour / 24)
feat["weekend"] = (feat["ts"].dt.dayofweek >= 5).astype(float)
feat = feat.dropna().reset_index(drop=True)

cols = [c for c in feat.columns if c not in ("ts", "load")]
X = feat[cols].to_numpy(np.float32)
X = (X - X.mean(0)) / X.std(0)
y = feat["load"].to_numpy(np.float32)
y_mean, y_std = y.mean(), y.std()
y = (y - y_mean) / y_std
n_train = int(0.85 * len(X))
Xt, yt = torch.from_numpy(X[:n_train]), torch.from_numpy(y[:n_train])
Xv, yv = torch.from_numpy(X[n_train:]), torch.from_numpy(y[n_train:])
print("features", len(cols), "rows", len(X))

# %%
model = nn.Sequential(
    nn.Linear(len(cols), 384), nn.SiLU(),
    nn.Linear(384, 384), nn.SiLU(),
    nn.Linear(384, 384), nn.SiLU(),
    nn.Linear(384, 1),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=200, gamma=0.5)
loss_fn = nn.HuberLoss()

run_dir = tempfile.mkdtemp(prefix="load_")
history_path = os.path.join(run_dir, "history.csv")
history = pd.DataFrame(columns=["step", "epoch", "loss", "grad_norm", "lr", "target_mean"], dtype=float)

# %%
BATCH = 512
EPOCHS = 24
step = 0
for epoch in range(EPOCHS):
    order = torch.randperm(n_train)
    for start in range(0, n_train - BATCH + 1, BATCH):
        idx = order[start:start + BATCH]
        xb, yb = Xt[idx], yt[idx]
        pred = model(xb).squeeze(1)
        loss = loss_fn(pred, yb)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        step += 1
        row = {"step": step, "epoch": epoch, "loss": loss.item(), "grad_norm": norm.item(),
               "lr": scheduler.get_last_lr()[0], "target_mean": yb.mean().item()}
        history = pd.concat([history, pd.DataFrame([row])], ignore_index=True)
        history.to_csv(history_path, index=False)
    model.eval()
    with torch.no_grad():
        mae = (model(Xv).squeeze(1) - yv).abs().mean().item() * float(y_std)
    model.train()
    if epoch % 4 == 0 or epoch == EPOCHS - 1:
        print(f"epoch {epoch} loss {loss.item():.4f} valid MAE {mae:.3f} MW")

# %%
print(pd.read_csv(history_path).groupby("epoch")["loss"].mean().tail(3))
torch.save(model.state_dict(), os.path.join(run_dir, "model.pt"))
