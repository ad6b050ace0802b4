"""U-Net for segmenting made-up 'cells' in noisy grey pictures."""
import argparse
import logging
import random
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset, random_split


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


class CellDataset(Dataset):
    def __init__(self, n, size, seed):
        rng = np.random.default_rng(seed)
        self.images, self.masks = [], []
        for _ in range(n):
            img, mask = draw_picture(size, rng)
            self.images.append(img)
            self.masks.append(mask)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        img = self.images[idx].astype(np.float32) / 255.0
        mask = self.masks[idx].astype(np.int64)
        if random.random() > 0.5:
            img, mask = np.fliplr(img), np.fliplr(mask)
        if random.random() > 0.5:
            img, mask = np.flipud(img), np.flipud(mask)
        return {
            'image': torch.as_tensor(img.copy()).float().unsqueeze(0).contiguous(),
            'mask': torch.as_tensor(mask.copy()).long().contiguous(),
        }


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
def dice_coeff(input, target, epsilon=1e-6):
    inter = 2 * (input * target).sum(dim=(-1, -2))
    sets_sum = input.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
    return ((inter + epsilon) / (sets_sum + epsilon)).mean()


def dice_loss(input, target):
    return 1 - dice_coeff(input.flatten(0, 1), target.flatten(0, 1))


@torch.no_grad()
def evaluate(net, dataloader, device):
    net.eval()
    dice = 0
    for batch in dataloader:
        image, mask_true = batch['image'].to(device), batch['mask'].to(device)
        pred = net(image)
        pred = F.one_hot(pred.argmax(dim=1), 2).permute(0, 3, 1, 2).float()
        true = F.one_hot(mask_true, 2).permute(0, 3, 1, 2).float()
        dice += dice_coeff(pred[:, 1:].flatten(0, 1), true[:, 1:].flatten(0, 1)).item()
    net.train()
    return dice / max(len(dataloader), 1)


def train_model(model, device, args):
    dataset = CellDataset(args.pictures, args.size, args.seed)
    n_val = int(len(dataset) * 0.1)
    n_train = len(dataset) - n_val
    train_set, val_set = random_split(dataset, [n_train, n_val], generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(train_set, shuffle=True, batch_size=args.batch_size)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, batch_size=args.batch_size)

    optimizer = optim.RMSprop(model.parameters(), lr=args.lr, weight_decay=1e-8, momentum=0.9)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, 'max', patience=2)
    criterion = nn.CrossEntropyLoss()
    global_step = 0

    for epoch in range(1, args.epochs + 1):
        model.train()
        epoch_loss = 0
        for batch in train_loader:
            images, true_masks = batch['image'].to(device), batch['mask'].to(device)
            masks_pred = model(images)
            loss = criterion(masks_pred, true_masks)
            loss += dice_loss(F.softmax(masks_pred, dim=1).float(),
                              F.one_hot(true_masks, 2).permute(0, 3, 1, 2).float())

            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

            global_step += 1
            epoch_loss += loss.item()
            logging.info(f'epoch {epoch} step {global_step} loss {loss.item():.6f}')
            if args.steps and global_step >= args.steps:
                break

        val_score = evaluate(model, val_loader, device)
        scheduler.step(val_score)
        logging.info(f'epoch {epoch} mean loss {epoch_loss / len(train_loader):.6f} validation dice {val_score:.6f}')
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
    parser.add_argument('--checkpoint', default='unet_cells.pth')
    return parser.parse_args()


if __name__ == '__main__':
    args = get_args()
    logging.basicConfig(level=logging.INFO, format='%(levelname)s: %(message)s', stream=sys.stdout)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    model = UNet().to(device)
    train_model(model, device, args)
