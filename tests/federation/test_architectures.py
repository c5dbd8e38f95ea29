from functools import partial
from pathlib import Path

import pytest
import torch
from fakes.loops import map_clients, trained
from fakes.methods import PersonalSGD, built, weighted_mean
from torch import nn

from pfl_lightning.callbacks import SparsityTracker
from pfl_lightning.errors import PflError
from pfl_lightning.federation import cohort
from pfl_lightning.federation.architectures import networks_report
from pfl_lightning.methods import CFL, DPSGD, FedAvg, FedDistill, FedGen, FedGH, FedProto, FedRep, LGFedAvg, Local
from pfl_lightning.models import MLP, Architectures, ConvNet, LogisticRegression, LoRA, start_networks
from pfl_lightning.tasks import Classification
from pfl_lightning.threads import map_in_threads

SMALL = partial(MLP, hidden=(6, 5))
WIDE = partial(MLP, hidden=(9,))
COPIES = partial(Architectures, networks=[SMALL, SMALL])
TWO = partial(Architectures, networks=[SMALL, WIDE], width=4)
CONVOLUTIONS = [partial(ConvNet, channels=(3, 4), hidden=hidden) for hidden in ((), (6,))]
TWO_OF_IMAGES = partial(Architectures, networks=CONVOLUTIONS, width=3)
DEEP_AND_FLAT = partial(TWO, width=None)
WIDTHS = partial(Architectures, networks=[partial(MLP, hidden=(6,)), WIDE])
ONE_LAYER = partial(LGFedAvg, head=1)
HEAD = ("head.weight", "head.bias")
METHODS = {"Local": Local, "LG-FedAvg": ONE_LAYER, "FedProto": FedProto}


def models_of(method, data):
    """The tensors of each client's model."""
    return [method.client(client, "stored", data).state_dict() for client in range(data.num_clients)]


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("clients", [None, [2, 4], [[5, 0], [1, 2, 3, 4]]])
def test_copies_of_a_network_do_what_one_does(make, clients, ragged_data, fit):
    torch.set_default_dtype(torch.float64)
    found = []
    for network in (SMALL, partial(COPIES, clients=clients)):
        data = ragged_data()
        method = built(make, data, network=network)
        fit(method, data, 3, str(len(found)))
        found.append((models_of(method, data), method.trainer.callback_metrics))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-6, atol=1e-6)  # metrics are float32


def test_a_round_is_that_of_plain_loops_over_clients_with_their_own_networks(ragged_data, fit):
    torch.set_default_dtype(torch.float64)
    data = ragged_data(val_fraction=0.0)
    method = built(ONE_LAYER, data, network=TWO)
    starts = [method.client(client, "stored") for client in range(data.num_clients)]
    assert [len(start.fc1.weight) for start in starts] == [6, 9] * 3
    fit(method, data, 1, bare=True)
    examples, rule = data.make_round(0).examples, {"momentum": 0.0, "decay": 1e-4}
    key = (1, "train", 0, "all")

    def plainly(own):
        start = starts[own.ids[0]]
        return trained(start, start.state_dict(), own, key, **rule)

    clients, _ = map_clients(data, plainly)
    head = weighted_mean([{name: client[name] for name in HEAD} for client in clients], examples.counts)
    for client, expected in zip(examples.ids.tolist(), clients, strict=True):
        model = method.client(client, "stored").state_dict()
        torch.testing.assert_close(dict(model), {**expected, **head}, rtol=0, atol=1e-12)
        assert (model["fc1.bias"] - starts[client].fc1.bias).abs().max() > 1e-4


@pytest.fixture
def threads(monkeypatch):
    """Sets the number of torch's threads; afterwards there is one. Its ``spread`` are the groups that had threads."""

    def set_threads(number):
        torch.set_num_threads(number)

    set_threads.spread = []

    def noted(work, groups, *arguments):
        set_threads.spread.append(groups)
        return map_in_threads(work, groups, *arguments)

    monkeypatch.setattr(cohort, "map_in_threads", noted)
    yield set_threads
    torch.set_num_threads(1)


