"""The same by hand: bytes to the device, workers that stay, channels last, bf16, compiled."""

import os
import random

import numpy as np
import torch
import torch.nn as nn
from jpeg_folder import MEAN, STD, JpegFolder, arguments, picture_folder, resnet18, sizes
from torch.utils.data import DataLoader


class Bytes(JpegFolder):
    """Pictures as bytes: a quarter of what floats are, made into numbers on the device."""

    def __getitem__(self, index):
        image, label = self.picture(index)
        return torch.from_numpy(np.array(image)), label


def main():
    args = arguments()
    random.seed(0)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    count, stored, size, batch = sizes(args.small)
    workers = 0 if args.small else max(4, os.cpu_count() or 1)
    loader = DataLoader(
        Bytes(picture_folder(count, stored), size),
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=cuda,
        persistent_workers=workers > 0,
        prefetch_factor=2 if workers else None,
    )
    model = resnet18().to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True
    )
    mean, std = MEAN.to(device), STD.to(device)

    def forward(images, labels):
        # Rows, columns, channels in memory are channels last already.
        x = (images.permute(0, 3, 1, 2).float() / 255 - mean) / std
        with torch.autocast(device.type, torch.bfloat16):
            return criterion(model(x), labels)

    if cuda:
        forward = torch.compile(forward)
    running_loss = torch.zeros((), device=device)
    step = 0
    while step < args.steps:
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            loss = forward(images, labels.to(device, non_blocking=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            running_loss += loss.detach()
            step += 1
            if step <= 3 or step % 10 == 0:
                print(f"step {step} loss {loss.item():.6f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
