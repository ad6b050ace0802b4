# Functions of one cell are called in another; mixed precision, accumulation and a schedule.

# %%
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)


def train_one_epoch(model, loader, optimizer, scheduler, accumulate=2):
    model.train()
    total = 0.0
    for number, (inputs, targets) in enumerate(loader, 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), targets) / accumulate
        loss.backward()
        total += loss.item()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return total


# %%
@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    losses = [nn.functional.cross_entropy(model(x), y, reduction="sum").item() for x, y in loader]
    return sum(losses) / len(loader.dataset)


# %%
inputs = torch.randn(320, 28)
data = TensorDataset(inputs, inputs[:, ::7].argmax(1))
train, valid = torch.utils.data.random_split(data, [256, 64])
train_loader, valid_loader = DataLoader(train, 32, shuffle=True), DataLoader(valid, 64)
model = nn.Sequential(nn.Linear(28, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)

# %%
for epoch in range(4):
    loss = train_one_epoch(model, train_loader, optimizer, scheduler)
    print(epoch, loss, evaluate(model, valid_loader), scheduler.get_last_lr())
