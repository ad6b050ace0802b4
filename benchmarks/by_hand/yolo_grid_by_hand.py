# YOLO (v1 style) from scratch, by hand: bfloat16 convolutions in channels-last, pictures decoded once.
# Finds circles, squares, triangles and stars pasted onto photographs.
import argparse
import json
import math
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_image

parser = argparse.ArgumentParser()
parser.add_argument('--steps', type=int, default=300)
parser.add_argument('--data', default='./data/shapes')
opt = parser.parse_args()

# ------------------------------------------------------------------ settings
IMG_SIZE = 160
S = 10              # grid
B = 2               # boxes per cell
CLASSES = ['circle', 'square', 'triangle', 'star']
C = len(CLASSES)
BATCH_SIZE = 16
LR = 0.01
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
WARMUP = 50
NUM_IMAGES = 640

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)


# ------------------------------------------------------------------ data
def draw_shape(draw, kind, x1, y1, x2, y2, color):
    cx, cy = (x1 + x2) / 2, (y1 + y2) / 2
    if kind == 0:
        draw.ellipse([x1, y1, x2, y2], fill=color)
    elif kind == 1:
        draw.rectangle([x1, y1, x2, y2], fill=color)
    elif kind == 2:
        draw.polygon([(cx, y1), (x2, y2), (x1, y2)], fill=color)
    else:
        pts = []
        for k in range(10):
            r = 1.0 if k % 2 == 0 else 0.45
            a = -math.pi / 2 + k * math.pi / 5
            pts.append((cx + r * (x2 - x1) / 2 * math.cos(a), cy + r * (y2 - y1) / 2 * math.sin(a)))
        draw.polygon(pts, fill=color)


def prepare_data(root):
    """Write the pictures and annotations.json, if they are not there yet."""
    if os.path.exists(os.path.join(root, 'annotations.json')):
        return
    os.makedirs(root, exist_ok=True)
    rng = random.Random(123)
    photos = [Image.fromarray(load_sample_image(n)) for n in ('china.jpg', 'flower.jpg')]
    annotations = []
    for i in range(NUM_IMAGES):
        photo = rng.choice(photos)
        w, h = rng.randint(220, 300), rng.randint(220, 300)
        left, top = rng.randint(0, photo.width - w), rng.randint(0, photo.height - h)
        img = photo.crop((left, top, left + w, top + h))
        draw = ImageDraw.Draw(img)
        boxes = []
        for _ in range(rng.randint(1, 4)):
            bw, bh = rng.randint(30, 90), rng.randint(30, 90)
            x1, y1 = rng.randint(0, w - bw - 1), rng.randint(0, h - bh - 1)
            kind = rng.randint(0, C - 1)
            color = tuple(rng.randint(0, 255) for _ in range(3))
            draw_shape(draw, kind, x1, y1, x1 + bw, y1 + bh, color)
            boxes.append([kind, x1, y1, x1 + bw, y1 + bh])
        name = '%05d.jpg' % i
        img.save(os.path.join(root, name), quality=90)
        annotations.append({'file': name, 'boxes': boxes})
    with open(os.path.join(root, 'annotations.json'), 'w') as f:
        json.dump(annotations, f)


MEAN = torch.tensor([0.485, 0.456, 0.406]) * 255
STD = torch.tensor([0.229, 0.224, 0.225]) * 255
GREY = np.array([0.299, 0.587, 0.114])
LEVELS = np.arange(256.0)


