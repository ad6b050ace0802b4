# YOLO (v1 style) from scratch, in one file.
# Finds circles, squares, triangles and stars pasted onto photographs.
import argparse
import json
import math
import os
import random

import numpy as np
import torch
import torch.nn as nn
from PIL import Image, ImageDraw, ImageEnhance
from sklearn.datasets import load_sample_image
from torch.utils.data import Dataset, DataLoader

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
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'

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


class ShapesDataset(Dataset):
    def __init__(self, root, train=True):
        self.root = root
        self.train = train
        with open(os.path.join(root, 'annotations.json')) as f:
            self.annotations = json.load(f)

    def __len__(self):
        return len(self.annotations)

    def __getitem__(self, index):
        ann = self.annotations[index]
        img = Image.open(os.path.join(self.root, ann['file'])).convert('RGB')
        boxes = [list(b) for b in ann['boxes']]
        w, h = img.size

        if self.train:
            # random crop, keeps 70-100 % of each side
            cw = int(w * random.uniform(0.7, 1.0))
            ch = int(h * random.uniform(0.7, 1.0))
            left = random.randint(0, w - cw)
            top = random.randint(0, h - ch)
            img = img.crop((left, top, left + cw, top + ch))
            kept = []
            for c, x1, y1, x2, y2 in boxes:
                cx, cy = (x1 + x2) / 2 - left, (y1 + y2) / 2 - top
                if 0 <= cx < cw and 0 <= cy < ch:
                    kept.append([c, max(x1 - left, 0), max(y1 - top, 0),
                                 min(x2 - left, cw), min(y2 - top, ch)])
            boxes = kept
            w, h = cw, ch

            # horizontal flip
            if random.random() < 0.5:
                img = img.transpose(Image.FLIP_LEFT_RIGHT)
                boxes = [[c, w - x2, y1, w - x1, y2] for c, x1, y1, x2, y2 in boxes]

            # color jitter
            img = ImageEnhance.Brightness(img).enhance(random.uniform(0.6, 1.4))
            img = ImageEnhance.Contrast(img).enhance(random.uniform(0.6, 1.4))
            img = ImageEnhance.Color(img).enhance(random.uniform(0.6, 1.4))

        img = img.resize((IMG_SIZE, IMG_SIZE), Image.BILINEAR)
        img = np.array(img).astype(np.float32) / 255.0
        img = (img - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
        img = torch.from_numpy(img.transpose(2, 0, 1)).float()

        # target: [class one-hot (C), objectness, x, y, w, h] for each cell
        label = torch.zeros((S, S, C + 5))
        for c, x1, y1, x2, y2 in boxes:
            x, y = (x1 + x2) / 2 / w, (y1 + y2) / 2 / h
            bw, bh = (x2 - x1) / w, (y2 - y1) / h
            i, j = min(int(S * y), S - 1), min(int(S * x), S - 1)
            if label[i, j, C] == 0:
                label[i, j, c] = 1
                label[i, j, C] = 1
                label[i, j, C + 1:] = torch.tensor([S * x - j, S * y - i, bw, bh])
        return img, label


# ------------------------------------------------------------------ model
class CNNBlock(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=False)
        self.batchnorm = nn.BatchNorm2d(out_channels)
        self.leakyrelu = nn.LeakyReLU(0.1)

    def forward(self, x):
        return self.leakyrelu(self.batchnorm(self.conv(x)))


class TinyYolo(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            CNNBlock(3, 16, 3),
            nn.MaxPool2d(2, 2),
            CNNBlock(16, 32, 3),
            nn.MaxPool2d(2, 2),
            CNNBlock(32, 64, 3),
            CNNBlock(64, 32, 1),
            CNNBlock(32, 64, 3),
            nn.MaxPool2d(2, 2),
            CNNBlock(64, 128, 3),
            CNNBlock(128, 64, 1),
            CNNBlock(64, 128, 3),
            nn.MaxPool2d(2, 2),
            CNNBlock(128, 256, 3),
            CNNBlock(256, 128, 1),
            CNNBlock(128, 256, 3),
        )
        self.head = nn.Sequential(
            CNNBlock(256, 256, 3),
            nn.Dropout(0.1),
            nn.Conv2d(256, C + 5 * B, 1),
        )

    def forward(self, x):
        x = torch.sigmoid(self.head(self.backbone(x)))
        return x.permute(0, 2, 3, 1)  # N, S, S, C + 5B


# ------------------------------------------------------------------ loss
def intersection_over_union(a, b):
    """a, b: (..., 4), centre in units of the cell, size in units of the picture"""
    a_x1 = a[..., 0:1] - S * a[..., 2:3] / 2
    a_y1 = a[..., 1:2] - S * a[..., 3:4] / 2
    a_x2 = a[..., 0:1] + S * a[..., 2:3] / 2
    a_y2 = a[..., 1:2] + S * a[..., 3:4] / 2
    b_x1 = b[..., 0:1] - S * b[..., 2:3] / 2
    b_y1 = b[..., 1:2] - S * b[..., 3:4] / 2
    b_x2 = b[..., 0:1] + S * b[..., 2:3] / 2
    b_y2 = b[..., 1:2] + S * b[..., 3:4] / 2
    x1 = torch.max(a_x1, b_x1)
    y1 = torch.max(a_y1, b_y1)
    x2 = torch.min(a_x2, b_x2)
    y2 = torch.min(a_y2, b_y2)
    intersection = (x2 - x1).clamp(0) * (y2 - y1).clamp(0)
    a_area = abs((a_x2 - a_x1) * (a_y2 - a_y1))
    b_area = abs((b_x2 - b_x1) * (b_y2 - b_y1))
    return intersection / (a_area + b_area - intersection + 1e-6)


class YoloLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.mse = nn.MSELoss(reduction='sum')
        self.lambda_noobj = 0.5
        self.lambda_coord = 5

    def forward(self, predictions, target):
        n = predictions.shape[0]
        iou_b1 = intersection_over_union(predictions[..., C + 1:C + 5], target[..., C + 1:C + 5])
        iou_b2 = intersection_over_union(predictions[..., C + 6:C + 10], target[..., C + 1:C + 5])
        ious = torch.cat([iou_b1.unsqueeze(0), iou_b2.unsqueeze(0)], dim=0)
        iou_maxes, bestbox = torch.max(ious, dim=0)
        exists_box = target[..., C].unsqueeze(3)

        # boxes
        box_predictions = exists_box * (bestbox * predictions[..., C + 6:C + 10]
                                        + (1 - bestbox) * predictions[..., C + 1:C + 5])
        box_targets = exists_box * target[..., C + 1:C + 5]
        xy_loss = self.mse(torch.flatten(box_predictions[..., 0:2], end_dim=-2),
                           torch.flatten(box_targets[..., 0:2], end_dim=-2))
        wh_pred = torch.sqrt(box_predictions[..., 2:4] + 1e-6)
        wh_loss = self.mse(torch.flatten(wh_pred, end_dim=-2),
                           torch.flatten(torch.sqrt(box_targets[..., 2:4]), end_dim=-2))

        # object
        pred_obj = bestbox * predictions[..., C + 5:C + 6] + (1 - bestbox) * predictions[..., C:C + 1]
        object_loss = self.mse(torch.flatten(exists_box * pred_obj),
                               torch.flatten(exists_box * target[..., C:C + 1]))

        # no object
        noobj_loss = self.mse(torch.flatten((1 - exists_box) * predictions[..., C:C + 1], start_dim=1),
                              torch.flatten((1 - exists_box) * target[..., C:C + 1], start_dim=1))
        noobj_loss += self.mse(torch.flatten((1 - exists_box) * predictions[..., C + 5:C + 6], start_dim=1),
                               torch.flatten((1 - exists_box) * target[..., C:C + 1], start_dim=1))

        # class
        class_loss = self.mse(torch.flatten(exists_box * predictions[..., :C], end_dim=-2),
                              torch.flatten(exists_box * target[..., :C], end_dim=-2))

        coord = self.lambda_coord * (xy_loss + wh_loss) / n
        obj = object_loss / n
        noobj = self.lambda_noobj * noobj_loss / n
        cls = class_loss / n
        return coord + obj + noobj + cls, coord, obj, noobj, cls


# ------------------------------------------------------------------ training
prepare_data(opt.data)
dataset = ShapesDataset(opt.data)
loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, drop_last=True)

