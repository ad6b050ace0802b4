"""WGAN-GP on sklearn digits."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

SEED, Z, BATCH, CRITIC_STEPS, ITERS, LAMBDA = 9, 32, 64, 3, 220, 10.0


def load():
    x = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 8 - 1
    return F.interpolate(x, size=(16, 16), mode="bilinear", align_corners=False)


def generator(w=24):
    return nn.Sequential(
        nn.Linear(Z, 4 * w * 16), nn.Unflatten(1, (4 * w, 4, 4)), nn.BatchNorm2d(4 * w), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(4 * w, 2 * w, 3, padding=1), nn.BatchNorm2d(2 * w), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(2 * w, w, 3, padding=1), nn.BatchNorm2d(w), nn.ReLU(),
        nn.Conv2d(w, 1, 3, padding=1), nn.Tanh(),
    )


def critic(w=24):
    return nn.Sequential(
        nn.Conv2d(1, w, 3, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(w, 2 * w, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * w, 4 * w, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(4 * w * 16, 1),
    )


def penalty(net, real, fake):
    a = torch.rand(len(real), 1, 1, 1)
    mixed = torch.lerp(real, fake, a).requires_grad_(True)
    grad, = torch.autograd.grad(net(mixed).sum(), mixed, create_graph=True)
    return ((grad.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


def endless(data):
    while True:
        order = torch.randperm(len(data))
        for i in range(0, len(order) - BATCH + 1, BATCH):
            yield data[order[i:i + BATCH]]


def make_critic_update(g, d, opt):
    def update(real):
        with torch.no_grad():
            fake = g(torch.randn(len(real), Z))
        gap = d(fake).mean() - d(real).mean()
        loss = gap + LAMBDA * penalty(d, real, fake)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        return -gap.detach()
    return update


def make_generator_update(g, d, opt, ema):
    def update():
        d.requires_grad_(False)
        loss = -d(g(torch.randn(BATCH, Z))).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        d.requires_grad_(True)
        ema.update_parameters(g)
        return loss.detach()
    return update


def main():
    torch.manual_seed(SEED)
    stream = endless(load())
    g, d = generator(), critic()
    ema = torch.optim.swa_utils.AveragedModel(g, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    opt_g = torch.optim.Adam(g.parameters(), 1e-4, betas=(0.0, 0.9))
    opt_d = torch.optim.Adam(d.parameters(), 2e-4, betas=(0.0, 0.9))
    train_d = make_critic_update(g, d, opt_d)
    train_g = make_generator_update(g, d, opt_g, ema)
    for it in range(ITERS):
        for _ in range(CRITIC_STEPS):
            w = train_d(next(stream))
        lg = train_g()
        if it % 20 == 0:
            print(f"{it:4d} wasserstein {w.item():.3f} g {lg.item():.3f}")
        if it % 110 == 109:
            torch.save({"g": g.state_dict(), "ema": ema.state_dict(), "d": d.state_dict()}, "/tmp/wgan.pt")
    with torch.no_grad():
        print("ema sample std", ema(torch.randn(64, Z)).std().item())


if __name__ == "__main__":
    main()
