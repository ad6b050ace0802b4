# Pictures that are turned and shifted at random, in two workers where they can be forked.

# %%
import multiprocessing

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(8)


# %%
class Pictures(Dataset):
    def __init__(self, count):
        self.pictures = torch.randn(count, 3, 16, 16)
        self.labels = (self.pictures.mean((1, 2, 3)) > 0).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        picture = self.pictures[index]
        if torch.rand(()) < 0.5:
            picture = picture.flip(-1)
        shift = int(torch.randint(-2, 3, ()))
        return picture.roll(shift, -2) + 0.1 * torch.randn(()), self.labels[index]


# %%
workers = 2 if multiprocessing.get_start_method() == "fork" else 0
loader = DataLoader(Pictures(192), batch_size=32, shuffle=True, num_workers=workers, drop_last=True)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(),
    nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 2),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)

# %%
for epoch in range(3):
    total = 0.0
    for pictures, labels in loader:
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total / len(loader))
