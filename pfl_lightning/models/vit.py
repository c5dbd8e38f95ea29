import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_lightning.bounds import ClosedUnitInterval, PositiveInt
from pfl_lightning.errors import PflError
from pfl_lightning.models.network import Network


class ViT(Network):
    """A vision transformer: linear patches, blocks of attention and two linear layers, and a linear head.

    Each block is a layer of the network, so that blocks before the first one that trains are computed once a phase. The
    head reads the class token. ``depth: 12``, ``width: 192`` and ``heads: 3`` are those of ViT-Tiny.

    Paper: Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale", ICLR 2021,
    arXiv:2010.11929.

    Args:
        input_shape: Channels, height and width.
        num_classes: Number of outputs.
        patch: Height and width of a patch, which divide those of the images.
        depth: Number of blocks.
        width: Width of the tokens.
        heads: Heads of the attention, which divide the width.
        hidden: Width of the hidden layer in a block, as a multiple of the tokens' width.
        dropout: Probability of dropping an entry of what attention and linear layers add to the tokens.

    Raises:
        PflError: If patches do not divide the images, or heads the width.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        patch: PositiveInt = 4,
        depth: PositiveInt = 6,
        width: PositiveInt = 192,
        heads: PositiveInt = 3,
        hidden: PositiveInt = 4,
        dropout: ClosedUnitInterval = 0.0,
    ) -> None:
        self.check_images(input_shape, patch)
        if any(length % patch for length in input_shape[1:]):
            sides = " x ".join(map(str, input_shape[1:]))
            raise PflError(f"model.network.patch must divide both sides of images of {sides}, got {patch}")
        if width % heads:
            raise PflError(f"model.network.heads must divide the width {width}, got {heads}")
        blocks = {f"block{number}": Block(width, heads, hidden * width, dropout) for number in range(1, depth + 1)}
        layers: dict[str, nn.Module] = {"patches": Patches(input_shape, patch, width), **blocks}
        super().__init__({**layers, "norm": ClassToken(width), "head": nn.Linear(width, num_classes)})


class Patches(nn.Module):
    """The tokens of images: a linear layer on each patch, and a class token, plus learned positions."""

    def __init__(self, input_shape: tuple[int, ...], patch: int, width: int) -> None:
        super().__init__()
        channels, rows, columns = input_shape
        self.patch = patch
        self.linear = nn.Linear(channels * patch**2, width)
        self.token = nn.Parameter(torch.zeros(1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1 + rows // patch * (columns // patch), width))

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[batch, channels, height, width]`` to tokens ``[batch, tokens, width]``."""
        size = (-1, self.patch)
        patches = images.unflatten(3, size).unflatten(2, size)  # [batch, channels, rows, patch, columns, patch]
        tokens = self.linear(patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))
        class_token = self.token.expand(tokens.shape[0], *self.token.shape)
        return torch.cat([class_token, tokens], 1) + self.positions


class Block(nn.Module):
    """Attention, and then two linear layers, both on normalized tokens and added to them."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.dropout = nn.Dropout(dropout)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens to tokens, ``[batch, tokens, width]``."""
        attended = tokens + self.dropout(self.attention(self.norm1(tokens)))
        outputs: Tensor = attended + self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(attended)))))
        return outputs


class Attention(nn.Module):
    """Self-attention; the first linear layer makes queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens to tokens, ``[batch, tokens, width]``."""
        queries_keys_values = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*queries_keys_values)  # [batch, heads, tokens, width / heads]
        outputs: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return outputs


class ClassToken(nn.LayerNorm):
    """The class token, normalized, ``[batch, width]``."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens ``[batch, tokens, width]`` to the first of each sample."""
        return super().forward(tokens[:, 0])
