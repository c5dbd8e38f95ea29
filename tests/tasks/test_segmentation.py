"""Segmentation against torch's and torchmetrics' numbers, in special cases, and against a plain loop."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from fakes.loops import batches, participants
from fakes.methods import built, distance, tensors, weighted_mean
from fakes.tasks import PIXELS, TASKS
from plain_methods import samples_of
from sklearn.metrics import f1_score
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_jaccard_index

from pfl_lightning.client.losses import UsualLoss
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg
from pfl_lightning.tasks import AMOUNT, IGNORED, Classification, Segmentation

CLASSES = 4
TASK = Segmentation().sized(CLASSES)


@pytest.fixture
def predicted():
    """Outputs and masks of six images, of which the last pixels of most are ignored, and all pixels of the second."""
    masks = torch.randint(CLASSES, (6, 5, 7)).to(torch.uint8)
    masks[2:, -2:] = IGNORED
    masks[1] = IGNORED
    return torch.randn(6, CLASSES, 5, 7), masks


def summed(outputs, masks, task=TASK):
    """Sums over all samples, as of a single client."""
    statistics = task.statistics(outputs, masks) | {AMOUNT: task.amounts(masks)}
    return {name: values.sum(0, keepdim=True) for name, values in statistics.items()}


def scores(outputs, masks, task=TASK):
    return task.scores(summed(outputs, masks, task), torch.tensor([len(masks)]))


def test_the_loss_of_an_image_is_the_mean_over_its_pixels_that_count(predicted):
    outputs, masks = predicted
    losses = TASK.losses(outputs, masks)
    for loss, scores_of, mask in zip(losses, outputs, masks, strict=True):
        kept = [
            -pixel.log_softmax(0)[label]
            for pixel, label in zip(scores_of.flatten(1).T, mask.flatten().tolist(), strict=True)
            if label != IGNORED
        ]
        assert float(loss) == pytest.approx(float(sum(kept)) / max(len(kept), 1), abs=1e-12)
    assert losses[1] == 0


def test_images_of_one_pixel_are_a_classification():
    outputs = torch.randn(9, CLASSES)
    labels = torch.randint(CLASSES, (9,))
    classes = Classification().sized(CLASSES)
    masks = labels.to(torch.uint8).view(9, 1, 1)
    expected, slopes = UsualLoss(classes).with_gradients(outputs[None], labels[None])
    losses, gradients = UsualLoss(TASK).with_gradients(outputs[None, :, :, None, None], masks[None])
    assert torch.allclose(losses, expected, atol=1e-14)
    assert torch.allclose(gradients.flatten(2), slopes, atol=1e-14)
    right = classes.statistics(outputs, labels)["correct"].double().mean()
    assert float(scores(outputs[:, :, None, None], masks)["pixel_accuracy"]) == pytest.approx(float(right))
    assert torch.equal(TASK.labels(masks), labels)


def test_scores_are_those_of_torchmetrics_and_classes_without_a_pixel_do_not_count(predicted):
    outputs, masks = predicted
    masks[masks == 2] = 1  # so that class 2 is predicted, but not there
    found = scores(outputs, masks)
    expected = multiclass_jaccard_index(outputs, masks.long(), CLASSES, average="none", ignore_index=IGNORED)
    present = [0, 1, 3]
    for label in present:
        assert float(found[f"iou_{label}"]) == pytest.approx(float(expected[label]), abs=1e-6)
    assert found["iou_2"].isnan()
    assert float(found["iou"]) == pytest.approx(float(expected[present].mean()), abs=1e-6)
    accuracy = multiclass_accuracy(outputs, masks.long(), CLASSES, average="micro", ignore_index=IGNORED)
    assert float(found["pixel_accuracy"]) == pytest.approx(float(accuracy), abs=1e-6)


def test_statistics_of_two_halves_add_up_to_those_of_all(predicted):
    outputs, masks = predicted
    whole, *halves = (summed(outputs[part], masks[part]) for part in (slice(6), slice(2), slice(2, 6)))
    for name, values in whole.items():
        assert torch.allclose(values, sum(half[name] for half in halves), atol=1e-6)
    assert whole["confusion"].sum() == (masks != IGNORED).sum()


def test_dice_is_the_f1_of_pixels_over_all_images_or_of_each_and_the_background_can_be_left_out(predicted):
    outputs, masks = predicted
    masks[masks == 2] = 1
    labels = outputs.argmax(1)

    def f1(images, zero_division=0.0):
        counted = masks[images] != IGNORED
        truth, said = masks[images][counted], labels[images][counted]
        return f1_score(truth, said, labels=range(CLASSES), average=None, zero_division=zero_division)

    of_all = f1([0, 2, 3, 4, 5])
    of_each = np.array([f1([image], zero_division=1.0) for image in (0, 2, 3, 4, 5)])
    inner = Segmentation(background=False).sized(CLASSES)
    for task, present in ((TASK, [0, 1, 3]), (inner, [1, 3])):
        found = scores(outputs, masks, task)
        assert float(found["dice"]) == pytest.approx(of_all[present].mean(), abs=1e-6)
        first = task.first_class
        assert float(found["image_dice"]) == pytest.approx(of_each[:, first:].mean(1).mean(), abs=1e-6)
        assert ("iou_0" in found) == (first == 0)


def test_the_soft_dice_loss_of_an_image_is_over_the_classes_of_its_mask(predicted):
    outputs, masks = predicted
    losses = Segmentation(dice_weight=0.5).sized(CLASSES).losses(outputs, masks)
    for image, (loss, plain) in enumerate(zip(losses, TASK.losses(outputs, masks), strict=True)):
        counted = masks[image] != IGNORED
        terms = []
        for label in masks[image][counted].unique().tolist():
            p, y = outputs[image].softmax(0)[label][counted], (masks[image] == label)[counted]
            terms.append(1 - (2 * p[y].sum() + 1) / (p.sum() + y.sum() + 1))
        expected = float(plain) + 0.5 * float(sum(terms)) / max(len(terms), 1)
        assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_masks_that_are_all_ignored_have_no_loss_no_gradient_and_no_score(predicted):
    outputs, _ = predicted
    nothing = torch.full((6, 5, 7), IGNORED, dtype=torch.uint8)
    losses, gradients = UsualLoss(TASK).with_gradients(outputs[None], nothing[None])
    assert not losses.any()
    assert not gradients.any()
    assert scores(outputs, nothing)["iou"].isnan()
    assert not TASK.amounts(nothing).any()


def test_examples_are_predicted_rightly():
    outputs, masks = TASK.examples()
    TASK.check(masks)
    assert float(scores(outputs, masks)["iou"]) == 1
    assert (TASK.losses(outputs, masks) < TASK.losses(-outputs, masks)).all()


def test_partitions_see_the_most_frequent_class_but_the_background():
    rows = [[0, 0, 0, 0, 3], [1, 1, 2, 2, 2], [0, 0, 0, 0, 0], [IGNORED, IGNORED, IGNORED, 0, 2]]
    assert TASK.labels(torch.tensor(rows, dtype=torch.uint8)[:, None]).tolist() == [3, 2, 0, 2]


@pytest.mark.parametrize(
    ("masks", "line"),
    [
        (torch.zeros(3, dtype=torch.uint8), r"masks must have the shape \[samples, height, width\], .*, got \[3\]"),
        (torch.zeros(3, 3, 4, 5, dtype=torch.uint8), r"masks must have the shape .*, got \[3, 3, 4, 5\]"),
        (torch.zeros(3, 4, 5), "masks must be whole numbers, uint8, got torch.float32"),
        (
            torch.full((3, 4, 5), 4).to(torch.uint8),
            "masks must be whole numbers from 0 to 3, or 255, got 4 in sample 0",
        ),
    ],
)
def test_other_targets_are_refused(masks, line):
    with pytest.raises(ValueError, match=f"^{line}$"):
        TASK.check(masks)


@pytest.fixture
def masked_data(ragged_data):
    """Ragged clients with masks of three classes; some pixels are ignored, and all of every fifth image."""
    return TASKS["masks"](ragged_data)


SMALL = {"network": PIXELS, "weight_decay": 0.0}


def mean_loss(model, images, masks):
    """Mean over the images with a pixel that counts of the mean over these pixels, and how many images these are."""
    losses = []
    for outputs, mask in zip(model(images), masks, strict=True):
        counted = mask != IGNORED
        if counted.any():
            logs = outputs[:, counted].log_softmax(0)
            losses.append(-logs.gather(0, mask[counted].long()[None]).mean())
    return sum(losses) / max(len(losses), 1), len(losses)


def test_two_rounds_are_those_of_a_plain_loop(masked_data, fit):
    data = masked_data(val_fraction=0.0)
    method = built(FedAvg, data, **SMALL)
    model = deepcopy(method.network)
    trainer = fit(method, data, 2, bare=True)
    for index in range(2):
        clients = [plain_update(model, own, index) for _, own in participants(data, index)]
        counts = data.make_round(index).examples.counts
        trained, losses = zip(*clients, strict=True)
        model.load_state_dict(weighted_mean(trained, counts))
    assert distance(method.network, model) < 1e-10
    assert distance(method.network, built(FedAvg, data, **SMALL).network) > 1e-2
    assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(np.average(losses, weights=counts), abs=1e-10)


def plain_update(model, own, index):
    """A client's tensors after an epoch, and its mean loss."""
    model = deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for images, masks in batches(own, (1, "train", index, "all"))[0]:
        loss, count = mean_loss(model, images, masks)
        losses.append((loss.item() if count else 0.0, count))
        if count:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    total = sum(count for _, count in losses)
    return tensors(model), sum(loss * count for loss, count in losses) / max(total, 1)


