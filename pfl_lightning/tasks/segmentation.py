import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.score_kind import ScoreKind
from pfl_lightning.tasks.task import Sums, Task, check_values

IGNORED = 255  # in a mask: a pixel without a class
IOU = ScoreKind("iou", higher_is_better=True, scale=100, unit=" (%)", digits=1)


class Segmentation(Task):
    """Each pixel of an image has one of several classes, counted from 0, the background; 255 marks pixels to ignore.

    The usual loss of a sample is the mean softmax cross-entropy of its pixels that are not ignored; a sample without
    any has loss 0 and does not count in its mini-batch. Clients are scored by their mean IoU (intersection over union,
    the Jaccard index) over the classes in their masks, where the pixels of all samples of a client count together, and
    ``right`` are the pixels of class k that are predicted as k:

        IoU of k = right / (pixels of k + pixels predicted as k - right)

    Args:
        loss: See ``Task``.
    """

    score = IOU

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.outputs

    @property
    def goal(self) -> str:
        """What networks learn, for people."""
        return f"a segmentation into {self.classes} classes"

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """A number for each class and pixel."""
        return (self.outputs, *input_shape[1:])

    def target_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The height and width of the image."""
        return input_shape[1:]

    def check(self, targets: Tensor) -> None:
        """Check that the targets are masks, uint8 ``[samples, height, width]``, with one class for each pixel."""
        if targets.ndim != 3:
            shape = "[samples, height, width], a class for each pixel"
            raise ValueError(f"masks must have the shape {shape}, got {list(targets.shape)}")
        if targets.dtype != torch.uint8:
            raise ValueError(f"masks must be whole numbers, uint8, got {targets.dtype}")
        in_range = (targets < self.classes) | (targets == IGNORED)
        check_values(targets, in_range, "masks", f"whole numbers from 0 to {self.classes - 1}, or {IGNORED}")

    def labels(self, targets: Tensor) -> Tensor:
        """The most frequent class of each mask but the background; 0 where there is nothing else."""
        pixels = torch.stack([(targets == label).flatten(1).sum(1) for label in range(1, self.classes)], 1)
        return torch.where(pixels.any(1), 1 + pixels.argmax(1), 0)

    def examples(self) -> tuple[Tensor, Tensor]:
        """Two images of one row, which has a pixel of each class."""
        masks = torch.arange(self.classes, dtype=torch.uint8).expand(2, 1, -1)
        return torch.eye(self.classes)[:, None].expand(2, -1, 1, -1), masks

    def usual_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy, ``[samples]``, of outputs ``[samples, classes, height, width]``, as ``targets`` are."""
        losses = F.cross_entropy(outputs, targets.long(), ignore_index=IGNORED, reduction="none")
        return losses.flatten(1).sum(1) / _counted(targets).sum(1).clamp(min=1)

    def amounts(self, targets: Tensor) -> Tensor:
        """0 for a sample whose pixels are all ignored, 1 for others."""
        return _counted(targets).any(1)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The ``confusion`` of each sample in pixels, ``[samples, classes, classes]``: true by predicted class."""
        samples, classes = outputs.shape[:2]
        counted = targets != IGNORED
        images = torch.arange(samples, device=targets.device)[:, None, None]
        cells = (images * classes + targets) * classes + outputs.argmax(1)
        pixels = torch.bincount(cells[counted], minlength=samples * classes**2)
        return {"confusion": pixels.view(samples, classes, classes)}

    def scores(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """The mean IoU, that of each class (nan where no mask has it), and the share of pixels that are right."""
        confusion = sums["confusion"]
        right = confusion.diagonal(dim1=1, dim2=2)
        true = confusion.sum(2)
        ious = (right / (true + confusion.sum(1) - right)).where(true > 0, torch.nan)
        of_classes = {f"{IOU.name}_{label}": iou for label, iou in enumerate(ious.unbind(1))}
        return {IOU.name: ious.nanmean(1), **of_classes, "pixel_accuracy": right.sum(1) / true.sum(1)}


def _counted(masks: Tensor) -> Tensor:
    """Whether each pixel has a class, ``[samples, pixels]``."""
    return (masks != IGNORED).flatten(1)
