import argparse

import torch
from torch import nn, optim


def mlp(sizes, act):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def gaussians(n, modes=8):
    k = torch.randint(0, modes, (n,)).float() * 6.28318 / modes
    return torch.stack([2 * torch.cos(k), 2 * torch.sin(k)], 1) + 0.02 * torch.randn(n, 2)


def grad_norm(loss, net):
    grads = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    return torch.sqrt(sum(g.pow(2).sum() for g in grads))


def run(opt):
    torch.manual_seed(opt.seed)
    gen = mlp([opt.z, 384, 384, 384, 2], nn.ReLU)
    disc = mlp([2, 384, 384, 384, 1], nn.SiLU)
    og = optim.RMSprop(gen.parameters(), lr=opt.lr)
    od = optim.RMSprop(disc.parameters(), lr=opt.lr)
    norms = {"g": [], "d": []}
    for it in range(opt.iters):
        real = gaussians(opt.batch)
        with torch.no_grad():
            fake = gen(torch.randn(opt.batch, opt.z))
        d_loss = disc(fake).mean() - disc(real).mean() + 1e-3 * disc(real).pow(2).mean()
        norms["d"].append(grad_norm(d_loss, disc))
        od.zero_grad()
        d_loss.backward()
        od.step()
        for p in disc.parameters():
            p.data.clamp_(-0.1, 0.1)
        g_loss = -disc(gen(torch.randn(opt.batch, opt.z))).mean()
        norms["g"].append(grad_norm(g_loss, gen))
        og.zero_grad()
        g_loss.backward()
        og.step()
        if it % 20 == 0:
            print(
                f"it {it} d {d_loss.item():.4f} g {g_loss.item():.4f} |gd| {float(norms['d'][-1]):.3f}"
            )


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--z", type=int, default=16)
    p.add_argument("--batch", type=int, default=192)
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--iters", type=int, default=80)
    p.add_argument("--seed", type=int, default=3)
    run(p.parse_args())
