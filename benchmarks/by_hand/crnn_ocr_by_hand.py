"""
CRNN for text line recognition, trained with CTC on rendered lines; by hand: bfloat16 convolutions in channels-last,
pooling before ReLU, fonts made once, one noise for the batch.
"""
import argparse
import random
import string

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torch.nn.utils.rnn import pad_sequence

ALPHABET = string.digits + string.ascii_lowercase
BLANK = 0
CHAR2IDX = {ch: i + 1 for i, ch in enumerate(ALPHABET)}
IDX2CHAR = {i: ch for ch, i in CHAR2IDX.items()}


class Config:
    img_height = 32
    num_train = 3200
    num_val = 64
    min_len = 3
    max_len = 10
    batch_size = 32
    hidden_size = 128
    lr = 1e-3
    max_norm = 5.0
    log_every = 10
    val_every = 100
    seed = 42


FONTS = {size: ImageFont.load_default(size=size) for size in range(18, 25)}


class TextLines:
    """Each sample is a word, drawn with a random size, place, angle, contrast and noise."""

    def __init__(self, size, config, seed):
        rng = random.Random(seed)
        self.config = config
        self.texts = []
        for _ in range(size):
            length = rng.randint(config.min_len, config.max_len)
            self.texts.append("".join(rng.choice(ALPHABET) for _ in range(length)))
        self.targets = [torch.tensor([CHAR2IDX[ch] for ch in text]) for text in self.texts]
        self.boxes = {}

    def box(self, text, size):
        if (text, size) not in self.boxes:
            self.boxes[text, size] = FONTS[size].getbbox(text)
        return self.boxes[text, size]

    def render(self, text):
        size = random.randint(18, 24)
        left, top, right, bottom = self.box(text, size)
        width, height = int(right - left) + 16, int(bottom - top) + 12
        image = Image.new("L", (width, height), color=255)
        x, y = random.randint(2, 14), random.randint(2, 10)
        ImageDraw.Draw(image).text((x - left, y - top), text, font=FONTS[size], fill=random.randint(0, 110))
        image = image.rotate(random.uniform(-3, 3), resample=Image.BILINEAR, fillcolor=255)
        new_width = max(int(width * self.config.img_height / height), 24)
        return np.asarray(image.resize((new_width, self.config.img_height), Image.BILINEAR))

    def batch(self, indices):
        images = [self.render(self.texts[i]) for i in indices]
        height, widths = self.config.img_height, [image.shape[1] for image in images]
        noise = np.random.normal(0, 12, size=height * sum(widths)).astype(np.float32)
        padded = np.full((len(images), height, max(widths)), 255, np.float32)
        start = 0
        for row, image, width in zip(padded, images, widths):
            end = start + height * width
            np.add(image, noise[start:end].reshape(height, width), out=row[:, :width])
            start = end
        np.clip(padded, 0, 255, out=padded)
        padded = torch.from_numpy(padded).mul_(2 / 255).sub_(1).unsqueeze(1)
        targets = [self.targets[i] for i in indices]
        return (padded, torch.tensor(widths), pad_sequence(targets, batch_first=True, padding_value=BLANK),
                torch.tensor([len(t) for t in targets]))

    def batches(self, shuffle):
        torch.empty((), dtype=torch.int64).random_()   # a DataLoader's two draws: its base seed, its sampler's
        order = torch.arange(len(self.texts))
        if shuffle:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
            order = torch.randperm(len(self.texts), generator=generator)
        for indices in order.split(self.config.batch_size):
            yield self.batch(indices.tolist())


class BidirectionalLSTM(nn.Module):
    def __init__(self, n_in, n_hidden, n_out):
        super().__init__()
        self.rnn = nn.LSTM(n_in, n_hidden, bidirectional=True)
        self.embedding = nn.Linear(n_hidden * 2, n_out)

    def forward(self, x):
        recurrent, _ = self.rnn(x)
        t, b, h = recurrent.size()
        output = self.embedding(recurrent.view(t * b, h))
        return output.view(t, b, -1)


