import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.errors import PflError
from pfl_lightning.score_kind import ScoreKind
from pfl_lightning.tasks.own_loss import OwnLoss
from pfl_lightning.tasks.task import AMOUNT, Sums, Task, check_values

IGNORED = 255  # in a mask: a pixel without a class
IOU = ScoreKind("iou", higher_is_better=True, scale=100, unit=" (%)", digits=1)


class Segmentation(Task):
    """Each pixel of an image has one of several classes, counted from 0, the background; 255 marks pixels to ignore.

    The usual loss of a sample is the mean softmax cross-entropy of its pixels that are not ignored; a sample without
    any has loss 0 and does not count in its mini-batch. Clients are scored by their mean IoU (intersection over union,
    the Jaccard index) over the classes in their masks, where the pixels of all samples of a client count together, and
    ``right`` are the pixels of class k that are predicted as k:

        IoU of k = right / (pixels of k + pixels predicted as k - right)
        Dice of k = 2 right / (pixels of k + pixels predicted as k)

    Beside it stand the mean Dice over the same classes, and ``image_dice``: the mean over images of that of each image
    alone, over all classes, where a class that is neither in the mask nor predicted has 1.

    Args:
        loss: See ``Task``.
        dice_weight: Weight in the usual loss of 1 - soft Dice, which helps small structures: the mean over the classes
            of a mask, with the sums of probabilities in place of numbers of predicted pixels and 1 added to numerator
            and denominator.
        background: Whether class 0 counts in IoU and Dice.

    Raises:
        PflError: If there is a weight for a loss of the user's own, which does not see it.
    """

    score = IOU

    def __init__(
        self, loss: OwnLoss | None = None, dice_weight: NonNegativeFloat = 0.0, background: bool = True
    ) -> None:
        super().__init__(loss)
        if loss is not None and dice_weight:
            raise PflError("model.task.dice_weight must be 0 with model.task.loss, which does not see it")
        self.dice_weight = dice_weight
        self.background = background

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
        means = losses.flatten(1).sum(1) / _counted(targets).sum(1).clamp(min=1)
        return means + self.dice_weight * self._soft_dice_losses(outputs, targets) if self.dice_weight else means

    def _soft_dice_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 - the mean soft Dice of the classes in each mask, ``[samples]``; 0 without any."""
        counted = (targets != IGNORED)[:, None]
        labels = torch.arange(self.first_class, self.classes, device=targets.device)
        masks = (targets[:, None] == labels[:, None, None]).to(outputs.dtype).flatten(2)
        shares = (outputs.softmax(1)[:, self.first_class :] * counted).flatten(2)
        dice = (2 * (shares * masks).sum(2) + 1) / (shares.sum(2) + masks.sum(2) + 1)
        is_held = masks.any(2)
        return ((1 - dice) * is_held).sum(1) / is_held.sum(1).clamp(min=1)

    @property
    def first_class(self) -> int:
        """The first class that counts in IoU and Dice."""
        return 0 if self.background else 1

    def amounts(self, targets: Tensor) -> Tensor:
        """0 for a sample whose pixels are all ignored, 1 for others."""
        return _counted(targets).any(1)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """``confusion`` in pixels, ``[samples, classes, classes]``, true by predicted class; and ``image_dice``."""
        samples, classes = outputs.shape[:2]
        counted = targets != IGNORED
        images = torch.arange(samples, device=targets.device)[:, None, None]
        cells = (images * classes + targets) * classes + outputs.argmax(1)
        pixels = torch.bincount(cells[counted], minlength=samples * classes**2)
        confusion = pixels.view(samples, classes, classes)
        right, union = self._right_and_union(confusion)
        dice = 2 * right.float() / (union + right)
        return {"confusion": confusion, "image_dice": dice.nan_to_num(1).mean(1) * counted.flatten(1).any(1)}

    def scores(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """The mean IoU, that of each class (nan where no mask has it), and the share of pixels that are right."""
        confusion = sums["confusion"]
        right, union = self._right_and_union(confusion)
        true = confusion.sum(2)
        ious = (right / union).where(true[:, self.first_class :] > 0, torch.nan)
        return {
            IOU.name: ious.nanmean(1),
            **{f"{IOU.name}_{label}": iou for label, iou in enumerate(ious.unbind(1), start=self.first_class)},
            "dice": (2 * ious / (1 + ious)).nanmean(1),
            "image_dice": sums["image_dice"] / sums[AMOUNT],
            "pixel_accuracy": confusion.diagonal(dim1=1, dim2=2).sum(1) / true.sum(1),
        }

    def _right_and_union(self, confusion: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of pixels of each class that counts, ``[..., classes]``: right ones, and true or predicted ones."""
        right = confusion.diagonal(dim1=1, dim2=2)
        union = confusion.sum(2) + confusion.sum(1) - right
        return right[:, self.first_class :], union[:, self.first_class :]


def _counted(masks: Tensor) -> Tensor:
    """Whether each pixel has a class, ``[samples, pixels]``."""
    return (masks != IGNORED).flatten(1)
