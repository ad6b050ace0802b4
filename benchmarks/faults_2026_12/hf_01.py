import os
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

CONTEXT = 64


class SourceCode(Dataset):
    def __init__(self, files=("argparse.py", "inspect.py")):
        folder = Path(os.__file__).parent
        raw = b"".join((folder / f).read_bytes() for f in files)
        ids = torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()
        self.rows = ids[: len(ids) // CONTEXT * CONTEXT].view(-1, CONTEXT)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


class Teller(TrainerCallback):
    def __init__(self, prompt=b"def main("):
        self.prompt = torch.tensor([list(prompt)])
        self.texts = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        model.eval()
        out = model.generate(
            self.prompt,
            attention_mask=torch.ones_like(self.prompt),
            max_new_tokens=28,
            do_sample=True,
            pad_token_id=0,
        )
        model.train()
        self.texts.append(bytes(out[0].tolist()).decode("latin-1"))


def main():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=160,
        n_layer=3,
        n_head=5,
        bos_token_id=0,
        eos_token_id=0,
    )
    teller = Teller()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=120,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            logging_steps=30,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=args,
            train_dataset=SourceCode(),
            callbacks=[teller],
        )
        trainer.train()
    print(repr(teller.texts[-1]))


if __name__ == "__main__":
    main()
