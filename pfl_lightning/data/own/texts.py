"""Texts as tokens: inputs of a classifier, or sequences whose next tokens are learned."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pfl_lightning.data.own.raw_data import Array, RawData, plain_array
from pfl_lightning.data.own.targets import Targets
from pfl_lightning.errors import PflError
from pfl_lightning.models.hugging_face import loading
from pfl_lightning.tasks import NO_TARGET, NextToken

KEY = "data.tokenizer"
Window = tuple[list[int], list[int]]  # tokens, and the target of each of them


def load_tokenizer(name: str) -> Any:
    """A tokenizer of ``transformers``.

    Args:
        name: Its folder, or its name on huggingface.co.

    Raises:
        PflError: If it cannot be loaded.
    """
    with loading(name, KEY):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def tokenize(splits: Sequence[Any], name: str, length: int) -> tuple[list[Array], int]:
    """Texts as the tokens of a network's own tokenizer.

    Args:
        splits: The training texts, and those for testing if there are any, ``[samples]`` each, or ``[samples, 2]`` for
            pairs of texts.
        name: Folder of the tokenizer, or its name on huggingface.co.
        length: Number of tokens of each text or pair: longer ones are cut, of a pair the longer text first, shorter
            ones are padded.

    Returns:
        The tokens of each split, ``[samples, length]``, and the size of the vocabulary.

    Raises:
        PflError: If the tokenizer cannot be loaded, or cannot pad.
        ValueError: If an input is no text, or a pair has an empty one.
    """
    tokenizer = load_tokenizer(name)
    if tokenizer.pad_token_id is None:
        raise PflError(f"{KEY} must have a padding token, got '{name}'")
    options = {"padding": "max_length", "truncation": True, "max_length": length}
    tokens = [tokenizer(*_texts(split), **options)["input_ids"] for split in splits]
    return [np.array(split, np.int64) for split in tokens], len(tokenizer)


def next_tokens(splits: Sequence[RawData], name: str, length: int) -> tuple[list[RawData], Targets]:
    """Sequences of tokens, of which those of the targets are learned; those of the inputs stand before them.

    A sequence begins with the tokenizer's token for that, if it adds one, and ends with its token for the end of a
    text, if it has one. With inputs, which are prompts, a sequence that is too long is cut, and left out if nothing of
    its target is left; without, it becomes several windows, in which each token is a target once.

    Args:
        splits: The training samples, and those for testing if there are any; inputs are texts or None, targets texts.
        name: Folder of the tokenizer, or its name on huggingface.co.
        length: The most tokens of a window.

    Returns:
        The splits with a sample for each window, inputs and targets ``[windows, tokens]``, and what the targets are.

    Raises:
        PflError: If the tokenizer cannot be loaded.
        ValueError: If a sample is no text, a target is empty, or a split has no target.
    """
    tokenizer = load_tokenizer(name)
    sequences = [_sequences(split, tokenizer) for split in splits]
    has_prompts = splits[0].inputs is not None
    windows = [[_windows(*sequence, length, has_prompts) for sequence in split] for split in sequences]
    if not all(any(split) for split in windows):
        raise ValueError(f"no prompt leaves room for a target within data.max_length {length}")
    width = max(len(inputs) for split in windows for sample in split for inputs, _ in sample)
    made = []
    for split, samples in zip(splits, windows, strict=True):
        rows = [window for sample in samples for window in sample]
        inputs = _filled([tokens for tokens, _ in rows], width, tokenizer.pad_token_id or 0)  # after all targets
        targets = _filled([tokens for _, tokens in rows], width, NO_TARGET)
        clients = split.clients
        if clients is not None:
            clients = np.repeat(plain_array(clients, "clients", kinds="biufU"), [*map(len, samples)], axis=0)
        made.append(RawData(inputs, targets, clients, layout="NL"))
    cut = sum(len(tokens) > length + 1 for split in sequences for tokens, _ in split)
    texts = _understood([sample for split in windows for sample in split], cut, has_prompts, length, tokenizer)
    made[0] = made[0]._replace(notes={**splits[0].notes, "texts": texts})
    task = NextToken().sized(len(tokenizer))
    count = sum(int((split.targets != NO_TARGET).sum()) for split in made)
    tensors = [torch.from_numpy(split.targets) for split in made]
    return made, Targets(tensors, task, (), f"{task.goal}; {count:,} targets")


def _sequences(split: RawData, tokenizer: Any) -> list[tuple[list[int], int]]:
    """The tokens of each sample, and how many of them stand before the first that has a target."""
    texts = _plain_texts(split.targets, "targets")
    prompts = None if split.inputs is None else _plain_texts(split.inputs, "inputs")
    for name, values in (("inputs", prompts), ("clients", split.clients)):
        if values is not None and len(values) != len(texts):
            raise ValueError(f"{len(values)} {name} with {len(texts)} targets")
    if "" in (stripped := [text.strip() for text in texts]):
        raise ValueError(f"targets must be texts, got an empty one in sample {stripped.index('')}")
    begin = [tokenizer.bos_token_id]
    begin = begin if tokenizer("")["input_ids"][:1] == begin else []
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    options = {"add_special_tokens": False, "verbose": False}  # a window is never longer than the network takes
    answers = tokenizer(texts, **options)["input_ids"]
    if prompts is None:
        return [(begin + answer + end, 0) for answer in answers]
    starts = [begin + prompt for prompt in tokenizer(prompts, **options)["input_ids"]]
    return [(start + answer + end, max(len(start) - 1, 0)) for start, answer in zip(starts, answers, strict=True)]


def _windows(tokens: list[int], before: int, length: int, is_cut: bool) -> list[Window]:
    """The windows of a sequence: one, perhaps cut, or as many as it has; none if nothing has a target."""
    targets = [NO_TARGET] * before + tokens[before + 1 :]
    last = length if is_cut else len(targets)
    if before >= min(last, len(targets)):
        return []
    ends = [(place, min(place + length, len(targets))) for place in range(0, min(last, len(targets)), length)]
    return [(tokens[place:end], targets[place:end]) for place, end in ends]


def _filled(rows: list[list[int]], width: int, value: int) -> Array:
    return np.array([row + [value] * (width - len(row)) for row in rows], np.int64)


def _understood(samples: list[list[Window]], cut: int, has_prompts: bool, length: int, tokenizer: Any) -> str:
    """What became of the texts, for people."""
    count = sum(map(len, samples))
    ends = f"; each ends with {tokenizer.eos_token}" if tokenizer.eos_token else ""
    if not has_prompts:
        return f"{len(samples):,} in {count:,} windows of at most {length} tokens{ends}"
    left_out = len(samples) - count
    cuts = f"; cut to {length} tokens: {cut - left_out:,}" * (cut > left_out)
    without = f"; left out, as the prompt leaves no room for a target: {left_out:,}" * bool(left_out)
    return f"{len(samples):,} with prompts{ends}{cuts}{without}"


def _plain_texts(values: Any, name: str) -> list[str]:
    if isinstance(values, str) or np.ndim(values) != 1:
        raise ValueError(f"{name} must be one text each with data.target_type: tokens")
    return [_text(value, name) for value in values]


def _texts(samples: Any) -> list[list[str]]:
    """The texts of all samples, or the first and the second ones of pairs."""
    if np.ndim(samples) < 2:
        return [[*map(_text, samples)]]
    if np.shape(samples)[1] != 2:
        raise ValueError(f"inputs must be texts or pairs of texts with data.tokenizer, got {np.shape(samples)[1]} each")
    pairs = [[*map(_text, column)] for column in zip(*samples, strict=True)]
    for column in pairs:
        if not all(map(str.strip, column)):
            raise ValueError("inputs must be pairs of texts with data.tokenizer, got an empty one")
    return pairs


def _text(value: Any, name: str = "inputs") -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be texts with data.tokenizer, got {value} ({type(value).__name__})")
    return str(value)
