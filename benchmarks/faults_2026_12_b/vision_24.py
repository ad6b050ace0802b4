"""Digits with Lightning: a compact CNN, metrics, a scheduler and validation each epoch."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
warnings.filterwarnings("ignore", ".*does not have many workers.*")


class DigitsData(L.LightningDataModule):
    def __init__(self, batch=64):
        super().__init__()
        self.batch = batch

    def setup(self, stage=None):
        d = load_digits()
        x = torch.tensor(d.images, dtype=torch.float32)[:, None] / 16
        x = F.interpolate(x, size=(24, 24), mode="bilinear", align_corners=False)
        tr, va = train_test_split(range(len(x)), test_size=0.2, random_state=0, stratify=d.target)
        y = torch.tensor(d.target)
        self.tr, self.va = TensorDataset(x[tr], y[tr]), TensorDataset(x[va], y[va])

    def train_dataloader(self):
        return DataLoader(self.tr, self.batch, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.va, 128)


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(c), nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.nb(self.b(F.relu(self.na(self.a(x))))))


class Net(L.LightningModule):
    def __init__(self, lr=2e-3, width=24):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), Residual(width), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), Residual(2 * width),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10),
        )
        self.val_acc = MulticlassAccuracy(10)

    def training_step(self, batch, _):
        x, y = batch
        x = x + 0.05 * torch.randn_like(x)
        loss = F.cross_entropy(self.net(x), y, label_smoothing=0.1)
        self.log("loss", loss, on_step=True, on_epoch=False)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.val_acc.update(self.net(x), y)
        self.log("acc", self.val_acc, on_step=False, on_epoch=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        total = int(self.trainer.estimated_stepping_batches)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, self.hparams.lr, total_steps=total)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


class Printer(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step % 50 == 0:
            print(f"step {trainer.global_step} loss {outputs['loss'].item():.4f}")

    def on_validation_epoch_end(self, trainer, module):
        if not trainer.sanity_checking:
            print(f"epoch {trainer.current_epoch} val acc {trainer.callback_metrics['acc'].item():.4f}")


if __name__ == "__main__":
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=14,
        accelerator="cpu",
        logger=False,
        callbacks=[Printer(), ModelCheckpoint(dirpath="/tmp/lit_digits", monitor="acc", mode="max", save_top_k=1)],
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=50,
    )
    trainer.fit(Net(), DigitsData())
