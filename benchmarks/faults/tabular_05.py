import numpy as np
import pandas as pd
import torch
from torch import nn
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

frame = load_diabetes(as_frame=True).frame
rng = np.random.default_rng(0)
big = pd.concat([frame] * 30, ignore_index=True)
big += rng.normal(0, 0.01, big.shape)
for c in list(big.columns[:-1]):
    big[c + "_sq"] = big[c] ** 2
    big[c + "_abs"] = big[c].abs()
y = ((big.pop("target") - 150) / 77).to_numpy()
X = ((big - big.mean()) / big.std()).to_numpy()
Xtr, Xte, ytr, yte = train_test_split(X, y, test_size=0.1, random_state=0)
train_x, train_y = torch.from_numpy(Xtr), torch.from_numpy(ytr)
test_x, test_y = torch.from_numpy(Xte), torch.from_numpy(yte)

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(X.shape[1], 512),
    nn.SiLU(),
    nn.Linear(512, 512),
    nn.SiLU(),
    nn.Linear(512, 512),
    nn.SiLU(),
    nn.Linear(512, 1),
)
model.double()
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
for epoch in range(3):
    model.train()
    for b in torch.randperm(len(train_x)).split(400):
        loss = ((model(train_x[b]).squeeze(1) - train_y[b]) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        print(
            f"epoch {epoch} test mse {((model(test_x).squeeze(1) - test_y) ** 2).mean().item():.4f}"
        )
