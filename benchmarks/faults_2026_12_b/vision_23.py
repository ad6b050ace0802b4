"""ViT on coloured synthetic shapes with the Hugging Face Trainer."""
import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

NAMES = ["disc", "square", "cross", "ring", "stripes"]


def draw(rng, size=48):
    yy, xx = np.mgrid[:size, :size]
    label = int(rng.integers(len(NAMES)))
    cy, cx = rng.integers(16, size - 16, 2)
    r = int(rng.integers(8, 14))
    d2 = (yy - cy) ** 2 + (xx - cx) ** 2
    if label == 0:
        m = d2 < r * r
    elif label == 1:
        m = (abs(yy - cy) < r) & (abs(xx - cx) < r)
    elif label == 2:
        m = ((abs(yy - cy) < 3) & (abs(xx - cx) < r)) | ((abs(xx - cx) < 3) & (abs(yy - cy) < r))
    elif label == 3:
        m = (d2 < r * r) & (d2 > (r - 4) ** 2)
    else:
        m = (abs(yy - cy) < r) & (abs(xx - cx) < r) & ((xx // 3) % 2 == 0)
    img = rng.normal(0, 0.2, (3, size, size))
    img[:, m] += rng.uniform(0.3, 1.0, (3, 1))
    return img.astype(np.float32), label


class Shapes(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        pairs = [draw(rng) for _ in range(n)]
        self.x = torch.from_numpy(np.stack([p[0] for p in pairs]))
        self.y = [p[1] for p in pairs]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"pixel_values": self.x[i], "labels": self.y[i]}


def accuracy(pred):
    return {"accuracy": float((pred.predictions.argmax(-1) == pred.label_ids).mean())}


def build_model():
    config = ViTConfig(
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=384,
        image_size=48,
        patch_size=6,
        num_labels=len(NAMES),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(NAMES)),
        label2id={n: i for i, n in enumerate(NAMES)},
    )
    return ViTForImageClassification(config)


def main():
    set_seed(42)
    args = TrainingArguments(
        output_dir="/tmp/vit_shapes",
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        max_steps=200,
        learning_rate=5e-4,
        warmup_steps=20,
        lr_scheduler_type="cosine",
        weight_decay=0.05,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        eval_strategy="steps",
        eval_steps=100,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=42,
    )
    trainer = Trainer(
        model=build_model(),
        args=args,
        train_dataset=Shapes(800, 0),
        eval_dataset=Shapes(96, 1),
        compute_metrics=accuracy,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
