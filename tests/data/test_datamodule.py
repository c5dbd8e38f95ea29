import math
from functools import partial
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pfl_lightning import load_method
from pfl_lightning.client import LocalTraining
from pfl_lightning.data import (
    ClassShards,
    ConsecutiveClasses,
    Digits,
    Dirichlet,
    EqualSizes,
    FederatedDataModule,
    LinearRepresentation,
    NaturalUsers,
    Partition,
    SpeedGroups,
)
from pfl_lightning.data.holdout import held_out_size
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.transforms import ImageTransform, TokenVectors
from pfl_lightning.errors import PflError
from pfl_lightning.methods import HFMAML, Ditto, FedAvg, FedBABU, FedRep
from pfl_lightning.models import MLP
from pfl_lightning.system import DynamicExponential, Participation, Speeds, UniformTime

TRAIN, TEST, CLIENTS, USERS = 160, 40, 8, 10


class Numbered(FederatedDataModule):
    """200 images of one pixel, the number of the sample; its class is that number modulo 4, its user modulo 10."""

    num_classes = 4
    input_shape = (1, 1, 1)
    loaded = 0

    def __init__(self, **kwargs):
        given = {"num_clients": CLIENTS, "partition": Dirichlet(1.0, 5), **kwargs}
        super().__init__(**given)

    def load(self):
        self.loaded += 1
        inputs = torch.arange(TRAIN + TEST, dtype=torch.uint8)[:, None, None, None]
        data = inputs, torch.arange(TRAIN + TEST) % 4, torch.arange(TRAIN + TEST) % USERS
        return LabelledData(*(each[:TRAIN] for each in data)), LabelledData(*(each[TRAIN:] for each in data))

    def transform(self):
        return ImageTransform([0.0], [1.0])


class Unsplit(Numbered):
    """The same without a test split; each client is a user, unless told otherwise."""

    usual_partition = NaturalUsers

    def load(self):
        train, test = super().load()
        return train.join(test), None


def ready(**kwargs):
    module = Numbered(**kwargs)
    module.setup()
    return module


def numbers(inputs):
    return (inputs.flatten() * 255).round().int().tolist()


def samples(examples):
    """The samples of each client, by its id."""
    rows = zip(examples.ids.tolist(), examples.index.tolist(), examples.counts.tolist(), strict=True)
    return {client: row[:count] for client, row, count in rows}


