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


END = 256  # token of the end of a text, behind those of bytes


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


def write_language_models(folder: Path) -> None:
    """Write ``llama``, ``llama-tied`` and ``gpt2``, with a tokenizer of bytes that cannot pad.

    ``llama`` has two tokens more than the tokenizer. The output layers of the others are tied to the embeddings.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    vocabulary = {byte: number for number, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    of_bytes = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "initializer_range": 0.2, **heads}
    special = {"bos_token_id": None, "eos_token_id": END}
    llama = {**sizes, **special, "max_position_embeddings": 32}
    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "initializer_range": 0.2, **special}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, network in (
            ("llama", LlamaForCausalLM(LlamaConfig(**llama, vocab_size=END + 3))),
            ("llama-tied", LlamaForCausalLM(LlamaConfig(**llama, vocab_size=END + 1, tie_word_embeddings=True))),
            ("gpt2", GPT2LMHeadModel(GPT2Config(**gpt2, vocab_size=END + 1))),
        ):
            network.save_pretrained(folder / name)
            of_bytes.save_pretrained(folder / name)
