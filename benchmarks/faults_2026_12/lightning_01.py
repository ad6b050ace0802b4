import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class MixerLayer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token = nn.Sequential(nn.Linear(tokens, 64), nn.GELU(), nn.Linear(64, tokens))
        self.channel = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.token(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.n2(x))


class Mixer(L.LightningModule):
    def __init__(self, tokens=16, dim=96, layers=6, classes=8):
        super().__init__()
        self.embed = nn.Linear(48, dim)
        self.layers = nn.Sequential(*[MixerLayer(tokens, dim) for _ in range(layers)])
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.layers(self.embed(x)).mean(1))

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        for name, p in self.named_parameters():
            self.log(f"grad_norm/{name}", p.grad.norm())
            self.log(f"grad_mean/{name}", p.grad.mean())
            self.log(f"norm/{name}", p.detach().norm())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(3)
    x = torch.randn(1800, 16, 48)
    y = (x[:, :, :8].mean(1)).argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=36, shuffle=True)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Mixer(), loader)
    print(trainer.callback_metrics["loss"].item())


if __name__ == "__main__":
    main()
