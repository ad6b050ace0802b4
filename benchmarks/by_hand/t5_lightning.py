"""Fine-tuning T5 for summarisation with Lightning, after Suraj Patil's "exploring-T5" notebook (T5FineTuner).

Articles and summaries are made up, the tokenizer is trained on them, a small T5 starts from scratch.
"""
import argparse

import lightning.pytorch as pl
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration, get_linear_schedule_with_warmup

args_dict = dict(
    max_input_length=192,
    max_output_length=48,
    learning_rate=1e-3,
    weight_decay=0.0,
    adam_epsilon=1e-8,
    warmup_steps=20,
    train_batch_size=8,
    max_grad_norm=1.0,
    seed=42,
)


def make_articles(n, seed=0):
    """(article, highlights): the highlights repeat the topic words of the article's first sentences."""
    rng = np.random.default_rng(seed)
    pieces = "al ba cen dra el for gan hi in jo kel lan mor net or pra qu rin sta tur um ver wes xan yl zor".split()
    words = sorted({"".join(rng.choice(pieces, size=rng.integers(1, 5))) for _ in range(8000)})
    rng.shuffle(words)
    words = np.array(words)
    freq = 1.0 / np.arange(4, 4 + len(words))
    freq /= freq.sum()
    out = []
    for _ in range(n):
        topic = rng.choice(len(words), size=6)
        length = int(np.clip(rng.lognormal(np.log(65), 0.6), 12, 600))
        ids = rng.choice(len(words), size=length, p=freq)
        hit = rng.random(length) < 0.2
        ids[hit] = rng.choice(topic, size=int(hit.sum()))
        n_out = int(np.clip(rng.lognormal(np.log(12), 0.4), 4, 60))
        summary = rng.choice(len(words), size=n_out, p=freq)
        hit = rng.random(n_out) < 0.5
        summary[hit] = rng.choice(topic, size=int(hit.sum()))
        article = [" ".join(words[ids[i:i + 14]]).capitalize() + "." for i in range(0, length, 14)]
        out.append((" ".join(article), " ".join(words[summary]).capitalize() + "."))
    return out


def get_tokenizer(data):
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=6000, special_tokens=["<pad>", "</s>", "<unk>"], show_progress=False)
    tok.train_from_iterator((text for pair in data for text in pair), trainer)
    tok.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>",
                                                       special_tokens=[("</s>", tok.token_to_id("</s>"))])
    return PreTrainedTokenizerFast(tokenizer_object=tok, unk_token="<unk>", pad_token="<pad>", eos_token="</s>",
                                   model_input_names=["input_ids", "attention_mask"])


class CNNDataset(Dataset):
    def __init__(self, tokenizer, data, max_input_length, max_output_length):
        self.tokenizer, self.data = tokenizer, data
        self.max_input_length, self.max_output_length = max_input_length, max_output_length
        self.inputs = []
        self.targets = []
        self._build()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        source_ids = self.inputs[index]["input_ids"].squeeze()
        target_ids = self.targets[index]["input_ids"].squeeze()

        src_mask = self.inputs[index]["attention_mask"].squeeze()  # might need to squeeze
        target_mask = self.targets[index]["attention_mask"].squeeze()  # might need to squeeze

        return {"source_ids": source_ids, "source_mask": src_mask, "target_ids": target_ids,
                "target_mask": target_mask}

    def _build(self):
        for article, highlights in self.data:
            input_ = "summarize: " + article
            tokenized_inputs = self.tokenizer([input_], max_length=self.max_input_length, padding="max_length",
                                              truncation=True, return_tensors="pt")
            tokenized_targets = self.tokenizer([highlights], max_length=self.max_output_length, padding="max_length",
                                               truncation=True, return_tensors="pt")
            self.inputs.append(tokenized_inputs)
            self.targets.append(tokenized_targets)


def get_model(tokenizer):
    config = T5Config(vocab_size=len(tokenizer), d_model=192, d_kv=48, num_heads=4, d_ff=768, num_layers=3,
                      dropout_rate=0.1, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
                      decoder_start_token_id=tokenizer.pad_token_id)
    return T5ForConditionalGeneration(config)


class T5FineTuner(pl.LightningModule):
    def __init__(self, model, tokenizer, train_data, total_steps, **hparams):
        super().__init__()
        self.save_hyperparameters(hparams)
        self.model = model
        self.tokenizer = tokenizer
        self.train_data = train_data
        self.total_steps = total_steps

    def forward(self, input_ids, attention_mask=None, decoder_attention_mask=None, labels=None):
        return self.model(input_ids, attention_mask=attention_mask, decoder_attention_mask=decoder_attention_mask,
                          labels=labels)

    def _step(self, batch):
        labels = batch["target_ids"]
        labels[labels[:, :] == self.tokenizer.pad_token_id] = -100

        outputs = self(input_ids=batch["source_ids"], attention_mask=batch["source_mask"], labels=labels,
                       decoder_attention_mask=batch["target_mask"])
        return outputs.loss

    def training_step(self, batch, batch_idx):
        loss = self._step(batch)
        self.log("train_loss", loss)
        if (self.global_step + 1) % 10 == 0 or self.global_step == 0:
            print(f"step {self.global_step + 1} loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self):
        "Prepare optimizer and schedule (linear warmup and decay)"
        no_decay = ["bias", "layer_norm.weight"]
        optimizer_grouped_parameters = [
            {"params": [p for n, p in self.model.named_parameters() if not any(nd in n for nd in no_decay)],
             "weight_decay": self.hparams.weight_decay},
            {"params": [p for n, p in self.model.named_parameters() if any(nd in n for nd in no_decay)],
             "weight_decay": 0.0},
        ]
        optimizer = AdamW(optimizer_grouped_parameters, lr=self.hparams.learning_rate, eps=self.hparams.adam_epsilon)
        scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=self.hparams.warmup_steps,
                                                    num_training_steps=self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def train_dataloader(self):
        train_dataset = CNNDataset(self.tokenizer, self.train_data, self.hparams.max_input_length,
                                   self.hparams.max_output_length)
        return DataLoader(train_dataset, batch_size=self.hparams.train_batch_size, drop_last=True, shuffle=True,
                          num_workers=0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=240)
    args = parser.parse_args()
    pl.seed_everything(args_dict["seed"])

    train_data = make_articles(1600)
    tokenizer = get_tokenizer(train_data)
    model = T5FineTuner(get_model(tokenizer), tokenizer, train_data, args.steps, **args_dict)
    trainer = pl.Trainer(max_steps=args.steps, gradient_clip_val=args_dict["max_grad_norm"], accelerator="cpu",
                         logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(model)


if __name__ == "__main__":
    main()
