"""The same by hand: pictures on the device, channels last, bf16, compiled, fused SGD."""

import lightning as L
import torch
from lit_images import LitResNet, arguments, make_pictures, sizes, trainer
from torch.nn import functional as F


class OnDevice:
    """Batches cut out of tensors that are on the device already."""

    def __init__(self, images, labels, batch):
        self.images, self.labels, self.batch = images, labels, batch

    def __len__(self):
        return len(self.labels) // self.batch

    def __iter__(self):
        order = torch.randperm(len(self.labels)).to(self.labels.device)
        for rows in order.split(self.batch):
            if len(rows) == self.batch:
                images = self.images[rows].contiguous(memory_format=torch.channels_last)
                yield images, self.labels[rows]


class FastResNet(LitResNet):
    def __init__(self, width):
        super().__init__(width)
        self.net.to(memory_format=torch.channels_last)
        self.loss = torch.compile(self.plain_loss) if torch.cuda.is_available() else self.plain_loss

    def plain_loss(self, x, y):
        logits = self.net(x)
        return F.cross_entropy(logits, y), (logits.argmax(1) == y).float().mean()

    def training_step(self, batch, batch_idx):
        loss, accuracy = self.loss(*batch)
        step = self.global_step + 1
        if step <= 3 or step % 10 == 0:
            self.log("train_loss", loss, prog_bar=True)
            self.log("train_acc", accuracy, prog_bar=True)
            print(f"step {step} loss {loss.item():.6f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(
            self.parameters(), lr=self.hparams.lr, momentum=0.9, weight_decay=5e-4, fused=True
        )


def main():
    args = arguments()
    L.seed_everything(7, verbose=False)
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    count, batch, width = sizes(args.small)
    images, labels = make_pictures(count)
    loader = OnDevice(images.to(device), labels.to(device), batch)
    trainer(args, precision="bf16-mixed").fit(FastResNet(width), loader)


if __name__ == "__main__":
    main()
