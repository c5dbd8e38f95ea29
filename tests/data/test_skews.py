from functools import partial

import numpy as np
import pytest
import torch
from scipy.ndimage import rotate

from pfl_lightning.data import IID, Blur, Colour, FederatedDataModule, ImageTransform, LabelledData, Noise, Rotation
from pfl_lightning.data.datasets.shapes import Shapes
from pfl_lightning.data.datasets.synthetic import Synthetic
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import MLP

CLIENTS, SAMPLES, SIDE = 5, 100, 12
SKEWS = [Rotation(), Rotation(3), Noise(), Colour(), Blur()]
every_skew = pytest.mark.parametrize("skew", SKEWS, ids=lambda skew: f"{type(skew).__name__}{vars(skew)}")


class Pictures(FederatedDataModule):
    """Random pictures of two classes, all samples of one split."""

    num_classes = 2

    def __init__(self, channels=3, height=SIDE, **kwargs):
        super().__init__(**{"num_clients": CLIENTS, "partition": IID(), **kwargs})
        self.input_shape = (channels, height, SIDE)

    def load(self):
        random = torch.Generator().manual_seed(0)
        pixels = torch.randint(256, (SAMPLES, *self.input_shape), generator=random, dtype=torch.uint8)
        return LabelledData(pixels, torch.arange(SAMPLES) % 2), None

    def transform(self):
        return ImageTransform([0.0] * self.input_shape[0], [1.0] * self.input_shape[0])


def seen(skew, **kwargs):
    """The pictures of each client, in [0, 1], by split, and those of the data set, in the same order."""
    plain, skewed = Pictures(**kwargs), Pictures(skew=skew, **kwargs)
    for data in (plain, skewed):
        data.setup("test" if data.new_clients else None)
    for client in range(plain.eval_clients):
        for split, table in plain.tables.items():
            pair = [tables.examples(torch.tensor([client])) for tables in (skewed.tables[split], table)]
            yield client, *(examples.gather(examples.positions)[0] for examples in pair)


def test_the_first_client_sees_them_as_they_are_and_others_turned_by_right_angles():
    for client, after, before in seen(Rotation()):
        assert torch.equal(after, torch.from_numpy(np.rot90(before.numpy(), client % 4, (2, 3)).copy()))


def test_other_angles_are_those_of_scipy_away_from_the_corners():
    for client, after, before in seen(Rotation(3)):
        turned = rotate(before.numpy(), 120 * (client % 3), (3, 2), reshape=False, order=1)
        inner = slice(3, SIDE - 3)
        found = after.numpy()[..., inner, inner]
        assert np.abs(found - turned[..., inner, inner]).max() < 0.01  # rounded to 1 / 255, and the angle to a float32


def test_pictures_that_are_not_square_keep_their_shape():
    assert all(after.shape == before.shape for _, after, before in seen(Rotation(), height=SIDE + 2))


def test_noise_grows_from_none_to_the_last_client_and_is_not_cut_off():
    for client, after, before in seen(Noise(0.4)):
        noise = (after - before).numpy()
        if client == 0:
            assert np.abs(noise).max() < 1e-6
        else:
            assert noise.std() == pytest.approx(0.1 * client, rel=0.1)
            assert noise.mean() == pytest.approx(0, abs=0.1 * client * 5 / noise.size**0.5)
    pixels = torch.cat([after.flatten() for client, after, _ in seen(Noise(0.4)) if client == CLIENTS - 1])
    assert pixels.min() < 0 < 1 < pixels.max()


def test_the_variance_of_noise_is_right_to_two_percent_over_many_pixels():
    *_, (_, after, before) = seen(Noise(0.1), height=20 * SIDE)
    assert float((after - before).var()) == pytest.approx(0.01, rel=0.02)


def test_colours_are_gains_of_each_channel_and_gammas_of_grey_pictures():
    gains = set()
    for _, after, before in seen(Colour(0.5)):
        middle = (before > 0.2) & (before < 0.6)
        ratio = [(after[:, i][middle[:, i]] / before[:, i][middle[:, i]]).numpy() for i in range(3)]
        assert all(each.std() < 0.01 and 0.49 < each.mean() < 1.51 for each in ratio)
        gains.add(tuple(each.mean().round(1) for each in ratio))
    assert len(gains) == CLIENTS, "each client has its own in each split"
    for _, after, before in seen(Colour(0.5), channels=1):
        middle = (before > 0.2) & (before < 0.8)
        gamma = (after[middle].log() / before[middle].log()).numpy()
        assert gamma.std() < 0.03
        assert 0.49 < gamma.mean() < 1.51


def test_a_blur_spreads_a_point_as_a_gaussian_does():
    point = torch.zeros(1, 1, 31, 31)
    point[0, 0, 15, 15] = 1
    blurred = Blur(2.0)(point, CLIENTS - 1, CLIENTS, torch.Generator())[0, 0]
    squares = (torch.arange(31) - 15.0).square()
    assert float(blurred.sum()) == pytest.approx(1)
    assert float((blurred.sum(0) * squares).sum()) == pytest.approx(4, rel=0.05)
    assert torch.equal(Blur(2.0)(point, 0, CLIENTS, torch.Generator()), point)
    small = torch.rand(1, 1, 3, 3)
    assert Blur(9.0)(small, 1, 2, torch.Generator()).shape == small.shape


@pytest.mark.parametrize("skew", [Rotation(1), Noise(0.0), Blur(0.0)])
def test_without_strength_nothing_changes(skew):
    assert all(torch.equal(after, before) for _, after, before in seen(skew))


@every_skew
def test_new_clients_have_skews_of_their_own_and_the_runs_stay_as_they_are(skew):
    run, tested = (Pictures(skew=skew, new_clients=new) for new in (0, 3))
    run.setup()
    tested.setup("test")
    plain = Pictures()
    plain.setup()
    assert run.fingerprint() == tested.fingerprint() != plain.fingerprint()
    counts = [
        sum(len(after) for number, after, _ in seen(skew, new_clients=3) if number == client) for client in range(3)
    ]
    assert all(counts)


@every_skew
def test_a_sample_is_seen_alike_whatever_is_held_out(skew):
    def pixels(**kwargs):
        return sorted(tuple(row.flatten().tolist()) for _, after, _ in seen(skew, **kwargs) for row in after)

    assert pixels() == pixels(val_fraction=0.5)


@every_skew
def test_a_run_resumes_bit_for_bit(skew, fit, tmp_path):
    def trained(rounds, folder, ckpt=None):
        method = FedAvg(network=partial(MLP, hidden=[4]))
        fit(method, Pictures(skew=skew), rounds, folder=folder, ckpt_path=ckpt)
        return method.shared_parameters

    whole = trained(3, "whole")
    trained(2, "parts")
    last = next((tmp_path / "parts").rglob("last.ckpt"))
    resumed = trained(3, "resumed", last)
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())


@pytest.mark.parametrize(
    ("make", "skew", "line"),
    [
        (
            Synthetic,
            Noise(),
            "data.skew: Noise is not possible with Synthetic, whose inputs are no pictures of",
        ),
        (
            Shapes,
            Rotation(),
            "data.skew: Rotation is not possible with Shapes, whose targets are masks, which",
        ),
        (Pictures, IID(), "data.skew must be an object of Skew, got <pfl_lightning"),
    ],
)
def test_what_cannot_be_skewed_is_one_line(make, skew, line):
    with pytest.raises(PflError) as refused:
        make(skew=skew).setup()
    assert str(refused.value).startswith(line)
