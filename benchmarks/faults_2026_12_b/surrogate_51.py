"""CNN surrogate for one macro-step of a 2-D heat solver (Lightning)."""
import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


def heat_pairs(count, size, substeps, seed):
    """(state, conductivity, source) -> state after `substeps` explicit steps."""
    rng = np.random.default_rng(seed)

    def smooth(sigma):
        k = np.fft.fftfreq(size)[:, None] ** 2 + np.fft.fftfreq(size)[None] ** 2
        noise = np.fft.fft2(rng.normal(size=(count, size, size)))
        f = np.fft.ifft2(noise * np.exp(-k * sigma ** 2)).real
        return f / f.std(axis=(1, 2), keepdims=True)

    u = smooth(14.0)
    kappa = 0.12 + 0.08 * np.tanh(smooth(20.0))
    src = 0.01 * smooth(16.0)
    start = u.copy()
    for _ in range(substeps):
        lap = (np.roll(u, 1, 1) + np.roll(u, -1, 1) + np.roll(u, 1, 2) + np.roll(u, -1, 2) - 4 * u)
        u = u + kappa * lap + src
    x = np.stack([start, kappa, src * 100], axis=1).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(u[:, None].astype(np.float32))


class Block(nn.Module):
    def __init__(self, ch, dilation):
        super().__init__()
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=dilation, dilation=dilation, padding_mode="circular")
        self.conv2 = nn.Conv2d(ch, ch, 1)
        self.norm = nn.GroupNorm(4, ch)

    def forward(self, x):
        return x + self.conv2(F.gelu(self.norm(self.conv1(x))))


class Surrogate(L.LightningModule):
    def __init__(self, ch=24, lr=2e-3, total_steps=1):
        super().__init__()
        self.save_hyperparameters()
        self.stem = nn.Conv2d(3, ch, 1)
        self.blocks = nn.Sequential(*(Block(ch, d) for d in (1, 2, 4)))
        self.out = nn.Conv2d(ch, 1, 1)

    def forward(self, x):
        return x[:, :1] + self.out(self.blocks(self.stem(x)))

    def training_step(self, batch, _):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        pred = self(x)
        self.log("val_mse", F.mse_loss(pred, y))
        self.log("val_mae", F.l1_loss(pred, y))

    def on_validation_epoch_end(self):
        m = self.trainer.callback_metrics
        print(f"epoch {self.current_epoch}  val mse {m['val_mse'].item():.5f}  val mae {m['val_mae'].item():.5f}")

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=self.hparams.lr, total_steps=self.hparams.total_steps)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def main(epochs=7, batch=16):
    L.seed_everything(23)
    x, y = heat_pairs(800, 32, 20, seed=23)
    train, val = random_split(TensorDataset(x, y), [704, 96], generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(train, batch_size=batch, shuffle=True)
    val_loader = DataLoader(val, batch_size=48)
    model = Surrogate(total_steps=epochs * len(train_loader))
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, train_loader, val_loader)


if __name__ == "__main__":
    main()
