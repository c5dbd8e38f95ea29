"""A task with a closed form, and data for each task."""

from functools import partial

import torch

from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.models import CharGRU, UNet
from pfl_lightning.score_kind import ScoreKind
from pfl_lightning.tasks import (
    AMOUNT,
    IGNORED,
    NO_TARGET,
    Classification,
    MultiLabel,
    NextToken,
    Regression,
    Segmentation,
    Survival,
)

ADAPTED = ("FedALT", "FedDPA", "FedExLoRA", "FLoRA", "FlexLoRA", "HetLoRA", "RoLoRA")  # in linear layers of the body
PIXELS = partial(UNet, channels=[2, 3])


class Copies(Classification):
    """A sample stands for several of one class: its targets are the class, and how many; without one it has no score.

    Args:
        kwargs: See ``Task``.
    """

    score = ScoreKind("hits", higher_is_better=True, scale=10, unit=" (of 10)", digits=2)

    def check(self, targets):
        super().check(targets[:, 0])

    def labels(self, targets):
        return targets[:, 0]

    def examples(self):
        outputs, classes = super().examples()
        return outputs, classes[:, None].repeat(1, 2)

    def usual_losses(self, outputs, targets):
        return targets[..., 1] * super().usual_losses(outputs, targets[..., 0])

    def usual_gradients(self, outputs, targets):
        losses, gradients = super().usual_gradients(outputs, targets[..., 0])
        return targets[..., 1] * losses, targets[..., 1:] * gradients

    def amounts(self, targets):
        return targets[:, 1]

    def statistics(self, outputs, targets):
        return {"hits": targets[:, 1] * super().statistics(outputs, targets[:, 0])["correct"]}

    def scores(self, sums, samples):
        return {self.score.name: sums["hits"] / sums[AMOUNT]}

    def columns(self, sums, samples):
        return self.scores(sums, samples)


def labels_of(inputs):
    """Four labels; of every fifth sample the first is unknown, and of every seventh all of them."""
    targets = (inputs[:, :4] + inputs[:, 1:5] > 0).to(torch.int8)
    targets[::5, 0] = -1
    targets[::7] = -1
    return targets


def numbers_of(inputs):
    """Three numbers."""
    return inputs[:, :3] - 2 * inputs[:, 1:4]


def masks_of(inputs):
    """Masks of three levels; some pixels are ignored, and all of every fifth image."""
    pixels = inputs.view(-1, 16, 16)
    masks = (pixels > 0.4).to(torch.uint8) + (pixels > -0.4)
    masks[:, 0, 1::2] = IGNORED
    masks[::5] = IGNORED
    return masks


def data_of(base, of, targets_of):
    """Ragged data of some task, whose targets are a function of the pixels."""

    class Data(base):
        task = of

        def load(self):
            return tuple(split._replace(targets=targets_of(split.inputs.flatten(1))) for split in super().load())

    return Data


def mask_data(base):
    """The same with masks, what learns them, and the methods that need other layers."""

    class Data(data_of(base, Segmentation().sized(3), masks_of)):
        network = PIXELS
        unsuitable = (*ADAPTED, "FedCP", "FedDBE", "Floco", "GPFL", "HeteroFL", "PFedSim")

    return Data


LENGTH = 6
VOCABULARY = 5


def sequences(count, random=None):
    """Tokens, and targets of which each sequence has a random number, the first one none."""
    inputs, targets = torch.randint(VOCABULARY, (2, count, LENGTH), generator=random)
    kept = torch.randint(LENGTH + 1, (count, 1), generator=random)
    kept[0] = 0
    return inputs, targets.where(torch.arange(LENGTH) < kept, NO_TARGET)


def token_data(base):
    """Ragged data of sequences with ragged targets."""

    class Data(base):
        input_shape = (LENGTH, VOCABULARY)
        input_kind = "tokens"
        task = NextToken().sized(VOCABULARY)
        network = partial(CharGRU, hidden=4)
        unsuitable = (*ADAPTED, "HeteroFL", "LGFedAvg")  # it has two layers, and none that they adapt or narrow

        def load(self):
            random = torch.Generator().manual_seed(0)
            for _ in ("train", "test"):
                inputs, targets = sequences(120, random)
                yield LabelledData(inputs, targets.short())

    return Data


def lives_of(inputs):
    """Events and times: every third sample is censored."""
    times = inputs[:, :1].exp() + inputs[:, 1:2].abs()
    events = (torch.arange(len(inputs))[:, None] % 3 > 0).to(times.dtype)
    return torch.cat([events, times], 1)


TASKS = {
    "lives": partial(data_of, of=Survival(edges=[0.5, 1.0, 2.0]), targets_of=lives_of),
    "labels": partial(data_of, of=MultiLabel().sized(4), targets_of=labels_of),
    "masks": mask_data,
    "numbers": partial(data_of, of=Regression().sized(3), targets_of=numbers_of),
    "tokens": token_data,
}
