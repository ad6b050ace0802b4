# A classifier on made-up points, and a loop that prints its loss.

# %%
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
points = torch.randn(512, 16)
labels = (points[:, 0] * points[:, 1] > 0).long()
loader = DataLoader(TensorDataset(points, labels), batch_size=64, shuffle=True)

# %%
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

# %%
for epoch in range(4):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())

# %%
with torch.no_grad():
    print((model.eval()(points).argmax(1) == labels).float().mean().item())