class InARow(Partition):
    """Each client gets the samples that stand in a row: the shares of all samples are 1, 2, 3, ... twentieths."""

    shares = (1, 2, 3, 4, 2, 1, 5, 2)

    def split(self, splits, num_classes, population, rng):
        cuts = np.cumsum(self.shares)[:-1]
        return [np.split(np.arange(len(split.classes)), cuts * len(split.classes) // 20) for split in splits]

    @classmethod
    def owned(cls, client):
        """Numbers of the samples of a client for training and validation, and of those for tests."""
        start = sum(cls.shares[:client])
        stop = start + cls.shares[client]
        return range(8 * start, 8 * stop), range(TRAIN + 2 * start, TRAIN + 2 * stop)


def inputs_of(examples):
    """The inputs of each client, in the order of their numbers, by its id."""
    found = examples.gather(examples.positions)
    rows = zip(examples.ids.tolist(), found, examples.counts.tolist(), strict=True)
    return {client: sorted(numbers(row[:count])) for client, row, count in rows}


def split(module, name):
    return samples(module.tables[name].examples(torch.arange(module.eval_clients)))


def fields(step):
    return step.round_index, step.seed, samples(step.examples), step.times.tolist(), step.communication_time


@pytest.mark.parametrize("kind", [Numbered, Unsplit])
@pytest.mark.parametrize(("val", "test_fraction"), [(0.0, None), (0.1, None), (0.5, None), (0.0, 0.1), (0.5, 0.5)])
def test_every_client_holds_out_its_shares_and_no_sample_is_lost(kind, val, test_fraction):
    module = kind(partition=Dirichlet(1.0, 5), val_fraction=val, test_fraction=test_fraction)
    module.setup()
    parts = {name: split(module, name) for name in ("train", "val", "test")}
    assert sorted(chain(*(own for part in parts.values() for own in part.values()))) == list(range(TRAIN + TEST))
    has_own_test = kind is Numbered and test_fraction is None
    if has_own_test:
        assert sorted(chain(*parts["test"].values())) == list(range(TRAIN, TRAIN + TEST))
    elif test_fraction:
        assert min(chain(*parts["test"].values())) < TRAIN <= max(chain(*parts["train"].values())), "of all samples"
    for train, validation, test in zip(*(part.values() for part in parts.values()), strict=True):
        assert len(validation) == held_out_size(len(train + validation), val)
        whole = len(train + validation + test)
        assert has_own_test or len(test) == held_out_size(whole, test_fraction or 0.25)


@pytest.mark.parametrize(
    ("option", "most"),
    [
        ({"max_samples": 3}, lambda count: min(count, 3)),
        ({"sample_fraction": 0.5}, lambda count: round(count / 2) or 1),
    ],
)
def test_samples_are_limited_in_every_split_and_nothing_else_changes(option, most):
    whole, limited, again = ready(), ready(**option), ready(**option)
    for name in whole.tables:
        every, drawn = split(whole, name), split(limited, name)
        assert [len(own) for own in drawn.values()] == [min(len(own), most(len(own))) for own in every.values()]
        assert all(set(own) <= set(every[client]) for client, own in drawn.items())
    assert limited.fingerprint() == again.fingerprint() != whole.fingerprint()
    assert ready(max_samples=TRAIN).fingerprint() == whole.fingerprint()


@pytest.mark.parametrize("kind", [Numbered, Unsplit])
@pytest.mark.parametrize(
    ("shares", "holds"),
    [
        ({"val_clients": 0.5}, [{"train", "test"}] * 4 + [{"val"}] * 4),
        ({"test_clients": 0.25, "val_fraction": 0.0}, [{"train"}] * 6 + [{"test"}] * 2),
        ({"test_clients": 0.25, "val_fraction": 0.5}, [{"train", "val"}] * 6 + [{"test"}] * 2),
        ({"test_clients": 0.25, "val_clients": 0.5}, [{"train"}] * 3 + [{"val"}] * 3 + [{"test"}] * 2),
    ],
)
def test_clients_that_are_held_out_hold_samples_of_their_split_alone(kind, shares, holds):
    options = {"partition": Dirichlet(1.0, 5)}
    module = kind(**shares, **options)
    without = kind(val_fraction=0.0, test_clients=shares.get("test_clients", 0.0), **options)
    module.setup()
    without.setup()
    parts, whole = ({name: split(data, name) for name in ("train", "val", "test")} for data in (module, without))
    for client in range(CLIENTS):
        own = {name: part[client] for name, part in parts.items() if part[client]}
        assert set(own) == holds[client]
        assert sorted(chain(*own.values())) == sorted(chain(*(part[client] for part in whole.values())))
    assert len(module.training_counts) == module.training_clients == sum("train" in names for names in holds)
    assert module.eval_splits == (["test"] if shares.get("val_fraction") == 0 else ["val", "test"])


def test_choice_samples_are_a_split_of_their_own():
    module, without = (ready(test_clients=0.25, choice_fraction=share) for share in (0.5, 0.0))
    assert (module.eval_splits, without.eval_splits) == (["val", "test", "choice"], ["val", "test"])
    assert module.class_counts()["choice"].sum() == sum(map(len, split(module, "choice").values())) > 0
    assert "choice" not in without.class_counts()
    assert module.fingerprint() != without.fingerprint()


@pytest.mark.parametrize(("options", "training"), [({}, 6), ({"val_clients": 0.5}, 3)])
def test_clients_that_are_held_out_never_take_part_in_a_round(options, training):
    module = ready(test_clients=0.25, participation=Participation(training - 1), **options)
    ids = {client for index in range(30) for client in module.make_round(index).examples.ids.tolist()}
    assert ids == set(range(training))
    with pytest.raises(PflError, match=rf"data\.participation\.pool_size: 7 .* 1 to {training}, "):
        ready(participation=Participation(7), test_clients=0.25, **options)


@pytest.mark.parametrize("options", [{}, {"test_fraction": 0.3}, {"test_clients": 0.5}])
def test_client_of_natural_users_has_the_samples_of_one_user_in_all_splits(options):
    module = ready(partition=NaturalUsers(), num_clients=6, val_fraction=0.25, **options)
    held = [[*chain(*(split(module, name)[client] for name in ("train", "val", "test")))] for client in range(6)]
    users = [{number % USERS for number in own} for own in held]
    assert list(map(len, users)) == [1] * 6
    assert len(set.union(*users)) == 6
    assert list(map(len, held)) == [(TRAIN + TEST) / USERS] * 6


@pytest.mark.parametrize(
    ("method", "models", "option"),
    [
        (FedRep, "stored", "test_clients"),
        (HFMAML, "adapted, global", "val_clients"),
        (Ditto, "personal, global", "val_clients"),
        (FedBABU, "finetuned, global", "test_clients"),
    ],
)
def test_clients_that_never_train_are_not_evaluated_by_what_they_do_not_have(option, method, models, ragged_data, fit):
    line = rf"data\.{option}: 0\.5 is not possible with {method.__name__}, which .* \({models}\); allowed: 0, or"
    with pytest.raises(PflError, match=line):
        fit(method(network=partial(MLP, hidden=(4,))), ragged_data(**{option: 0.5}), 1)


@pytest.mark.parametrize(
    ("options", "training"),
    [
        ({"test_clients": 0.5, "val_fraction": 0.0}, 3),
        ({"test_clients": 0.5, "val_clients": 0.5, "choice_fraction": 0.25, "eval_train": True}, 1),
        ({"val_clients": 0.5}, 3),
    ],
)
def test_clients_without_training_samples_get_the_common_model(options, training, ragged_data, fit, tmp_path):
    data = ragged_data(**options)
    method = FedAvg(network=partial(MLP, hidden=(4,)), local=LocalTraining(batch_size=4))
    metrics = fit(method, data, 2).callback_metrics
    assert not data.tables["train"].counts[training:].any()
    loaded = load_method(tmp_path / "run/checkpoints/last.ckpt", network=partial(MLP, hidden=(4,)))
    assert loaded.eval_models == method.eval_models == ("global",)
    assert loaded.eval_epochs == method.eval_epochs == 10
    assert {name.split("/")[0] for name in metrics} >= {"train", *data.eval_splits}
    assert all(torch.isfinite(value) for value in metrics.values())
    assert all(torch.isfinite(tensor).all() for tensor in method.state_dict().values())


def test_data_is_loaded_once_and_modules_do_not_share_their_default_participation():
    module = ready()
    module.setup("fit")
    assert module.loaded == 1
    modules = [Digits(), Digits()]
    modules[0].participation.resize(3)
    assert modules[1].participation.cohort_size is None


@pytest.mark.parametrize("cohort", [None, 3])
def test_round_holds_the_cohort_sorted_by_falling_count(cohort):
    options = {"speeds": DynamicExponential(), "communication_time": 2.5, "seed": 7, "val_fraction": 0.0}
    module = ready(partition=InARow(), participation=Participation(5), **options)
    pool = set(module.make_round(4).examples.ids.tolist())
    assert len(pool) == 5
    module.participation.resize(cohort)
    step, times = module.make_round(4), DynamicExponential().times(4, CLIENTS)
    ids, counts = step.examples.ids.tolist(), step.examples.counts.tolist()
    assert sorted(ids) == sorted(sorted(pool, key=times.__getitem__)[:cohort])
    assert counts == sorted((8 * InARow.shares[client] for client in ids), reverse=True)
    assert inputs_of(step.examples) == {client: [*InARow.owned(client)[0]] for client in ids}
    assert step.times.tolist() == [times[client] for client in ids]
    assert step.weights.tolist() == pytest.approx([count / sum(counts) for count in counts])
    assert (step.round_index, step.seed, step.communication_time) == (4, 7, 2.5)


class OwnSpeeds(Speeds):
    """Speeds of the user's own, which give these times."""

    def __init__(self, times):
        self.given = times

    def times(self, round_index, num_clients):
        return self.given


@pytest.mark.parametrize("times", [[1.0] * 3, [1.0] * 11, [-1.0] * 10, [math.nan] * 10, [math.inf] * 10])
def test_times_that_are_none_are_refused_in_one_line(times):
    with pytest.raises(PflError, match=rf"^data.speeds must give 10 finite .* got {len(times)} .* OwnSpeeds$"):
        ready(num_clients=10, speeds=OwnSpeeds(times)).make_round(0)


def test_times_per_sample_grow_with_what_a_client_holds_and_decide_who_is_fastest():
    module = ready(speeds=UniformTime(0.5), time_per="sample")
    step, counts = module.make_round(0), sorted(module.training_counts.tolist())
    assert counts[0] < counts[-1]
    np.testing.assert_array_equal(step.times, 0.5 * step.examples.counts)
    module.participation.resize(3)
    assert sorted(module.make_round(0).examples.counts.tolist()) == counts[:3]


def test_round_is_a_pure_function_of_its_index_and_the_seed():
    def module():
        return ready(participation=Participation(5), speeds=DynamicExponential())

    used = module()
    for index in (0, 5, 1):
        used.make_round(index)
    assert fields(used.make_round(3)) == fields(module().make_round(3))
    assert fields(used.make_round(3)) != fields(used.make_round(4))
    steps = [ready(participation=Participation(4), seed=seed).make_round(0) for seed in range(8)]
    assert len({frozenset(step.examples.ids.tolist()) for step in steps}) > 1, "the seed changes who takes part"


def test_one_step_is_one_round():
    module = ready(participation=Participation(5))
    module.trainer = SimpleNamespace(max_steps=3)
    assert [fields(step) for step in module.train_dataloader()] == [
        fields(module.make_round(index)) for index in range(3)
    ]


@pytest.mark.parametrize("loader", ["val_dataloader", "test_dataloader"])
def test_evaluations_hold_every_client_with_all_its_splits(loader):
    module = ready(val_fraction=0.25, partition=InARow())
    steps = list(getattr(module, loader)())
    ids = [client for step in steps for client in step.train.ids.tolist()]
    assert sorted(ids) == list(range(CLIENTS))
    assert [InARow.shares[client] for client in ids] == sorted(InARow.shares, reverse=True)
    for step in steps:
        train, val, test = map(inputs_of, (step.train, step.evaluated["val"], step.evaluated["test"]))
        assert list(train) == list(val) == list(test)
        for client in train:
            assert (sorted(train[client] + val[client]), test[client]) == tuple(map(list, InARow.owned(client)))
            assert len(val[client]) == 2 * InARow.shares[client]


@pytest.mark.parametrize("client", [0, 6])
def test_client_loader_has_the_samples_of_one_client(client):
    module = ready(val_fraction=0.25, partition=InARow())
    assert list(ready(val_fraction=0.0).client_dataloader(client, "val")) == []
    found = {}
    for name in ("train", "val", "test"):
        batches = list(module.client_dataloader(client, name, batch_size=4))
        assert all(len(inputs) == len(targets) <= 4 for inputs, targets in batches)
        found[name] = [number for inputs, _ in batches for number in numbers(inputs)]
        assert [number % 4 for number in found[name]] == [label for _, own in batches for label in own.tolist()]
    trained, tested = map(list, InARow.owned(client))
    assert sorted(found["train"] + found["val"]) == trained
    assert sorted(found["test"]) == tested
    assert len(found["val"]) == len(trained) / 4


class Pictures(Numbered):
    """The same with images of 4 x 4 pixels, which training crops and flips."""

    input_shape = (1, 4, 4)
    padding = 1

    def load(self):
        train, test = super().load()
        pixels = torch.arange(16, dtype=torch.uint8).view(4, 4)
        return tuple(split._replace(inputs=split.inputs + pixels) for split in (train, test))

    def transform(self):
        return ImageTransform([0.0], [1.0], self.padding)


@pytest.mark.parametrize("padding", [0, 1])
def test_client_loader_augments_training_samples_anew_in_each_epoch(padding, monkeypatch):
    monkeypatch.setattr(Pictures, "padding", padding)
    module = Pictures(val_fraction=0.25, partition=InARow())
    module.setup()
    examples = module.tables["train"].examples(torch.tensor([2]))
    plain = {tuple(image.flatten().tolist()) for image in examples.gather(examples.positions)[0]}
    epochs = [torch.cat([inputs for inputs, _ in module.client_dataloader(2, batch_size=4)]) for _ in range(2)]
    assert epochs[0].shape == epochs[1].shape == (len(plain), 1, 4, 4)
    drawn = [{tuple(image.flatten().tolist()) for image in epoch} for epoch in epochs]
    assert (drawn[0] == plain) == (drawn[1] == plain) == (drawn[0] == drawn[1]) == (padding == 0)
    tests = [next(iter(module.client_dataloader(2, "test", batch_size=99)))[0] for _ in range(2)]
    assert tests[0].equal(tests[1]), "only training samples are augmented"


def held(module):
    """The samples of training and validation, and those of tests, of each client."""
    train, val, test = (split(module, name) for name in ("train", "val", "test"))
    return {client: own + val[client] for client, own in train.items()}, test


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Numbered, {}),
        (Numbered, {"num_clients": 5}),
        (Numbered, {"test_fraction": 0.4}),
        (Numbered, {"partition": ConsecutiveClasses(2, EqualSizes(10))}),
        (Unsplit, {"partition": ClassShards(2)}),
    ],
)
@pytest.mark.parametrize("val_fraction", [0.0, 0.25])
def test_new_clients_train_on_what_the_run_trained_on_and_are_tested_on_its_test_samples(kind, options, val_fraction):
    run, new = (kind(val_fraction=val_fraction, new_clients=count, **options) for count in (0, 5))
    for module in (run, new):
        module.setup("test")
    (trained, tested), (trained_anew, tested_anew) = held(run), held(new)
    assert list(trained_anew) == list(tested_anew) == [0, 1, 2, 3, 4]
    for before, after in ((trained, trained_anew), (tested, tested_anew)):
        assert set(chain(*after.values())) <= set(chain(*before.values()))
        assert len(set(chain(*after.values()))) == len([*chain(*after.values())]), "no sample is of two clients"
        assert all(after.values())
        assert {frozenset(own) for own in after.values()}.isdisjoint(map(frozenset, before.values()))
        if not options:
            assert sorted(chain(*after.values())) == sorted(chain(*before.values())), "they get every sample"


