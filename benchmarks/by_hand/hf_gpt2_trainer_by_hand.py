import math
import os
import random

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(42)

# ---------------------------------------------------------------- data: sentences from a little grammar
BLOCK = 128
rng = random.Random(1)
SUBJ = ["the cat", "a dog", "my neighbour", "the old captain", "every student", "the river", "our teacher", "a small bird"]
VERB = ["sees", "follows", "likes", "forgets", "paints", "answers", "remembers", "hides"]
OBJ = ["the house", "a letter", "the green door", "some bread", "the last train", "a song", "two boats", "the garden"]
ADV = ["quickly", "in the morning", "without a word", "again", "every winter", "near the bridge", "at night"]


def sentence():
    s = f"{rng.choice(SUBJ)} {rng.choice(VERB)} {rng.choice(OBJ)}"
    if rng.random() < 0.6:
        s += " " + rng.choice(ADV)
    if rng.random() < 0.3:
        s += f" and counts {rng.randint(0, 99)} plus {rng.randint(0, 9)}"
    return s + ". "


text = "".join(sentence() for _ in range(20000))
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in text], dtype=torch.long)


class BlockDataset(Dataset):
    def __init__(self, ids, block):
        self.ids, self.block = ids, block

    def __len__(self):
        return len(self.ids) // self.block

    def __getitem__(self, i):
        x = self.ids[i * self.block:(i + 1) * self.block]
        return {"input_ids": x, "labels": x.clone()}


split = int(0.95 * len(ids))
train_ds = BlockDataset(ids[:split], BLOCK)
eval_ds = torch.utils.data.Subset(BlockDataset(ids[split:], BLOCK), range(64))
print(f"{len(text)} characters, vocabulary {len(chars)}, {len(train_ds)} training blocks")

# ---------------------------------------------------------------- model
config = GPT2Config(
    vocab_size=len(chars), n_positions=BLOCK, n_embd=256, n_layer=6, n_head=8,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False,
    activation_function="gelu_pytorch_tanh",
)
model = GPT2LMHeadModel(config)
print(f"{model.num_parameters() / 1e6:.2f}M parameters")

# ---------------------------------------------------------------- training
args = TrainingArguments(
    output_dir="gpt2-grammar",
    max_steps=40,
    per_device_train_batch_size=int(os.environ.get("MB", 64)),
    gradient_accumulation_steps=64 // int(os.environ.get("MB", 64)),
    use_cpu=True,
    bf16=os.environ.get("BF", "1") == "1",
    torch_compile=os.environ.get("CO", "0") == "1",
    per_device_eval_batch_size=16,
    learning_rate=1e-3,
    weight_decay=0.1,
    warmup_steps=10,
    lr_scheduler_type="cosine",
    logging_steps=5,
    eval_strategy="steps",
    eval_steps=20,
    save_strategy="no",
    report_to="none",
    seed=42,
)
trainer = Trainer(model=model, args=args, train_dataset=train_ds, eval_dataset=eval_ds)
trainer.train()
metrics = trainer.evaluate()
print(f"perplexity {math.exp(metrics['eval_loss']):.3f}")
trainer.save_model("gpt2-grammar")

model.eval()
prompt = torch.tensor([[stoi[c] for c in "the cat "]])
for _ in range(40):
    with torch.no_grad():
        nxt = model(prompt).logits[:, -1].argmax(-1, keepdim=True)
    prompt = torch.cat([prompt, nxt], dim=1)
print("".join(chars[i] for i in prompt[0].tolist()))
