"""Networks of Hugging Face's ``transformers``, which take a batch of images or tokens and return logits."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_lightning.errors import PflError, one_line

KEY = "model.network"
REMEDY = (
    "allowed: a folder that save_pretrained has written, or a name on huggingface.co that is in the cache or online"
)
INSTALL = 'uv pip install "pfl_lightning[huggingface]"'


class HuggingFaceModel(nn.Module):
    """A network of Hugging Face's ``transformers``: a classifier of images for images, one of texts for tokens.

    For the next token (``NextToken``) it is a causal language model instead, whose output layer stays frozen beside
    adapters. It has the weights of a folder, in torch's default float type, and a new head if the folder has one for
    other classes. Images are resized to the size that the network takes, and grey ones repeated for its channels. For
    classes, tokens that are padding by the network's ``config.json`` are masked, and those behind the first separator
    of the folder's tokenizer are the second text of a pair. Needs ``uv pip install "pfl_lightning[huggingface]"``.

    Args:
        input_shape: Channels, height and width of images; or of tokens, how many, and the size of the vocabulary.
        num_classes: Number of classes, or of tokens.
        name: Folder that ``save_pretrained`` has written, or a name on huggingface.co, such as
            ``google/vit-base-patch16-224``, which is downloaded unless it is in the cache of ``transformers``.
        dropout: Whether to keep the dropout of ``config.json``; with that of attention, clients run one after
            another.
        normalize: Shift and scale pixels from 0 to 1 as the folder's ``preprocessor_config.json`` says. Default: that
            has been done, such as by ``data.standardize``.
        output_shape: Number of classes, or ``(length, tokens)`` for the next token at every step.

    Attributes:
        pretrained: Names of the tensors that the folder has.

    Raises:
        PflError: If the library is not installed, the folder cannot be loaded, or the inputs do not fit.
    """

    def __new__(
        cls,
        input_shape: tuple[int, ...],
        num_classes: int,
        name: str,
        dropout: bool = True,
        normalize: bool = False,
        output_shape: tuple[int, ...] = (),
    ) -> Any:
        """Load a network of the library's own class, which takes the data's batches."""
        if len(input_shape) == 1:
            raise PflError(f"{KEY}: HuggingFaceModel takes images or tokens, got inputs of shape {input_shape}")
        with loading(name, f"{KEY}.name"):
            from transformers import (
                AutoConfig,
                AutoModelForCausalLM,
                AutoModelForImageClassification,
                AutoModelForSequenceClassification,
            )

            is_image = len(input_shape) == 3
            is_causal = not is_image and len(output_shape) == 2
            labels = {} if is_causal else {"num_labels": num_classes}
            config = AutoConfig.from_pretrained(name, **labels, trust_remote_code=False)
            if not is_image:
                _check_tokens(name, config, not is_causal, *input_shape)
            if not dropout:
                rates = {key for key, rate in config.to_dict().items() if "drop" in key and isinstance(rate, float)}
                config.update(dict.fromkeys(rates, 0.0))
            front: type[nn.Module] = _Tokens
            auto: Any = AutoModelForSequenceClassification
            if is_image:
                front, auto = _Images, AutoModelForImageClassification
            elif is_causal:
                front, auto = _NextTokens, AutoModelForCausalLM
            with torch.device("meta"):
                kind = type(auto.from_config(config, trust_remote_code=False))
            ours: Any = type(kind.__name__, (front, kind), {})
            model, info = ours.from_pretrained(
                name,
                config=config,
                dtype=torch.get_default_dtype(),
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
            processor = None
            if normalize:
                from transformers import AutoImageProcessor

                processor = AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
            elif front is _Tokens and getattr(config, "type_vocab_size", 1) > 1:
                processor = _tokenizer(name)
        model.pretrained = frozenset(model.state_dict()) - _random_tensors(name, model, info)
        model.prepare(input_shape, processor)
        return model


class _Images(nn.Module):
    """In front of a classifier of images: takes a batch of the data's images."""

    config: Any
    pixel_mean: Tensor
    pixel_deviation: Tensor

    def prepare(self, input_shape: tuple[int, ...], processor: Any) -> None:
        """Set the size that images are resized to, and the mean and deviation that they are normalized with, if any."""
        size = getattr(self.config, "image_size", None)
        wanted = (size, size) if isinstance(size, int) else tuple(size or input_shape[1:])
        self.resized = None if wanted == tuple(input_shape[1:]) else wanted
        self.normalizes = processor is not None
        if self.normalizes:
            for key, values in (("pixel_mean", processor.image_mean), ("pixel_deviation", processor.image_std)):
                self.register_buffer(key, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Any:
        """Images ``[batch, channels, height, width]`` to logits ``[batch, classes]``."""
        images = images.expand(-1, self.config.num_channels, -1, -1)
        if self.resized is not None:
            images = F.interpolate(images, self.resized, mode="bilinear", antialias=True)
        if self.normalizes:
            images = (images - self.pixel_mean) / self.pixel_deviation
        return super().forward(pixel_values=images, return_dict=True).logits


class _Tokens(nn.Module):
    """In front of a classifier of texts: takes a batch of the data's tokens."""

    config: Any
    dtype: torch.dtype

    separator: int | None = None
    takes_bias = False

    @torch.no_grad()
    def prepare(self, input_shape: tuple[int, ...], processor: Any) -> None:
        """Find out whether the network takes an additive attention mask; ``vmap`` cannot run code that makes one."""
        self.separator = getattr(processor, "sep_token_id", None)
        length, vocabulary = input_shape
        tokens = torch.randint(vocabulary, (2, length))
        tokens[1, length // 2 + 1 :] = self.config.pad_token_id
        self.eval()
        masked = self(tokens)
        unmasked = super().forward(input_ids=tokens, return_dict=True).logits
        _try_bias(self, tokens, masked, 0.01 * (unmasked - masked).abs().max())

    def forward(self, tokens: Tensor) -> Any:
        """Tokens ``[batch, length]`` to logits ``[batch, classes]``."""
        types = {}
        if self.separator is not None:
            separators = (tokens == self.separator).long()
            types["token_type_ids"] = (separators.cumsum(1) - separators).clamp(max=1)
        mask = tokens != self.config.pad_token_id
        if self.takes_bias:  # [batch, 1, queries, keys]
            bias = torch.zeros_like(mask, dtype=self.dtype).masked_fill(~mask, torch.finfo(self.dtype).min)
            mask = bias[:, None, None].expand(-1, 1, tokens.shape[1], -1)
        return super().forward(input_ids=tokens, attention_mask=mask, **types, return_dict=True).logits


class _NextTokens(nn.Module):
    """In front of a causal language model: takes a batch of the data's tokens, of which padding is the last.

    No token sees those behind it, so that padding needs no mask.
    """

    config: Any
    dtype: torch.dtype

    adapters_alone = True
    takes_bias = False
    vocabulary = 0

    @torch.no_grad()
    def prepare(self, input_shape: tuple[int, ...], _: None) -> None:
        """Find out whether the network takes an additive attention mask; ``vmap`` cannot run code that makes one.

        Raises:
            PflError: If a token sees those behind it.
        """
        length, self.vocabulary = input_shape
        self.eval()
        tokens = torch.randint(self.vocabulary, (2, length))
        usual = self(tokens)
        others = tokens.clone()
        others[:, length // 2 :] = (tokens[:, length // 2 :] + 1) % self.vocabulary
        close = 1e-3 * usual.std()
        if length > 1 and (self(others) - usual)[:, : length // 2].abs().max() > close:
            reads = "reads tokens behind the one that it predicts; allowed: a causal language model"
            raise PflError(f"{KEY}.name: '{self.config.name_or_path}' {reads}")
        _try_bias(self, tokens, usual, close)

    def forward(self, tokens: Tensor) -> Any:
        """Tokens ``[batch, length]`` to logits ``[batch, length, tokens]``, without those that the data lack."""
        mask = {}
        if self.takes_bias:  # [batch, 1, queries, keys]
            length = tokens.shape[1]
            bias = torch.full((length, length), torch.finfo(self.dtype).min, dtype=self.dtype, device=tokens.device)
            mask["attention_mask"] = bias.triu(1).expand(len(tokens), 1, -1, -1)
        logits = super().forward(input_ids=tokens, **mask, use_cache=False, return_dict=True).logits
        return logits[..., : self.vocabulary]


def _try_bias(model: Any, tokens: Tensor, logits: Tensor, close: Tensor) -> None:
    """Let a network take an additive attention mask if its logits are then as close to these as said."""
    model.takes_bias = True
    try:
        error = (model(tokens) - logits).abs().max()
    except (RuntimeError, ValueError):
        error = torch.inf
    model.takes_bias = bool(error < close)


def _tokenizer(name: str) -> Any:
    """The tokenizer of a network's folder; None if it has none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError):
        return None


def _random_tensors(name: str, model: Any, info: dict[str, Any]) -> frozenset[str]:
    """Names of the tensors that begin at random; a warning names those outside of a classifier's head."""
    mismatched = {key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]}
    names = frozenset({*info["missing_keys"], *mismatched})
    expected = f"{model.base_model_prefix}." if not isinstance(model, _NextTokens) else ""
    if body := sorted(tensor for tensor in names if tensor.startswith(expected)):
        warnings.warn(f"{KEY}.name: '{name}' does not have {', '.join(body)}, which begin at random", stacklevel=3)
    return names


def _check_tokens(name: str, config: Any, masks_padding: bool, length: int, vocabulary: int) -> None:
    """Check that a network has room for the data's tokens, and if it masks padding, knows which of them it is.

    Raises:
        PflError: If it does not.
    """
    longest = getattr(config, "max_position_embeddings", length)
    if vocabulary > config.vocab_size:
        line = f"has {config.vocab_size:,} tokens, the data {vocabulary:,}; allowed: data.tokenizer of the same folder"
    elif length > longest:
        line = f"takes at most {longest} tokens, texts have {length}; allowed: a smaller data.max_length"
    elif masks_padding and config.pad_token_id is None:
        line = "has no pad_token_id in config.json; allowed: a network that masks padding"
    else:
        return
    raise PflError(f"{KEY}.name: '{name}' {line}")


@contextmanager
def loading(name: str, key: str) -> Iterator[None]:
    """Silence the library while it loads something, and turn what it raises into one line.

    Args:
        name: Folder or name of what is loaded.
        key: The option that gives it.

    Raises:
        PflError: If the library is not installed, or raises something.
    """
    try:
        from transformers.utils import logging
    except ImportError as error:
        raise PflError(f"{key}: needs {INSTALL} ({error})") from error
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except PflError:
        raise
    except Exception as error:  # of many kinds, for folders that are damaged and networks that are no classifiers
        raise PflError(f"{key}: cannot load '{name}' ({one_line(error)}); {REMEDY}") from error
    finally:
        logging.set_verbosity(before[0])
        if before[1]:
            logging.enable_progress_bar()
