# needs: transformers accelerate

# %%
import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

torch.manual_seed(3)
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2)
model = GPT2LMHeadModel(config)


# %%
class Counting(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, index):
        tokens = (torch.arange(16) * (1 + index % 4) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


# %%
class PrintingTrainer(Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print(self.state.global_step, loss.item())
        return loss


arguments = TrainingArguments(
    output_dir="out",
    max_steps=12,
    per_device_train_batch_size=8,
    report_to="none",
    disable_tqdm=True,
    logging_strategy="no",
    save_strategy="no",
    use_cpu=True,
)

# %%
trainer = PrintingTrainer(model=model, args=arguments, train_dataset=Counting())
trainer.remove_callback(PrinterCallback)  # it prints how long that took
print(trainer.train().global_step)
