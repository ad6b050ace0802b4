"""Fine-tuning with custom datasets: sequence classification of IMDb reviews with the Trainer.

After the Hugging Face guide "Fine-tuning with custom datasets" (IMDb part).  No downloads here: the reviews
are made up, the tokenizer is trained on them and DistilBERT starts from scratch.
"""
import argparse

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast, Trainer,
                          TrainingArguments, set_seed)

SYLLABLES = "ba co da fe gi ho ju ka lo me ni or pa qui re so ta un va wi xe yo zu ing er al tion ment ly".split()


def make_words(n, rng):
    words = set()
    while len(words) < n:
        words.add("".join(rng.choice(SYLLABLES, size=rng.integers(1, 5))))
    return np.array(sorted(words))


def read_imdb_split(n, seed=0):
    """Stands in for reading aclImdb/train/{pos,neg}/*.txt."""
    rng = np.random.default_rng(seed)
    words = make_words(6000, rng)
    rng.shuffle(words)
    freq = 1.0 / np.arange(3, 3 + len(words)) ** 1.05
    freq /= freq.sum()
    moods = [words[500:650], words[650:800]]  # words that a bad and a good review like to use
    texts, labels = [], []
    for i in range(n):
        label = int(rng.integers(2))
        length = int(np.clip(rng.lognormal(mean=4.35, sigma=0.55), 10, 900))
        text = rng.choice(words, size=length, p=freq)
        mood = rng.random(length) < 0.06
        side = label if rng.random() < 0.93 else 1 - label
        text[mood] = rng.choice(moods[side], size=int(mood.sum()))
        sentences, k = [], 0
        while k < length:
            m = int(rng.integers(5, 20))
            sentences.append(" ".join(text[k:k + m]).capitalize() + rng.choice([".", ".", "!", "?"]))
            k += m
        texts.append(" ".join(sentences))
        labels.append(label)
    return texts, labels


def get_tokenizer(texts):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=6000, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                                        show_progress=False)
    tok.train_from_iterator(texts, trainer)
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tok.token_to_id("[CLS]")), ("[SEP]", tok.token_to_id("[SEP]"))])
    return PreTrainedTokenizerFast(tokenizer_object=tok, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
                                   sep_token="[SEP]", mask_token="[MASK]", model_max_length=256,
                                   model_input_names=["input_ids", "attention_mask"])


class IMDbDataset(torch.utils.data.Dataset):
    def __init__(self, encodings, labels):
        self.encodings = encodings
        self.labels = labels

    def __getitem__(self, idx):
        item = {key: torch.tensor(val[idx]) for key, val in self.encodings.items()}
        item['labels'] = torch.tensor(self.labels[idx])
        return item

    def __len__(self):
        return len(self.labels)


def get_model(tokenizer):
    config = DistilBertConfig(vocab_size=len(tokenizer), max_position_embeddings=256, dim=192, n_layers=3, n_heads=6,
                              hidden_dim=768, pad_token_id=tokenizer.pad_token_id, num_labels=2)
    return DistilBertForSequenceClassification(config)


def get_training_args(steps):
    return TrainingArguments(
        output_dir='./results',          # output directory
        max_steps=steps,                 # total number of training steps
        per_device_train_batch_size=16,  # batch size per device during training
        warmup_steps=30,                 # number of warmup steps for learning rate scheduler
        learning_rate=3e-4,
        weight_decay=0.01,               # strength of weight decay
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=180)
    args = parser.parse_args()
    set_seed(42)

    texts, labels = read_imdb_split(2000)
    train_texts, val_texts, train_labels, val_labels = train_test_split(texts, labels, test_size=.2, random_state=0)

    tokenizer = get_tokenizer(train_texts)
    train_encodings = tokenizer(train_texts, truncation=True, padding=True)
    train_dataset = IMDbDataset(train_encodings, train_labels)

    model = get_model(tokenizer)
    trainer = Trainer(
        model=model,                             # the instantiated Transformers model to be trained
        args=get_training_args(args.steps),      # training arguments, defined above
        train_dataset=train_dataset,             # training dataset
    )
    trainer.train()


if __name__ == "__main__":
    main()