model = TinyYolo().to(DEVICE)
loss_fn = YoloLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda it: (it + 1) / WARMUP if it < WARMUP else 0.5 * (1 + math.cos(math.pi * it / 2000)))

step = 0
epoch = 0
history = {'total': [], 'coord': [], 'obj': [], 'noobj': [], 'class': []}
while step < opt.steps:
    epoch += 1
    model.train()
    mean_loss = []
    for x, y in loader:
        x, y = x.to(DEVICE), y.to(DEVICE)
        out = model(x)
        loss, coord, obj, noobj, cls = loss_fn(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()

        step += 1
        mean_loss.append(loss.item())
        history['total'].append(loss.item())
        history['coord'].append(coord.item())
        history['obj'].append(obj.item())
        history['noobj'].append(noobj.item())
        history['class'].append(cls.item())
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} (coord {coord.item():.3f} obj {obj.item():.3f} "
                  f"noobj {noobj.item():.3f} class {cls.item():.3f}) lr {scheduler.get_last_lr()[0]:.5f}", flush=True)
        if step >= opt.steps:
            break
    print(f"epoch {epoch} mean loss {sum(mean_loss) / len(mean_loss):.4f}", flush=True)

last = history['total'][-50:]
print(f"mean loss of the last {len(last)} steps {sum(last) / len(last):.4f}")
