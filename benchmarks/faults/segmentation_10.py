import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    """Images of squares and discs, drawn when the set is made."""

    def __init__(self, n, size=32):
        yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        self.mask = torch.zeros(n, size, size, dtype=torch.long)
        c = torch.randint(8, size - 8, (4, n, 1, 1))
        r = torch.randint(4, 8, (2, n, 1, 1))
        self.mask[((yy - c[0]).abs() < r[0]) & ((xx - c[1]).abs() < r[0])] = 1
        self.mask[(yy - c[2]) ** 2 + (xx - c[3]) ** 2 < r[1] ** 2] = 2
        self.image = self.mask[:, None].float() / 2 + 0.25 * torch.randn(n, 1, size, size)

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        return self.image[i], self.mask[i]


def double(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, c=12, classes=3):
        super().__init__()
        self.down1, self.down2, self.bottom = double(1, c), double(c, 2 * c), double(2 * c, 4 * c)
        self.up2, self.up1 = (
            nn.ConvTranspose2d(4 * c, 2 * c, 2, 2),
            nn.ConvTranspose2d(2 * c, c, 2, 2),
        )
        self.dec2, self.dec1 = double(4 * c, 2 * c), double(2 * c, c)
        self.head = nn.Conv2d(c, classes, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        x = self.bottom(F.max_pool2d(b, 2))
        x = self.dec2(torch.cat([self.up2(x), b], 1))
        x = self.dec1(torch.cat([self.up1(x), a], 1))
        return self.head(x)


class SegmentationTrainer:
    def __init__(self, epochs=4, batch=24):
        torch.manual_seed(0)
        self.epochs = epochs
        self.loader = DataLoader(Shapes(480), batch, shuffle=True, drop_last=True)
        self.net = UNet()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=2e-3)

    def step(self, image, mask):
        loss = F.cross_entropy(self.net(image), mask)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self):
        for epoch in range(self.epochs):
            mean = sum(self.step(i, m) for i, m in self.loader) / len(self.loader)
            print("epoch", epoch, "loss", round(mean.item(), 4))


if __name__ == "__main__":
    SegmentationTrainer().run()
