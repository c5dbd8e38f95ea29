from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.errors import PflError
from pfl_lightning.models.hugging_face import loading

KEY = "data.tokenizer"


def tokenize(splits: Sequence[Any], name: str, length: int) -> tuple[list[NDArray[np.int64]], int]:
    """Texts as the tokens of a network's own tokenizer.

    Args:
        splits: The training texts, and those for testing if there are any, ``[samples]`` each.
        name: Folder of the tokenizer, or its name on huggingface.co.
        length: Number of tokens of each text: longer ones are cut, shorter ones padded.

    Returns:
        The tokens of each split, ``[samples, length]``, and the size of the vocabulary.

    Raises:
        PflError: If the tokenizer cannot be loaded, or cannot pad.
        ValueError: If an input is no text.
    """
    with loading(name, KEY):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        raise PflError(f"{KEY}: '{name}' has no padding token; allowed: a tokenizer that has one")
    texts = [[*map(_text, split)] for split in splits]
    cut = {"padding": "max_length", "truncation": True, "max_length": length}
    return [np.array(tokenizer(each, **cut)["input_ids"], np.int64) for each in texts], len(tokenizer)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the input {value} of the type {type(value).__name__} is no text for data.tokenizer")
    return str(value)
