"""A ResNet for pictures of 32 x 32 as a LightningModule."""

import argparse
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", ".*does not have many workers.*")


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(cin, cout, 3, stride, 1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(),
            nn.Conv2d(cout, cout, 3, 1, 1, bias=False),
            nn.BatchNorm2d(cout),
        )
        self.skip = nn.Identity()
        if stride != 1 or cin != cout:
            self.skip = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x):
        return F.relu(self.skip(x) + self.body(x))


class LitResNet(L.LightningModule):
    def __init__(self, width, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        layers = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
        for stage in range(4):
            cout = width * 2**stage
            layers += [Residual(channels, cout, 1 if stage == 0 else 2), Residual(cout, cout, 1)]
            channels = cout
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_acc", (logits.argmax(1) == y).float().mean(), prog_bar=True)
        step = self.global_step + 1
        if step <= 3 or step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(
            self.parameters(), lr=self.hparams.lr, momentum=0.9, weight_decay=5e-4
        )


def sizes(small):
    """(pictures, batch, width)"""
    return (128, 16, 8) if small else (25_600, 256, 64)


def make_pictures(count):
    labels = torch.randint(0, 10, (count,))
    coarse = torch.rand(10, 3, 4, 4)[labels] + 0.3 * torch.randn(count, 3, 4, 4)
    return F.interpolate(coarse, size=32, mode="bilinear", align_corners=False), labels


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--small", action="store_true", help="for a CPU")
    return parser.parse_args()


def trainer(args, **more):
    return L.Trainer(
        max_steps=args.steps,
        max_epochs=-1,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    )


def main():
    args = arguments()
    L.seed_everything(7, verbose=False)
    count, batch, width = sizes(args.small)
    data = TensorDataset(*make_pictures(count))
    workers = 0 if args.small else 2
    loader = DataLoader(data, batch, shuffle=True, drop_last=True, num_workers=workers)
    trainer(args).fit(LitResNet(width), loader)


if __name__ == "__main__":
    main()