def test_scores_of_clients_are_those_of_their_pixels_one_by_one(masked_data, fit):
    data = masked_data(val_fraction=0.0)
    method = built(FedAvg, data, **SMALL)
    trainer = fit(method, data, 1)
    means = []
    for client in range(data.num_clients):
        images, masks = samples_of(data.tables["test"].examples(torch.tensor([client])))
        predicted = method.client(client, "global")(images).argmax(1)
        pixels = zip(predicted.flatten().tolist(), masks.flatten().tolist(), strict=True)
        counted = [(found, label) for found, label in pixels if label != IGNORED]
        ious = [
            counted.count((label, label)) / sum(label in pair for pair in counted)
            for label in {label for _, label in counted}
        ]
        means += [np.mean(ious)] * (len(ious) > 0)
    assert float(trainer.callback_metrics["test/iou"]) == pytest.approx(np.mean(means), abs=1e-6)


def test_masks_that_are_all_ignored_change_nothing(masked_data, train):
    class Ignored(masked_data):
        def load(self):
            return tuple(split._replace(targets=torch.full_like(split.targets, IGNORED)) for split in super().load())

    data = Ignored()
    assert distance(train(FedAvg, 1, data, **SMALL).network, built(FedAvg, data, **SMALL).network) < 1e-15


def test_a_network_for_classes_of_samples_is_refused_and_one_for_pixels_elsewhere(masked_data, ragged_data):
    numbers = r"^model\.network: {} must return a tensor of numbers \[batch, {}\], {}got a tensor \[batch, {}\] of "
    with pytest.raises(PflError, match=numbers.format("MLP", "3, 16, 16", "as UNet does, ", "3")):
        built(FedAvg, masked_data())
    with pytest.raises(PflError, match=numbers.format("UNet", "3", "", "3, 16, 16")):
        built(FedAvg, ragged_data(), **SMALL)
