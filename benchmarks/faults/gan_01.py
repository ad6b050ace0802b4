import torch
import torch.nn as nn

torch.autograd.set_detect_anomaly(True)
torch.manual_seed(0)
Z, D, H = 16, 64, 192


def ring(n):
    a = torch.rand(n) * 6.2831
    p = torch.stack([a.cos(), a.sin()], 1) + 0.05 * torch.randn(n, 2)
    w = torch.linspace(0, 3, D // 2)
    return torch.cat([torch.sin(p[:, :1] * w), torch.cos(p[:, 1:] * w)], 1)


class G(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(Z, H)
        self.mid = nn.ModuleList([nn.Linear(H, H) for _ in range(16)])
        self.nrm = nn.ModuleList([nn.LayerNorm(H) for _ in range(16)])
        self.out = nn.Linear(H, D)

    def forward(self, z):
        h = self.inp(z)
        for m, n in zip(self.mid, self.nrm):
            h = h + torch.tanh(m(n(h)))
        return self.out(h)


class D_(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(D, H)
        self.mid = nn.ModuleList([nn.Linear(H, H) for _ in range(16)])
        self.out = nn.Linear(H, 1)

    def forward(self, x):
        h = self.inp(x)
        for m in self.mid:
            h = h + nn.functional.leaky_relu(m(h), 0.2)
        return self.out(h)


g, d = G(), D_()
og = torch.optim.Adam(g.parameters(), lr=1e-4, betas=(0.5, 0.9))
od = torch.optim.Adam(d.parameters(), lr=1e-4, betas=(0.5, 0.9))
bce = nn.functional.binary_cross_entropy_with_logits
for it in range(80):
    real = ring(128)
    fake = g(torch.randn(128, Z))
    pr, pf = d(real), d(fake.detach())
    ld = bce(pr, torch.ones_like(pr)) + bce(pf, torch.zeros_like(pf))
    od.zero_grad()
    ld.backward()
    od.step()
    pf = d(fake)
    lg = bce(pf, torch.ones_like(pf))
    og.zero_grad()
    lg.backward()
    og.step()
    if it % 20 == 0:
        print(f"{it} d {ld.item():.3f} g {lg.item():.3f}")
