"""The loop of lightning.Trainer."""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 1))

    def training_step(self, batch, batch_index):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.network(inputs), targets)
        print("step", self.global_step + 1, "loss", repr(loss.item()), flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    parser.add_argument("--out", default="out", help="folder that the trainer may write to")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(1024, 32, generator=generator)
    targets = inputs.square().mean(dim=1, keepdim=True)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=64, shuffle=True)
    trainer = lightning.Trainer(
        max_steps=args.steps,
        devices=1,
        default_root_dir=args.out,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), loader)


if __name__ == "__main__":
    main()