@pytest.mark.parametrize("make", [ONE_LAYER, partial(Local, chunk_size=2)], ids=["LG-FedAvg", "Local, in chunks"])
def test_networks_train_at_the_same_time_and_the_numbers_are_those_of_one_thread(make, threads, ragged_data, fit):
    found = []
    for number, parts in ((1, [3]), (2, [3]), (2, [1, 3])):  # the last one is resumed
        threads(number)
        resumed = {}
        for rounds in parts:
            data = ragged_data()
            method = built(make, data, network=partial(TWO_OF_IMAGES, clients=[4, 2]))
            trainer = fit(method, data, rounds, f"{number} {parts}", **resumed)
            resumed = {"ckpt_path": Path(trainer.default_root_dir) / "checkpoints/last.ckpt"}
        assert method.progress.reached == method.progress.clients == 6
        found.append((models_of(method, data), method.trainer.callback_metrics, method.accounting.ledger))
    assert threads.spread == [[0, 1]] * 6
    for others in found[1:]:
        torch.testing.assert_close(others, found[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "network", "number"),
    [
        (partial(ONE_LAYER, backend="sequential"), TWO_OF_IMAGES, 2),
        (ONE_LAYER, TWO_OF_IMAGES, 3),
        (ONE_LAYER, partial(TWO_OF_IMAGES, clients=[5, 1]), 2),
        (ONE_LAYER, TWO, 2),
        (PersonalSGD, partial(Architectures, networks=CONVOLUTIONS[:1] * 2), 2),
    ],
    ids=["as requested", "fewer networks than threads", "uneven", "batched", "a rule of its own"],
)
def test_networks_train_one_after_another(make, network, number, threads, train):
    threads(number)
    train(make, 1, network=network)
    assert not threads.spread


def test_an_error_of_a_network_in_a_thread_is_raised(threads, ragged_data, fit, monkeypatch):
    def fail(*_):
        raise PflError("this network cannot train")

    threads(2)
    method = built(ONE_LAYER, ragged_data(), network=TWO_OF_IMAGES)
    monkeypatch.setattr(method.architectures[1].engine, "train", fail)
    with pytest.raises(PflError, match="this network cannot train"):
        fit(method, ragged_data(), 1, bare=True)
    assert threads.spread


def test_clients_hold_rows_of_their_own_network_alone(ragged_data):
    data = ragged_data()
    method = built(Local, data, network=partial(TWO, clients=[2, 4]))
    numbers = [sum(tensor.numel() for tensor in own.network.parameters()) for own in method.architectures]
    assert numbers[0] != numbers[1]
    assert method.clients.nbytes == 4 * (2 * numbers[0] + 4 * numbers[1])


def test_what_clients_send_of_different_networks_is_counted(ragged_data, fit):
    data = ragged_data()
    method = built(ONE_LAYER, data, network=TWO)
    fit(method, data, 2, bare=True)
    numbers = 3 * 4 + 3  # of the head, of 3 classes
    losses = 32  # of each client
    ledger = method.accounting.ledger
    assert ledger.down == 6 * 32 * numbers
    assert ledger.up == 6 * (32 * numbers + losses)


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (ONE_LAYER, 100 * 512 + 100),
        (FedGH, 100 * 512 + 100),
        (FedGen, 100 * 512 + 100 + 331_776 + 100),  # and the generator, and shares of classes
        (FedProto, 100 * 512 + 100),  # and which prototypes there are
        (FedDistill, 100 * 100 + 100 + 1),  # and of which classes, and in which round
        (Local, 0),
    ],
    ids=["LG-FedAvg", "FedGH", "FedGen", "FedProto", "FedDistill", "Local"],
)
def test_what_clients_receive_in_the_experiments_of_htfllib(make, numbers):
    """Pictures of 100 classes, 20 clients, features of 512: 1.03, 1.03, 7.66, 1.02, 0.20 and 0 million for all."""
    networks = [partial(ConvNet, channels=(4, 8), hidden=hidden) for hidden in ((), (512,), (1024,), (1024, 512))]
    method = make(network=partial(Architectures, networks=networks, width=512))
    method.build((3, 32, 32), Classification().sized(100), 20)
    assert sum(tensor.numel() for tensor in method.broadcast().values()) == numbers


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        (None, [[0, 3, 6], [1, 4], [2, 5]]),
        ([[6, 1], [0], [5, 4, 3, 2]], [[1, 6], [0], [2, 3, 4, 5]]),
        ([1, 2, 4], [1, 2, 4]),
        ([0.5, 0.25, 0.25], [4, 1, 2]),
    ],
)
def test_each_client_has_one_network(clients, expected):
    networks = start_networks(
        partial(Architectures, networks=[SMALL, WIDE, LogisticRegression], clients=clients), (4,), 3, 0, {}
    )
    members = networks.members(7)
    sizes = [len(each) if isinstance(expected[0], int) else each.tolist() for each in members]
    assert sizes == expected
    assert sorted(torch.cat(members).tolist()) == list(range(7))
    again = start_networks(partial(Architectures, networks=[SMALL] * 3, clients=clients, seed=1), (4,), 3, 5, {})
    drawn = isinstance(expected[0], int)
    assert torch.equal(torch.cat(again.members(7)), torch.cat(members)) != drawn, "another draw"


