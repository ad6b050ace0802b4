import torch
import torch.nn as nn


def tidy(x):
    x = x.permute(0, 2, 3, 1).contiguous().clone()
    x = x.reshape(-1, x.shape[-1]).clone().view(x.shape)
    return x.permute(0, 3, 1, 2).contiguous().clone()


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Conv2d(3, c, 3, 2, 1)
        self.b = nn.Conv2d(c, 2 * c, 3, 2, 1)
        self.c = nn.Conv2d(2 * c, 2 * c, 3, 1, 1)

    def forward(self, x):
        x = tidy(torch.relu(self.a(tidy(x))))
        x = tidy(torch.relu(self.b(x)))
        return tidy(torch.relu(self.c(x)))


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.ConvTranspose2d(2 * c, c, 4, 2, 1)
        self.b = nn.ConvTranspose2d(c, c, 4, 2, 1)
        self.c = nn.Conv2d(c, 3, 3, 1, 1)

    def forward(self, x):
        x = tidy(torch.relu(self.a(tidy(x))))
        x = tidy(torch.relu(self.b(x)))
        return torch.sigmoid(self.c(x))


class AE(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.enc, self.dec = Encoder(c), Decoder(c)

    def forward(self, x):
        return self.dec(self.enc(x))


def waves(n, s=64):
    f = torch.rand(n, 3, 1, 1) * 10
    g = torch.linspace(0, 1, s)
    return 0.5 + 0.5 * torch.sin(f * g[None, None, :, None] * 3 + f * g[None, None, None, :] * 5)


def main():
    torch.manual_seed(0)
    images = waves(512)
    net = AE()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for i in range(50):
        x = images[torch.randint(0, len(images), (32,))]
        loss = nn.functional.l1_loss(net(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 10 == 0:
            print(i, loss.item())


main()