@pytest.mark.parametrize("partition", [Dirichlet(1.0, 5), NaturalUsers()])
def test_new_clients_have_the_same_share_of_their_samples_as_the_runs_and_the_runs_fingerprint(partition):
    options = {"partition": partition, "num_clients": 5, "val_fraction": 0.0}
    every, some = (ready(**options, new_clients=5, sample_fraction=share) for share in (1.0, 0.25))
    for whole, part in zip(held(every), held(some), strict=True):
        assert {client: max(1, round(0.25 * len(own))) for client, own in whole.items()} == {
            client: len(own) for client, own in part.items()
        }
    run = ready(**options, sample_fraction=0.25)
    assert some.fingerprint() == run.fingerprint() != every.fingerprint()
    assert held(some) != held(run)


@pytest.mark.parametrize("partition", [ClassShards(2), NaturalUsers()])
def test_new_clients_can_train_on_few_samples_and_are_tested_on_all(partition):
    options = {"partition": partition, "num_clients": 6, "new_clients": 4, "val_fraction": 0.0}
    (trained, tested), (few, tested_then) = (held(ready(**options, new_samples=most)) for most in (None, 3))
    assert tested_then == tested
    assert min(map(len, trained.values())) > 3
    assert [len(own) for own in few.values()] == [3] * 4
    assert all(set(few[client]) < set(own) for client, own in trained.items())