@pytest.mark.parametrize(
    "clients", [[3, 3], [3, 5], [0.5, 0.6], [[0, 1], [1, 2]], [[0, 1, 2, 3, 4, 5], []], [6, 0], [6]]
)
def test_clients_without_a_network_or_with_two_are_refused(clients, ragged_data):
    with pytest.raises(PflError, match=r"^model\.network\.clients must give each of 7 clients one of 2 networks"):
        built(Local, ragged_data(num_clients=7), network=partial(TWO, clients=clients))


@pytest.mark.parametrize(
    ("make", "network", "line"),
    [
        (FedAvg, TWO, r"FedAvg shares fc1\.bias, which is \[6\] in MLP and \[9\] in MLP; allowed: "),
        (ONE_LAYER, DEEP_AND_FLAT, r"LGFedAvg shares fc2\.bias, which is missing in MLP and \[3\] in MLP; allowed: "),
        (ONE_LAYER, WIDTHS, r"LGFedAvg shares fc2\.weight, which is \[3, 6\] in MLP and \[3, 9\] in MLP; allowed: "),
        (FedProto, WIDTHS, r"FedProto shares prototypes, which is \[3, 6\] in MLP and \[3, 9\] in MLP; allowed: "),
        (DPSGD, COPIES, r"Architectures is not possible with DPSGD, whose"),
        (FedRep, partial(Architectures, networks=[SMALL, LogisticRegression]), "FedRep needs a body; Logistic"),
        (Local, partial(Architectures, networks=[]), r"networks must be one network or more, got none"),
    ],
)
def test_networks_that_do_not_have_in_common_what_is_shared_are_refused(make, network, line, ragged_data):
    with pytest.raises(PflError, match=rf"^model\.network[:.].*{line}"):
        built(make, ragged_data(), network=network)


def test_a_rule_that_reads_what_clients_keep_is_refused(ragged_data, fit):
    with pytest.raises(PflError, match=r"^model\.network: Architectures is not possible with"):
        fit(built(partial(CFL, split_below=9.0), ragged_data(), network=COPIES), ragged_data(), 1)


def test_options_of_a_single_network_are_refused(ragged_data):
    with pytest.raises(PflError, match=r"^model\.adapter must be null with Architectures"):
        built(Local, ragged_data(), network=TWO, adapter=LoRA(2, targets=["fc1"]))
    linear = partial(Architectures, networks=[lambda input_shape, num_classes: nn.Linear(4, 3)], width=4)
    with pytest.raises(PflError, match=r"^model\.network\.width: 4 is not possible with Linear; allowed: null"):
        built(Local, ragged_data(), network=linear)


def test_densities_of_layers_that_differ_have_no_mean(ragged_data, fit):
    line = r"^trainer\.callbacks: SparsityTracker is not possible with Architectures"
    with pytest.raises(PflError, match=line):
        fit(built(Local, ragged_data(), network=TWO), ragged_data(), 1, callbacks=[SparsityTracker()])


def test_it_is_said_how_many_clients_have_which_network(ragged_data):
    method = built(Local, ragged_data(), network=partial(TWO, clients=[2, 4]))
    one, two = (256 * 6 + 6 + 6 * 5 + 5 + 15, 256 * 9 + 9 + 15)
    says = f"model.network: 2 clients have MLP with {one:,} parameters, 4 clients have MLP with {two:,} parameters"
    assert networks_report(method) == says
    assert networks_report(built(Local, ragged_data())) == ""


def test_the_head_of_a_client_is_that_of_its_network(ragged_data, fit):
    data = ragged_data()
    method = built(Local, data, network=TWO)
    fit(method, data, 1, bare=True)
    for client in (0, 3):
        head = {f"head.{name.split('.')[-1]}": tensor for name, tensor in method.heads[client].state_dict().items()}
        model = method.client(client, "stored").state_dict()
        assert all(torch.equal(model[name], tensor) for name, tensor in head.items())