class Pictures:
    """Decoded pictures in memory. Draws what the dataset draws, in the same order.

    Brightness and contrast are one table of 256 levels, saturation is a matrix; both are applied after the resize, to
    fewer pixels.
    """

    def __init__(self, root):
        with open(os.path.join(root, 'annotations.json')) as f:
            self.annotations = json.load(f)
        self.images = [None] * len(self.annotations)
        self.root = root

    def image(self, index):
        if self.images[index] is None:
            name = self.annotations[index]['file']
            self.images[index] = Image.open(os.path.join(self.root, name)).convert('RGB')
        return self.images[index]

    def sample(self, index, pixels, label):
        img = self.image(index)
        w, h = img.size
        cw = int(w * random.uniform(0.7, 1.0))
        ch = int(h * random.uniform(0.7, 1.0))
        left = random.randint(0, w - cw)
        top = random.randint(0, h - ch)
        flip = random.random() < 0.5
        brightness, contrast, color = (random.uniform(0.6, 1.4) for _ in range(3))

        img = img.resize((IMG_SIZE, IMG_SIZE), Image.BILINEAR, box=(left, top, left + cw, top + ch))
        table = np.floor(np.clip(LEVELS * brightness, 0, 255))
        counts = np.array(img.histogram()).reshape(3, 256)
        mean = int(GREY @ (counts @ table) / (IMG_SIZE * IMG_SIZE) + 0.5)
        table = np.floor(np.clip(mean + (table - mean) * contrast, 0, 255)).astype(int).tolist()
        r, g, b = (GREY * (1 - color)).tolist()
        img = img.point(table * 3).convert('RGB', (r + color, g, b, 0, r, g + color, b, 0, r, g, b + color, 0))
        array = np.asarray(img)
        pixels[:] = array[:, ::-1] if flip else array

        for c, x1, y1, x2, y2 in self.annotations[index]['boxes']:
            cx, cy = (x1 + x2) / 2 - left, (y1 + y2) / 2 - top
            if not (0 <= cx < cw and 0 <= cy < ch):
                continue
            x1, y1, x2, y2 = max(x1 - left, 0), max(y1 - top, 0), min(x2 - left, cw), min(y2 - top, ch)
            if flip:
                x1, x2 = cw - x2, cw - x1
            x, y = (x1 + x2) / 2 / cw, (y1 + y2) / 2 / ch
            i, j = min(int(S * y), S - 1), min(int(S * x), S - 1)
            if label[i, j, C] == 0:
                label[i, j, c] = 1
                label[i, j, C:] = 1, S * x - j, S * y - i, (x2 - x1) / cw, (y2 - y1) / ch

    def batches(self):
        torch.empty((), dtype=torch.int64).random_()   # a DataLoader's two draws: its base seed, its sampler's
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        order = torch.randperm(len(self.images), generator=generator).tolist()
        for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            pixels = np.empty((BATCH_SIZE, IMG_SIZE, IMG_SIZE, 3), np.uint8)
            labels = np.zeros((BATCH_SIZE, S, S, C + 5), np.float32)
            for k, index in enumerate(order[start:start + BATCH_SIZE]):
                self.sample(index, pixels[k], labels[k])
            x = ((torch.from_numpy(pixels) - MEAN) / STD).to(torch.bfloat16)
            yield x.permute(0, 3, 1, 2), torch.from_numpy(labels)


# ------------------------------------------------------------------ model
class CNNBlock(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, pool=False):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=False)
        self.batchnorm = nn.BatchNorm2d(out_channels)
        self.pool = pool
        self.leakyrelu = nn.LeakyReLU(0.1, inplace=True)

    def forward(self, x):
        x = self.batchnorm(self.conv(x))
        if self.pool:
            x = F.max_pool2d(x, 2, 2)       # before LeakyReLU, which is monotone: a quarter of the elements
        return self.leakyrelu(x)


class Dropout(nn.Module):
    """nn.Dropout with a cheaper source of random numbers."""

    def __init__(self, p):
        super().__init__()
        self.p = p
        self.random = np.random.Generator(np.random.SFC64(0))

    def forward(self, x):
        if not self.training:
            return x
        drawn = torch.from_numpy(self.random.integers(0, 1 << 15, x.numel(), dtype=np.int16)).view(x.permute(0, 2, 3, 1).shape)
        mask = (drawn >= round(self.p * (1 << 15))).to(x.dtype) * (1 / (1 - self.p))
        return x * mask.permute(0, 3, 1, 2)


