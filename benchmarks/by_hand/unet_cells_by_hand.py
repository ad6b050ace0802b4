"""U-Net for segmenting made-up 'cells' in noisy grey pictures -- tuned for a bf16-capable CPU."""
import argparse
import logging
import random
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, random_split


# ---------------------------------------------------------------- data
def draw_picture(size, rng):
    yy, xx = np.mgrid[:size, :size]
    img = rng.normal(0.3, 0.02) + 0.1 * np.sin(xx / rng.uniform(8, 30)) * np.cos(yy / rng.uniform(8, 30))
    mask = np.zeros((size, size), dtype=np.uint8)
    for _ in range(rng.integers(4, 10)):
        cx, cy = rng.uniform(0, size, 2)
        a, b = rng.uniform(5, 16, 2)
        th = rng.uniform(0, np.pi)
        u = (xx - cx) * np.cos(th) + (yy - cy) * np.sin(th)
        v = -(xx - cx) * np.sin(th) + (yy - cy) * np.cos(th)
        inside = (u / a) ** 2 + (v / b) ** 2 < 1
        img[inside] += rng.uniform(0.08, 0.25)
        mask[inside] = 1
    img += rng.normal(0, 0.12, img.shape)
    return (np.clip(img, 0, 1) * 255).astype(np.uint8), mask


class Cells:
    def __init__(self, n, size, seed):
        rng = np.random.default_rng(seed)
        pairs = [draw_picture(size, rng) for _ in range(n)]
        self.images = torch.from_numpy(np.stack([p[0] for p in pairs])).float().div_(255.0).to(torch.bfloat16)
        self.masks = torch.from_numpy(np.stack([p[1] for p in pairs])).float()

    def batch(self, idx):
        """Pictures and masks of idx, flipped by the same draws as the per-sample version."""
        x, m = self.images[idx], self.masks[idx]
        for j in range(len(idx)):
            dims = [d for d in (1, 0) if random.random() > 0.5]
            if dims:
                x[j], m[j] = x[j].flip(dims), m[j].flip(dims)
        return x.unsqueeze(1), m


# ---------------------------------------------------------------- model
class DoubleConv(nn.Module):
    """(convolution => [BN] => ReLU) * 2"""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True)
        )

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(in_channels, out_channels))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, kernel_size=2, stride=2)
        self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        if x1.shape[2:] != x2.shape[2:]:
            diffY = x2.size()[2] - x1.size()[2]
            diffX = x2.size()[3] - x1.size()[3]
            x1 = F.pad(x1, [diffX // 2, diffX - diffX // 2, diffY // 2, diffY - diffY // 2])
        x = torch.cat([x2, x1], dim=1)
        return self.conv(x)


class UNet(nn.Module):
    def __init__(self, n_channels=1, n_classes=2, base=24):
        super().__init__()
        self.inc = DoubleConv(n_channels, base)
        self.down1 = Down(base, base * 2)
        self.down2 = Down(base * 2, base * 4)
        self.down3 = Down(base * 4, base * 8)
        self.up1 = Up(base * 8, base * 4)
        self.up2 = Up(base * 4, base * 2)
        self.up3 = Up(base * 2, base)
        self.outc = nn.Conv2d(base, n_classes, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x = self.up1(x4, x3)
        x = self.up2(x, x2)
        x = self.up3(x, x1)
        return self.outc(x)


# ---------------------------------------------------------------- loss
def ratio(inter, total, epsilon=1e-6):
    total = torch.where(total == 0, inter, total)
    return (inter + epsilon) / (total + epsilon)


def loss_fn(logits, m):
    """Cross entropy + two-class dice loss, both from the difference of the two logits."""
    d = logits[:, 1].float() - logits[:, 0].float()
    ce = (F.softplus(d) - d * m).mean()
    p = torch.sigmoid(d).flatten(1)
    m = m.flatten(1)
    hw = p.size(1)
    sp, sm, spm = p.sum(1), m.sum(1), torch.linalg.vecdot(p, m)
    fore = ratio(2 * spm, sp + sm)
    back = ratio(2 * (hw - sp - sm + spm), 2 * hw - sp - sm)
    return ce + 1 - 0.5 * (fore.mean() + back.mean())


def forward(net, x):
    with torch.autocast('cpu', torch.bfloat16):
        return net(x)


@torch.inference_mode()
def evaluate(net, data, batches):
    torch.empty((), dtype=torch.int64).random_()   # the draw a DataLoader makes: keeps the order of samples
    net.eval()
    dice = 0
    for idx in batches:
        x, m = data.batch(idx)
        out = forward(net, x)
        pred = (out[:, 1] > out[:, 0]).float()
        dice += ratio(2 * (pred * m).sum((1, 2)), pred.sum((1, 2)) + m.sum((1, 2))).mean().item()
    net.train()
    return dice / max(len(batches), 1)


def train_model(model, args):
    data = Cells(args.pictures, args.size, args.seed)
    n_val = int(args.pictures * 0.1)
    n_train = args.pictures - n_val
    train_set, val_set = random_split(range(args.pictures), [n_train, n_val],
                                      generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(train_set, shuffle=True, batch_size=args.batch_size, collate_fn=torch.tensor)
    val_batches = [b for b in torch.tensor(val_set.indices).split(args.batch_size) if len(b) == args.batch_size]
    params = list(model.parameters())

    optimizer = optim.RMSprop(params, lr=args.lr, weight_decay=1e-8, momentum=0.9, foreach=True)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, 'max', patience=2)
    global_step = 0

    for epoch in range(1, args.epochs + 1):
        model.train()
        epoch_loss = torch.zeros(())
        for idx in train_loader:
            x, m = data.batch(idx)
            loss = loss_fn(forward(model, x), m)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
            optimizer.step()

            global_step += 1
            epoch_loss += loss.detach()
            logging.info(f'epoch {epoch} step {global_step} loss {loss.item():.6f}')
            if args.steps and global_step >= args.steps:
                break

        val_score = evaluate(model, data, val_batches)
        scheduler.step(val_score)
        logging.info(f'epoch {epoch} mean loss {epoch_loss.item() / len(train_loader):.6f} validation dice {val_score:.6f}')
        if args.steps and global_step >= args.steps:
            break

    torch.save(model.state_dict(), args.checkpoint)
    logging.info(f'Checkpoint {args.checkpoint} saved!')


def get_args():
    parser = argparse.ArgumentParser(description='Train the UNet')
    parser.add_argument('--epochs', '-e', type=int, default=3)
    parser.add_argument('--steps', type=int, default=0)
    parser.add_argument('--batch-size', '-b', type=int, default=8)
    parser.add_argument('--lr', type=float, default=1e-4)
    parser.add_argument('--size', type=int, default=112)
    parser.add_argument('--pictures', type=int, default=400)
    parser.add_argument('--seed', type=int, default=7)
    parser.add_argument('--checkpoint', default='unet_cells_by_hand.pth')
    return parser.parse_args()


if __name__ == '__main__':
    args = get_args()
    logging.basicConfig(level=logging.INFO, format='%(levelname)s: %(message)s', stream=sys.stdout)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    model = UNet().to(memory_format=torch.channels_last)
    train_model(model, args)
