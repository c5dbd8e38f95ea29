"""Tiny networks of ``transformers`` in folders, as ``save_pretrained`` writes them; nothing is downloaded."""

from pathlib import Path

import torch

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "very"]
SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "num_labels": 5,
    "initializer_range": 0.5,
}


def write_networks(folder: Path) -> None:
    """Write ``vit``, ``bert`` with a tokenizer, and ``bert-words``, a network that has guessed words."""
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertForSequenceClassification,
        BertTokenizerFast,
        ViTConfig,
        ViTForImageClassification,
        ViTImageProcessor,
    )

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images = ViTConfig(**SMALL, image_size=16, patch_size=8, num_channels=3)
        texts = BertConfig(**SMALL, vocab_size=len(WORDS), max_position_embeddings=6)
        for name, network in (
            ("vit", ViTForImageClassification(images)),
            ("bert", BertForSequenceClassification(texts)),
            ("bert-words", BertForMaskedLM(texts)),
        ):
            network.save_pretrained(folder / name)
    moments = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
    ViTImageProcessor(size={"height": 16, "width": 16}, **moments).save_pretrained(folder / "vit")
    BertTokenizerFast(vocab={word: number for number, word in enumerate(WORDS)}).save_pretrained(folder / "bert")