@pytest.mark.parametrize(("kind", "test_fraction"), [(Numbered, None), (Numbered, 0.3), (Unsplit, None)])
def test_new_clients_of_natural_users_are_users_that_the_run_has_left(kind, test_fraction):
    options = {"partition": NaturalUsers(), "num_clients": 6, "test_fraction": test_fraction}
    run, new = kind(**options), kind(new_clients=4, **options)
    for module in (run, new):
        module.setup("test")
    users = []
    for module in (run, new):
        trained, tested = held(module)
        users.append([{number % USERS for number in trained[client] + tested[client]} for client in trained])
        assert all(trained.values())
        assert all(tested.values())
    assert [list(map(len, each)) for each in users] == [[1] * 6, [1] * 4]
    assert sorted(chain(*users[0], *users[1])) == list(range(USERS))


USERS_LEFT = {"partition": NaturalUsers(), "new_clients": 5}


@pytest.mark.parametrize(
    ("stage", "options", "line"),
    [
        ("test", {**USERS_LEFT, "num_clients": 6}, "must be at most 4, the users that training has .* got 5$"),
        ("test", {**USERS_LEFT, "num_clients": 10}, "must be at most 0, the users that training has .* got 5$"),
        ("test", {"new_clients": 33}, "must be at most 32, .* 160 training .* got 33$"),
        ("test", {"new_clients": 5, "test_clients": 0.5}, r"must be 0 with data\.test_clients: 0\.5$"),
        ("test", {"new_clients": 5, "val_clients": 0.5}, r"must be 0 with data\.val_clients: 0\.5$"),
        ("fit", {"new_clients": 5}, "must be 0 to train: "),
        ("validate", {"new_clients": 5}, "must be 0 to train: "),
        ("test", {"new_samples": 3}, r"data\.new_samples must be null without data\.new_clients, got 3$"),
    ],
)
def test_impossible_new_clients_are_refused(stage, options, line):
    with pytest.raises(PflError, match=rf"^(data\.new_clients )?{line}"):
        Numbered(**options).setup(stage)


