import tempfile
from pathlib import Path

import torch
import torch.nn as nn
from PIL import Image
from sklearn.datasets import load_digits


def sheet(samples, path, columns=8, scale=4):
    side = 8 * scale
    page = Image.new("L", (columns * side, (len(samples) // columns) * side))
    for i, s in enumerate(samples):
        array = (s.clamp(0, 1) * 255).to(torch.uint8).view(8, 8).numpy()
        tile = Image.fromarray(array).resize((side, side), Image.BICUBIC)
        page.paste(tile, ((i % columns) * side, (i // columns) * side))
    page.save(path)


def mlp(a, b, h=384):
    return nn.Sequential(
        nn.Linear(a, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, b)
    )


def real_batches(batch, steps):
    x = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    for _ in range(steps):
        yield x[torch.randint(0, len(x), (batch,))]


def main(out, steps=130, batch=192, latent=32):
    torch.manual_seed(9)
    generator, critic = mlp(latent, 64), mlp(64, 1)
    g_opt = torch.optim.SGD(generator.parameters(), lr=0.02)
    c_opt = torch.optim.SGD(critic.parameters(), lr=0.02)
    bce = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(batch, 1), torch.zeros(batch, 1)
    fixed = torch.randn(48, latent)
    for step, real in enumerate(real_batches(batch, steps)):
        fake = generator(torch.randn(batch, latent))
        c_loss = bce(critic(real), ones) + bce(critic(fake.detach()), zeros)
        c_opt.zero_grad()
        c_loss.backward()
        c_opt.step()
        g_loss = bce(critic(fake), ones)
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
        with torch.no_grad():
            sheet(generator(fixed), Path(out) / "samples.png")
        if step % 40 == 0:
            print(step, c_loss.item(), g_loss.item())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
