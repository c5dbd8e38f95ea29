from collections.abc import Sequence

import torch
from torch import Tensor


class Numbers:
    """Numeric inputs; only their type changes."""

    random = False

    def __call__(self, raw: Tensor, bits: Tensor | None = None) -> Tensor:
        """The same values in torch's default float type."""
        return raw.to(torch.get_default_dtype())


class Tokens:
    """Tokens, stored in a small integer type."""

    random = False

    def __call__(self, raw: Tensor, bits: Tensor | None = None) -> Tensor:
        """The same values as int64."""
        return raw.long()


class TokenVectors:
    """Tokens that are replaced by fixed vectors.

    Args:
        vectors: One row per token, ``[vocabulary, dimensions]``.
    """

    random = False

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors

    def __call__(self, raw: Tensor, bits: Tensor | None = None) -> Tensor:
        """Vectors ``[batch, length, dimensions]`` of tokens ``[batch, length]``, in torch's default float type."""
        self.vectors = self.vectors.to(raw.device, torch.get_default_dtype())
        return self.vectors[raw.long()]


class ImageTransform:
    """Normalises uint8 images on their device; with random bits it also crops and flips them.

    Args:
        mean: Mean of each channel, for pixels in [0, 1]; or of each pixel, ``[channels, height, width]``.
        std: Standard deviation, in the same form.
        padding: Black pixels added on each side before a random crop to the original size, followed by a random
            horizontal flip; 0 for no augmentation.
    """

    def __init__(self, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor, padding: int = 0) -> None:
        self.mean = _per_pixel(mean)
        self.std = _per_pixel(std)
        self.padding = padding
        self.random = padding > 0

    def __call__(self, raw: Tensor, bits: Tensor | None = None) -> Tensor:
        """Transform a batch.

        Args:
            raw: Images, uint8 ``[batch, channels, height, width]``.
            bits: Random integers, ``[batch]``; None for no augmentation.

        Returns:
            Network inputs in torch's default float type, same shape.
        """
        if bits is not None and self.random:
            raw = self._augment(raw, bits)
        dtype = torch.get_default_dtype()
        mean, std = (constant.to(raw.device, dtype, non_blocking=True) for constant in (self.mean, self.std))
        return raw.to(dtype).div_(255).sub_(mean).div_(std)

    def _augment(self, images: Tensor, bits: Tensor) -> Tensor:
        height, width = images.shape[2:]
        offsets = 2 * self.padding + 1
        mirrored = bits // offsets**2 % 2
        columns = torch.arange(width, device=images.device)
        columns = torch.where(mirrored[:, None] == 1, columns.flip(0), columns)
        columns = columns + (bits // offsets % offsets)[:, None]  # [batch, width]
        rows = torch.arange(height, device=images.device) + (bits % offsets)[:, None]  # [batch, height]
        padded = torch.nn.functional.pad(images, (self.padding,) * 4)
        batch = torch.arange(len(images), device=images.device)[:, None, None]
        return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _per_pixel(values: Sequence[float] | Tensor) -> Tensor:
    return values if isinstance(values, Tensor) else torch.tensor(values)[:, None, None]