class CRNN(nn.Module):
    def __init__(self, num_classes, hidden_size):
        super().__init__()
        # ReLU after the pooling: it is monotone, and there is less of it
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.MaxPool2d(2, 2), nn.ReLU(True),       # 16 x W/2
            nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2, 2), nn.ReLU(True),      # 8 x W/4
            nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(True),
            nn.Conv2d(128, 128, 3, padding=1),
            nn.MaxPool2d((2, 1), (2, 1)), nn.ReLU(True),                             # 4 x W/4
            nn.Conv2d(128, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU(True),
            nn.Conv2d(256, 256, 3, padding=1), nn.BatchNorm2d(256),
            nn.MaxPool2d((4, 1), (4, 1)), nn.ReLU(True),                             # 1 x W/4
        )
        self.rnn = nn.Sequential(
            BidirectionalLSTM(256, hidden_size, hidden_size),
            BidirectionalLSTM(hidden_size, hidden_size, num_classes),
        )

    def forward(self, x):
        features = self.cnn(x)                    # B, C, 1, T
        features = features.squeeze(2).permute(2, 0, 1).contiguous()   # T, B, C
        return self.rnn(features)                 # T, B, num_classes


def greedy_decode(log_probs, lengths):
    texts = []
    best = log_probs.argmax(2).transpose(0, 1)
    for row, length in zip(best, lengths):
        chars, previous = [], BLANK
        for idx in row[:length].tolist():
            if idx != previous and idx != BLANK:
                chars.append(IDX2CHAR[idx])
            previous = idx
        texts.append("".join(chars))
    return texts


class Trainer:
    def __init__(self, config):
        self.config = config
        self.train_lines = TextLines(config.num_train, config, config.seed)
        self.val_lines = TextLines(config.num_val, config, config.seed + 1)
        self.model = CRNN(len(ALPHABET) + 1, config.hidden_size).to(memory_format=torch.channels_last)
        self.criterion = nn.CTCLoss(blank=BLANK, zero_infinity=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr, fused=True)
        self.step = 0
        self.losses = []

    def train_step(self, batch):
        images, widths, targets, target_lengths = batch
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(images)
        log_probs = logits.float().log_softmax(2)
        input_lengths = widths // 4
        loss = self.criterion(log_probs, targets, input_lengths, target_lengths)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_norm)
        self.optimizer.step()
        return loss.detach()

    @torch.inference_mode()
    def validate(self):
        self.model.eval()
        correct, total, count, loss_sum = 0, 0, 0, 0.0
        for images, widths, targets, target_lengths in self.val_lines.batches(shuffle=False):
            with torch.autocast("cpu", torch.bfloat16):
                logits = self.model(images)
            log_probs = logits.float().log_softmax(2)
            loss = self.criterion(log_probs, targets, widths // 4, target_lengths)
            loss_sum += loss.item()
            count += 1
            predictions = greedy_decode(log_probs, (widths // 4).tolist())
            for pred, target, length in zip(predictions, targets, target_lengths):
                truth = "".join(IDX2CHAR[i] for i in target[:length].tolist())
                correct += int(pred == truth)
                total += 1
        self.model.train()
        print(f"validation loss {loss_sum / count:.4f} accuracy {correct / total:.4f}", flush=True)

    def fit(self, max_steps):
        self.model.train()
        while self.step < max_steps:
            for batch in self.train_lines.batches(shuffle=True):
                loss = self.train_step(batch)
                self.losses.append(loss)
                self.step += 1
                if self.step % self.config.log_every == 0:
                    print(f"step {self.step} loss {loss.item():.4f}", flush=True)
                if self.step % self.config.val_every == 0:
                    self.validate()
                if self.step >= max_steps:
                    break
        last = self.losses[-50:]
        print(f"mean loss of the last {len(last)} steps {sum(last).item() / len(last):.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    config = Config()
    random.seed(config.seed)
    np.random.seed(config.seed)
    torch.manual_seed(config.seed)
    Trainer(config).fit(args.steps)
