import pytest
from fakes.methods import make_method

from pfl_lightning.server import SecureAggregator
from pfl_lightning.system import Participation


@pytest.fixture(params=[None, SecureAggregator(limit=1000.0)], ids=["clear", "secure"])
def aggregator(request):
    """Sums in the clear, and secure ones."""
    return request.param


@pytest.fixture
def pool_of(ragged_data):
    """Makes data of which so many clients take part in a round; without validation samples."""

    def make(size, **options):
        return ragged_data(participation=Participation(pool_size=size), **{"val_fraction": 0.0, **options})

    return make


@pytest.fixture
def classes_of(ragged_data):
    """Makes data of so many classes, up to three, ready to be used."""

    def make(classes):
        class Data(ragged_data):
            num_classes = classes

            def load(self):
                return tuple(split._replace(targets=split.targets % classes) for split in super().load())

        (data := Data()).setup()
        return data

    return make


@pytest.fixture
def resumed(fit, tmp_path):
    """Runs a method at one stretch and in two parts: both methods, and the path of the last checkpoint."""

    def run(make, data, rounds=3, first=1, make_callbacks=list):
        def part(rounds, folder, ckpt_path=None):
            method = make_method(make)
            fit(method, data(), rounds, folder, ckpt_path, make_callbacks())
            return method

        straight, last = part(rounds, "straight"), tmp_path / "resumed/checkpoints/last.ckpt"
        part(first, "resumed")
        return straight, part(rounds, "resumed", last), last

    return run
