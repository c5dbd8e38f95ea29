from math import pi

import pytest
import torch

from pfl_lightning.data import Shapes


def test_a_seed_gives_the_same_images_and_another_one_others():
    one, same, other = (Shapes(samples=20, generator_seed=seed).load()[0] for seed in (1, 1, 2))
    assert torch.equal(one.inputs, same.inputs)
    assert torch.equal(one.targets, same.targets)
    assert not torch.equal(one.targets, other.targets)


def test_without_noise_shapes_are_bright_and_the_background_is_black():
    data, _ = Shapes(samples=300, noise=0.0).load()
    assert (data.inputs.shape, data.inputs.dtype) == ((300, *Shapes.input_shape), torch.uint8)
    assert (data.targets.shape, data.targets.dtype) == ((300, 16, 16), torch.uint8)
    assert torch.equal(data.inputs[:, 0] >= 0.4 * 255 - 1, data.targets > 0)
    assert torch.equal(data.inputs[:, 0] == 0, data.targets == 0)
    assert data.targets.flatten(1).any(1).all()
    assert data.targets.unique().tolist() == [0, 1, 2, 3]


def test_shapes_fill_their_boxes_as_discs_squares_and_triangles_do():
    data, _ = Shapes(samples=2000, noise=0.0).load()
    filled = {kind: [] for kind in (1, 2, 3)}
    for image, mask in zip(data.inputs[:, 0], data.targets, strict=True):
        if len(image.unique()) == 2:  # a single shape
            box = mask.any(0).sum() * mask.any(1).sum()
            filled[int(mask.max())].append(float((mask > 0).sum() / box))
    means = [sum(shares) / len(shares) for shares in filled.values()]
    # a triangle of n rows of 1, ..., n pixels, here of about six, fills (n + 1) / 2n
    assert means == pytest.approx([pi / 4, 1, 7 / 12], abs=0.05)


def test_clients_have_more_of_some_shapes_than_of_others():
    data = Shapes(num_clients=10)
    data.setup()
    counts = data.class_counts()["train"]
    assert not counts[:, 0].any()
    assert (counts[:, 1:].max(1) / counts.sum(1)).mean() > 0.5, "a third of each kind on average"
