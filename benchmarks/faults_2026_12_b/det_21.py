"""Single-stage detector on synthetic rectangles (anchor based)."""
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(3)
RNG = np.random.default_rng(3)
IMG, STRIDE, BATCH, STEPS = 64, 8, 16, 600
SIZES = (10, 18, 28)


def build_anchors():
    cells = IMG // STRIDE
    out = []
    for gy in range(cells):
        for gx in range(cells):
            cx, cy = (gx + 0.5) * STRIDE, (gy + 0.5) * STRIDE
            for s in SIZES:
                out.append((cx - s / 2, cy - s / 2, cx + s / 2, cy + s / 2))
    return np.array(out, dtype=np.float32)


def sample_batch():
    images = RNG.normal(0, 0.1, (BATCH, 1, IMG, IMG)).astype(np.float32)
    boxes = []
    for b in range(BATCH):
        n = RNG.integers(2, 6)
        wh = RNG.uniform(8, 30, (n, 2))
        xy = RNG.uniform(0, IMG - 30, (n, 2))
        gt = np.concatenate([xy, xy + wh], 1).astype(np.float32)
        for x0, y0, x1, y1 in gt.astype(int):
            images[b, 0, y0:y1, x0:x1] += RNG.uniform(0.4, 1.0)
        boxes.append(gt)
    return torch.from_numpy(images), boxes


def iou(a, b):
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    if w <= 0 or h <= 0:
        return 0.0
    inter = w * h
    return inter / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inter)


class AnchorMatcher:
    def __init__(self, anchors, pos=0.5):
        self.anchors = anchors
        self.table = anchors.tolist()
        self.pos = pos

    def match(self, gt):
        best = np.full(len(self.table), -1, dtype=np.int64)
        score = np.zeros(len(self.table), dtype=np.float32)
        for j, box in enumerate(gt.tolist()):
            top, top_i = 0.0, -1
            for i, anchor in enumerate(self.table):
                v = iou(anchor, box)
                if v > score[i] and v >= self.pos:
                    score[i], best[i] = v, j
                if v > top:
                    top, top_i = v, i
            if top_i >= 0 and best[top_i] < 0:
                best[top_i] = j
        return best

    def encode(self, gt, best):
        idx = np.where(best >= 0)[0]
        a, g = self.anchors[idx], gt[best[idx]]
        aw, gw = a[:, 2:] - a[:, :2], g[:, 2:] - g[:, :2]
        ac, gc = (a[:, 2:] + a[:, :2]) / 2, (g[:, 2:] + g[:, :2]) / 2
        return idx, np.concatenate([(gc - ac) / aw, np.log(gw / aw)], 1)

    def targets(self, boxes):
        cls = np.zeros((len(boxes), len(self.table)), dtype=np.float32)
        reg = np.zeros((len(boxes), len(self.table), 4), dtype=np.float32)
        for k, gt in enumerate(boxes):
            idx, delta = self.encode(gt, self.match(gt))
            cls[k, idx] = 1
            reg[k, idx] = delta
        return torch.from_numpy(cls), torch.from_numpy(reg)


class Detector(nn.Module):
    def __init__(self, n_anchor=len(SIZES), w=12):
        super().__init__()
        layers, c = [], 1
        for i, k in enumerate((w, 2 * w, 3 * w)):
            layers += [nn.Conv2d(c, k, 3, 2, 1), nn.BatchNorm2d(k), nn.SiLU(),
                       nn.Conv2d(k, k, 3, 1, 1), nn.BatchNorm2d(k), nn.SiLU()]
            c = k
        self.trunk = nn.Sequential(*layers)
        self.cls = nn.Conv2d(c, n_anchor, 1)
        self.reg = nn.Conv2d(c, n_anchor * 4, 1)
        nn.init.constant_(self.cls.bias, -math.log(99.0))

    def forward(self, x):
        f = self.trunk(x)
        n = len(x)
        logit = self.cls(f).permute(0, 2, 3, 1).reshape(n, -1)
        delta = self.reg(f).permute(0, 2, 3, 1).reshape(n, -1, 4)
        return logit, delta


def focal(logit, y, gamma=2.0, alpha=0.25):
    ce = F.binary_cross_entropy_with_logits(logit, y, reduction="none")
    p = torch.sigmoid(logit)
    pt = p * y + (1 - p) * (1 - y)
    w = alpha * y + (1 - alpha) * (1 - y)
    return (w * (1 - pt) ** gamma * ce).sum() / y.sum().clamp(min=1)


matcher = AnchorMatcher(build_anchors())
model = Detector()
optim = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.OneCycleLR(optim, 0.05, total_steps=STEPS)

for step in range(STEPS):
    images, boxes = sample_batch()
    y_cls, y_reg = matcher.targets(boxes)
    logit, delta = model(images)
    mask = y_cls > 0
    loss_c = focal(logit, y_cls)
    loss_r = F.smooth_l1_loss(delta[mask], y_reg[mask])
    loss = loss_c + loss_r
    optim.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optim.step()
    sched.step()
    if step % 40 == 0:
        print(f"step {step:4d} cls {loss_c.item():.4f} reg {loss_r.item():.4f}")
print("done, last loss", round(loss.item(), 4))