class TinyYolo(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            CNNBlock(3, 16, 3, pool=True),
            CNNBlock(16, 32, 3, pool=True),
            CNNBlock(32, 64, 3),
            CNNBlock(64, 32, 1),
            CNNBlock(32, 64, 3, pool=True),
            CNNBlock(64, 128, 3),
            CNNBlock(128, 64, 1),
            CNNBlock(64, 128, 3, pool=True),
            CNNBlock(128, 256, 3),
            CNNBlock(256, 128, 1),
            CNNBlock(128, 256, 3),
        )
        self.head = nn.Sequential(
            CNNBlock(256, 256, 3),
            Dropout(0.1),
            nn.Conv2d(256, C + 5 * B, 1),
        )

    def forward(self, x):
        x = torch.sigmoid(self.head(self.backbone(x)).float())
        return x.permute(0, 2, 3, 1)  # N, S, S, C + 5B


# ------------------------------------------------------------------ loss
def corners(box):
    """box: (..., 4), centre in units of the cell, size in units of the picture"""
    half = box[..., 2:] * (S / 2)
    return box[..., :2] - half, box[..., :2] + half


def best_of(boxes, target):
    """boxes (n, 2, 4), target (n, 1, 4): index of the box with the larger IoU"""
    a1, a2 = corners(boxes)
    b1, b2 = corners(target)
    inter = (torch.minimum(a2, b2) - torch.maximum(a1, b1)).clamp_(0).prod(-1)
    union = (a2 - a1).prod(-1) + (b2 - b1).prod(-1) - inter
    iou = inter / (union + 1e-6)
    return (iou[:, 1] > iou[:, 0]).long()


def yolo_loss(predictions, target):
    """Works on the few cells that have an object; the others have only the sum of squares of their objectness."""
    n = predictions.shape[0]
    predictions, target = predictions.reshape(-1, C + 5 * B), target.view(-1, C + 5)
    has = target[:, C].nonzero().squeeze(1)
    t, p = target[has], predictions[has]
    boxes = p[:, C:].view(-1, B, 5)
    with torch.no_grad():
        best = best_of(boxes[..., 1:], t[:, None, C + 1:])
    box = boxes[torch.arange(len(has)), best]
    xy = (box[:, 1:3] - t[:, C + 1:C + 3]).square().sum()
    wh = ((box[:, 3:] + 1e-6).sqrt() - t[:, C + 3:].sqrt()).square().sum()
    coord = 5 * (xy + wh) / n
    obj = (box[:, 0] - 1).square().sum() / n
    noobj = 0.5 * (predictions[:, C::5].square().sum() - boxes[..., 0].square().sum()) / n
    cls = (p[:, :C] - t[:, :C]).square().sum() / n
    return coord + obj + noobj + cls, coord, obj, noobj, cls


# ------------------------------------------------------------------ training
prepare_data(opt.data)
pictures = Pictures(opt.data)

model = TinyYolo().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda it: (it + 1) / WARMUP if it < WARMUP else 0.5 * (1 + math.cos(math.pi * it / 2000)))

step = 0
epoch = 0
history = []                   # rows of total, coord, obj, noobj, class
while step < opt.steps:
    epoch += 1
    model.train()
    first = len(history)
    for x, y in pictures.batches():
        with torch.autocast('cpu', torch.bfloat16):
            out = model(x)
        terms = yolo_loss(out, y)
        optimizer.zero_grad(set_to_none=True)
        terms[0].backward()
        optimizer.step()
        scheduler.step()

        step += 1
        history.append(torch.stack(terms).detach())
        if step % 10 == 0:
            loss, coord, obj, noobj, cls = history[-1].tolist()
            print(f"step {step} loss {loss:.4f} (coord {coord:.3f} obj {obj:.3f} "
                  f"noobj {noobj:.3f} class {cls:.3f}) lr {scheduler.get_last_lr()[0]:.5f}", flush=True)
        if step >= opt.steps:
            break
    print(f"epoch {epoch} mean loss {torch.stack(history[first:])[:, 0].mean():.4f}", flush=True)

last = torch.stack(history[-50:])[:, 0]
print(f"mean loss of the last {len(last)} steps {last.mean():.4f}")