def test_an_empty_root_is_refused():
    with pytest.raises(PflError, match=r"^data\.root must be a path, such as \. for this folder, got ''$"):
        Numbered(root="")


def test_data_in_which_nobody_can_be_tested_are_refused():
    with pytest.raises(PflError, match=r"data\.test_fraction: no client has a test sample"):
        LinearRepresentation(samples=1).setup()


def test_clients_without_a_test_sample_are_counted(ragged_data):
    with pytest.warns(UserWarning, match="1 of 6 clients have no test samples, and so no score"):
        ragged_data(test_fraction=0.2).setup()


def test_the_fingerprint_tells_data_and_their_split():
    def fingerprint(**options):
        data = Digits(**options)
        data.setup()
        return data.fingerprint()

    assert fingerprint() == fingerprint(seed=5)
    assert len({fingerprint(), fingerprint(partition_seed=1), fingerprint(val_fraction=0.2)}) == 3


def test_the_fingerprint_tells_every_sample():
    data = Digits()
    data.setup()
    before, samples = data.fingerprint(), data.tables["train"].samples
    for place in (0, 1, 1000, -1):
        for tensor in (samples.inputs[place, 0, -1], samples.targets[place : place + 1 or None]):
            tensor[0] ^= 1
            assert data.fingerprint() != before
            tensor[0] ^= 1
            assert data.fingerprint() == before


def test_the_fingerprint_tells_what_transforms_the_samples(ragged_data):
    data = ragged_data()
    data.setup()
    before = data.fingerprint()
    data.transform = lambda: TokenVectors(torch.zeros(2, 3))
    assert data.fingerprint() != before


def test_the_partition_by_speed_sees_what_the_rounds_see():
    # the fastest half of ten classes' clients holds the lower classes, by the mean of times that change in each round
    speeds = DynamicExponential(seed=3)
    data = Digits(num_clients=10, partition=SpeedGroups(2), speeds=speeds)
    data.setup()
    fast = np.argsort(speeds.mean_times(10))[:5]
    held = data.class_counts()["train"]
    assert not held[fast, 5:].any()
    assert not np.delete(held, fast, axis=0)[:, :5].any()
