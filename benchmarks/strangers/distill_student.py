# Knowledge distillation on digits: a frozen teacher in eval mode, a small student.
# The teacher: fixed random convolutions and a read-out solved by least squares.
import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=6000)
p.add_argument("--seed", type=int, default=0)
p.add_argument("--T", type=float, default=4.0)
p.add_argument("--alpha", type=float, default=0.7)
args = p.parse_args()
random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)


class Teacher(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Dropout2d(0.2),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(width * 4, 10)

    def forward(self, x):
        return self.head(self.features(x))


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.fc = nn.Linear(24 * 4, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


teacher = Teacher()
teacher.train()
with torch.no_grad():
    teacher(images[:500])  # statistics for BatchNorm
    teacher.eval()
    f = torch.cat([teacher.features(images), torch.ones(len(images), 1)], 1)
    target = F.one_hot(labels, 10).float() * 10 - 1
    a = f.T @ f + 1.0 * torch.eye(f.shape[1])
    solution = torch.linalg.solve(a, f.T @ target)
    teacher.head.weight.copy_(solution[:-1].T)
    teacher.head.bias.copy_(solution[-1])
    print("teacher accuracy", (teacher(images).argmax(1) == labels).float().mean().item())
for param in teacher.parameters():
    param.requires_grad = False

student = Student()
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(images, labels), batch_size=128, shuffle=True)

step = 0
while step < args.steps:
    student.train()
    for x, y in loader:
        x = x + 0.1 * torch.randn_like(x)
        with torch.no_grad():
            teacher_logits = teacher(x)
        student_logits = student(x)
        soft = F.kl_div(
            F.log_softmax(student_logits / args.T, dim=1),
            F.softmax(teacher_logits / args.T, dim=1),
            reduction="batchmean",
        ) * (args.T**2)
        hard = F.cross_entropy(student_logits, y)
        loss = args.alpha * soft + (1 - args.alpha) * hard
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step <= 100 or step % 5 == 0:
            print("step", step, "loss", f"{loss.item():.8f}")
        if step >= args.steps:
            break
