"""What every method must do; a new method is one more row of METHODS.

Its other settings are slow tests, and parts of the contract that hardly depend on the method are slow for all.
"""

import gc
import inspect
import math
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from fakes.methods import Models, PersonalSGD, distance, make_method, tensors
from fakes.networks import Nested, Tied
from fakes.tasks import ADAPTED, TASKS
from torch import nn
from torch.optim import SGD

from pfl_lightning import load_method, methods
from pfl_lightning.callbacks import StageDoubling
from pfl_lightning.contract import Subject
from pfl_lightning.contract import methods as contract
from pfl_lightning.errors import PflError
from pfl_lightning.federation.checks import PREFIXES
from pfl_lightning.methods import Method, Sparsity
from pfl_lightning.models import MLP, Architectures, ConvNet, LeNet5, LogisticRegression, LoRA, Network
from pfl_lightning.objects import to_settings
from pfl_lightning.server import (
    Bulyan,
    CenteredClipping,
    DPAggregator,
    ErdosRenyi,
    FLTrust,
    GeometricMedian,
    Krum,
    Median,
    NearestNeighbours,
    NormClipping,
    SecureAggregator,
    TrimmedMean,
    Yogi,
)
from pfl_lightning.system import Participation
from pfl_lightning.tree import Params, wide
from pfl_lightning.uplink import Clip, ErrorFeedback, LowRank, MinMax, Momentum, Quantize, SignFlip, TopK


def with_two_networks(kind, network=MLP, **options):
    """A method half of whose clients have another network; both end with the same head."""
    networks = [network, partial(MLP, hidden=(7,))]
    return make_method(kind, network=partial(Architectures, networks=networks, width=4), head=1, **options)


def over_secure_sums(kind, **options):
    """A method with secure sums of its own: they have a state."""
    return make_method(kind, aggregator=SecureAggregator(), **options)


EVERY_RATE = {"weight_decay": 0.1, "decay_biases": True, "clip_norm": 0.5, "momentum": 0.5}
ADAPTER = LoRA(2, targets=["fc1", "features.0"])
SPARSE = Sparsity(weight=1e-2, threshold=1e-2, prune=True)
METHODS = {
    "APFL": partial(methods.APFL, epochs=2, lr=0.05),  # its weights move from the second step on
    "APPLE": partial(methods.APPLE, lr=0.5, relation_lr=0.05),
    "CFL": partial(methods.CFL, split_below=9.0, split_above=0.0),  # whenever it can
    "ClientLoop": PersonalSGD,
    "DeltaFL": partial(methods.DeltaFL, conformity=0.6),
    "DeltaFL over secure sums": lambda **kwargs: make_method(
        methods.DeltaFL, quantile="sums", aggregator=SecureAggregator(), **kwargs
    ),
    "DeltaFL smoothed": partial(methods.DeltaFL, tail="dual", smoothing=0.1, quantile_every=2),
    "DePRL": partial(methods.DePRL, head_epochs=2, epochs=2),
    "DePRL with random heads": partial(methods.DePRL, head_epochs=2, head_init="random"),
    "DPSGD": methods.DPSGD,
    "DPSGD on random graphs": partial(methods.DPSGD, topology=ErdosRenyi(0.5, redraw_every=2), mixing="uniform"),
    "DisPFL": partial(methods.DisPFL, drop_rounds=4),
    "DisPFL, uniform and random": partial(methods.DisPFL, layers="uniform", regrow="random", mixing="uniform"),
    "Ditto": methods.Ditto,
    "FedALA": partial(methods.FedALA, weight_lr=5.0, weight_epochs=2),
    "FedALT": partial(methods.FedALT, adapter=ADAPTER),
    "FedALT over secure sums": partial(over_secure_sums, methods.FedALT, adapter=ADAPTER),
    "FedAMP": partial(methods.FedAMP, sigma=1.0, attention_lr=0.1, proximity=0.5),
    "FedAS": partial(methods.FedAS, align_lr=0.05),
    "FedAS over secure sums": partial(over_secure_sums, methods.FedAS),
    "FedAvg": methods.FedAvg,
    "FedAvg with all rates": partial(methods.FedAvg, epochs=3, epoch_steps=2, lr_decay=0.7, **EVERY_RATE),
    "FedAvg with AdamW": partial(methods.FedAvg, optimizer="AdamW", epochs=2, weight_decay=0.1),
    "FedAvg over secure sums": partial(over_secure_sums, methods.FedAvg),
    "FedAvg by a median, attacked": lambda **kwargs: make_method(
        methods.FedAvg, aggregator=Median(), uplink=[MinMax(0.4), Clip(0.5)], **kwargs
    ),
    "FedAvg by centered clipping": lambda **kwargs: make_method(
        methods.FedAvg, aggregator=NearestNeighbours(CenteredClipping(0.1)), uplink=[Momentum(0.5)], **kwargs
    ),
    "FedAvg with attackers": lambda **kwargs: make_method(
        methods.FedAvg, uplink=[Clip(0.5), Quantize(6), SignFlip(0.4)], **kwargs
    ),
    "FedAvgM": partial(methods.FedAvg, server_optimizer=partial(SGD, lr=0.7, momentum=0.9)),
    "FedEM": partial(methods.FedEM, models=2),
    "FedEM over secure sums": partial(over_secure_sums, methods.FedEM),
    "FedCAC": partial(methods.FedCAC, mix_rounds=4),
    "FedCP": methods.FedCP,
    "FedCP over secure sums": partial(over_secure_sums, methods.FedCP),
    "FedDBE": methods.FedDBE,
    "FedDBE over secure sums": partial(over_secure_sums, methods.FedDBE),
    "FedDistill": partial(methods.FedDistill, strength=2.0),
    "FedDistill over secure sums": partial(over_secure_sums, methods.FedDistill),
    "FedDistill with two networks": partial(with_two_networks, methods.FedDistill),
    "FedDyn": partial(methods.FedDyn, alpha=0.1),
    "FedGen": partial(methods.FedGen, noise=3, hidden=7, generator_steps=5, generator_lr=0.05),
    "FedGen over secure sums": partial(over_secure_sums, methods.FedGen, generator_steps=5),
    "FedGen with two networks": partial(with_two_networks, methods.FedGen, generator_steps=5),
    "FedGH": partial(methods.FedGH, server_lr=0.1, server_batch=3),
    "FedGH with two networks": partial(with_two_networks, methods.FedGH),
    "FedTGP": partial(methods.FedTGP, server_lr=0.1, server_epochs=5, server_batch=3),
    "FedTGP with two networks": partial(with_two_networks, methods.FedTGP),
    "FedKD": methods.FedKD,
    "FedKD in low rank": lambda **kwargs: make_method(methods.FedKD, uplink=[LowRank(0.7, 0.9)], **kwargs),
    "FedKD with two networks": partial(with_two_networks, methods.FedKD),
    "FedLC": methods.FedLC,
    "FedFomo": methods.FedFomo,
    "FedNTD": partial(methods.FedNTD, temperature=2.0),
    "FedNova": partial(methods.FedNova, momentum=0.5),
    "FedNova over secure sums": partial(over_secure_sums, methods.FedNova),
    "FedYogi": partial(methods.FedAvg, server_optimizer=partial(Yogi, lr=0.1)),
    "FedPAC": partial(methods.FedPAC, head_epochs=2),
    "FedPHP": partial(methods.FedPHP, expected=4),
    "FedPHP by outputs": partial(methods.FedPHP, transfer="kd", expected=4),
    "FedPHP over secure sums": partial(over_secure_sums, methods.FedPHP),
    "FedPer": methods.FedPer,
    "FedPer with own biases": partial(methods.FedPer, keeps="*bias"),
    "FedBABU": partial(methods.FedBABU, lr=0.05),
    "FedAvg, sparse and pruned": partial(methods.FedAvg, sparsity=replace(SPARSE, floor="topk")),
    "FedMac": partial(methods.FedMac, correlation=0.1, copy_lr=3.0, epochs=6, epoch_steps=1),
    "FedMac, sparse": partial(methods.FedMac, inner_steps=2, sparsity=SPARSE),
    "FedProto": methods.FedProto,
    "FedProto over secure sums": partial(over_secure_sums, methods.FedProto),
    "FedProto by the nearest": partial(methods.FedProto, predict="nearest"),
    "FedProto with two networks": partial(with_two_networks, methods.FedProto),
    "FedProx": partial(methods.FedProx, proximity=0.5),
    "FedRep": partial(methods.FedRep, head_epochs=2, epochs=2),
    "FedRep with Adam": partial(methods.FedRep, head_epochs=2, optimizer="Adam", clip_norm=0.5),
    "FedRep with the largest entries": lambda **kwargs: make_method(
        methods.FedRep, uplink=[ErrorFeedback(TopK(0.2))], **kwargs
    ),
    "FedRep over secure sums": partial(over_secure_sums, methods.FedRep, head_epochs=2),
    "FedRep over private sums": lambda **kwargs: make_method(
        methods.FedRep, aggregator=DPAggregator(0.5, 0.1), weighting="uniform", **kwargs
    ),
    "FedRep by a trimmed mean": lambda **kwargs: make_method(methods.FedRep, aggregator=TrimmedMean(), **kwargs),
    "FedRoD": partial(methods.FedRoD, personal_epochs=2),
    "GPFL": partial(methods.GPFL, strength=0.1),
    "GPFL over secure sums": partial(over_secure_sums, methods.GPFL),
    "FlexLoRA": partial(methods.FlexLoRA, adapter=ADAPTER, ranks=[2, 1]),
    "FlexLoRA over secure sums": partial(over_secure_sums, methods.FlexLoRA, adapter=ADAPTER, ranks=[2, 1]),
    "FML": methods.FML,
    "FML over secure sums": partial(over_secure_sums, methods.FML),
    "FML with two networks": partial(with_two_networks, methods.FML),
    "FedMRL": methods.FedMRL,
    "FedMRL with a small network": partial(methods.FedMRL, shared_network=partial(MLP, hidden=(3,))),
    "FedMRL with two networks": partial(with_two_networks, methods.FedMRL),
    "HetLoRA": partial(methods.HetLoRA, adapter=ADAPTER, ranks=[2, 1, 2], decay=0.5),
    "HetLoRA over secure sums": partial(over_secure_sums, methods.HetLoRA, adapter=ADAPTER, ranks=[1, 2]),
    "HeteroFL": partial(methods.HeteroFL, rates=[1.0, 0.4, 0.25]),
    "HeteroFL over secure sums": partial(over_secure_sums, methods.HeteroFL, rates=[0.6, 1.0]),
    "Floco": partial(methods.Floco, endpoints=3, uniform_rounds=2),
    "HeurFedAMP": partial(methods.HeurFedAMP, proximity=0.5),
    "HFMAML": partial(methods.HFMAML, difference=1e-2),
    "IFCA": methods.IFCA,
    "IFCA over secure sums": partial(over_secure_sums, methods.IFCA, groups=3),
    "KNNPer": partial(methods.KNNPer, neighbours=3),
    "LGFedAvg": methods.LGFedAvg,
    "LGFedAvg with two networks": partial(with_two_networks, methods.LGFedAvg),
    "Local": methods.Local,
    "QFFL": partial(methods.QFFL, q=0.5),
    "QFFL over secure sums": partial(over_secure_sums, methods.QFFL),
    "SCAFFOLD": methods.SCAFFOLD,
    "SCAFFOLD over secure sums": partial(over_secure_sums, methods.SCAFFOLD),
    "MOON": methods.MOON,
    "PFedMe": partial(methods.PFedMe, inner_steps=3),
    "PFedGraph": partial(methods.PFedGraph, strength=0.5),
    "PFedFDA": methods.PFedFDA,
    "PFedFDA over secure sums": partial(over_secure_sums, methods.PFedFDA),
    "PFedSim": partial(methods.PFedSim, warmup_rounds=1),
    "PFedHN": partial(methods.PFedHN, width=7, layers=2),
    "PerFedAvg": methods.PerFedAvg,
    "FedDPA": partial(methods.FedDPA, adapter=ADAPTER),
    "FedExLoRA": partial(methods.FedExLoRA, adapter=ADAPTER),
    "FedExLoRA over secure sums": partial(over_secure_sums, methods.FedExLoRA, adapter=ADAPTER),
    "FLoRA": partial(methods.FLoRA, adapter=ADAPTER),
    "RoLoRA": partial(methods.RoLoRA, adapter=ADAPTER),
    "RoLoRA over secure sums": partial(over_secure_sums, methods.RoLoRA, adapter=ADAPTER),
}
METHODS = {name: partial(make_method, make) for name, make in METHODS.items()}
NETWORKS = {
    "mlp": partial(MLP, hidden=(8, 5)),
    "wide-mlp": partial(MLP, hidden=(40, 5)),  # its first layer runs in dual form
    "logistic": LogisticRegression,
    "lenet": partial(LeNet5, channels=(3, 4), hidden=(8, 5)),
    "convnet": partial(ConvNet, channels=(3, 4)),
    "own": Nested,
}

# a client may regrow what it has pruned, or prune nothing, have nothing to weigh yet, or as many samples of each class;
# embeddings, and what follows a warm-up, move from the second round on
MAY_STAY = ("mask.", "rank", "weight.", "embedding", "fc3.class_shares", "fc3.centre", "joined")
NEED_A_BODY = (
    *(
        "ClientLoop",
        "DePRL",
        "FedALT",
        "FedAS",
        "FedBABU",
        "FedCP",
        "FedDBE",
        "FedDPA",
        "FedDistill",
        "FedExLoRA",
        "FLoRA",
        "FedGH",
        "FedGen",
        "FedLC",
        "FedNTD",
        "FedPAC",
        "FedPHP",
        "FedPer",
        "FedProto",
        "FedRep",
        "FedTGP",
        "FlexLoRA",
        "Floco",
        "GPFL",
        "HetLoRA",
    ),
    *("FML", "FedKD", "FedMRL", "KNNPer", "LGFedAvg", "MOON", "PFedFDA", "RoLoRA"),
)
WITHOUT_SUMS = (
    "APPLE",
    "CFL",
    "DPSGD",
    "DePRL",
    "DisPFL",
    "FedAMP",
    "FedCAC",
    "FedFomo",
    "FedGH",
    "FedPAC",
    "FedTGP",
    "Floco",
    "HeurFedAMP",
    "Local",
    "PFedGraph",
    "PFedHN",
    "PFedSim",
)
WITHOUT_A_VOTE = (
    *WITHOUT_SUMS,
    "FedALT",
    "FedAS",
    "FedDistill",
    "FLoRA",
    "FedEM",
    "FedExLoRA",
    "FedProto",
    "FlexLoRA",
    "HetLoRA",
    "HeteroFL",
    "IFCA",
    "Local",
)  # no model is uploaded, or it is weighted
VOTES = {
    "Median": Median,
    "Krum": Krum,
    "TrimmedMean": TrimmedMean,
    "Multi-Krum": partial(Krum, kept=None),
    "Bulyan": partial(Bulyan, 0.1),
    "GeometricMedian": GeometricMedian,
    "CenteredClipping": CenteredClipping,
    "FLTrust": FLTrust,
    "NearestNeighbours": NearestNeighbours,
    "NormClipping": NormClipping,
}
UNSUITABLE = {
    "logistic": NEED_A_BODY,
    "convnet": ADAPTED,  # which adapt linear layers of the body
    # whose features cannot be pooled, and which has a layer that nothing uses
    "own": ("HeteroFL", *(name for name in METHODS if name.endswith("two networks"))),
}

FIRST = {type(make()): name for name, make in reversed(METHODS.items())}  # of the settings of each class
MARKS = {name: [] if name in FIRST.values() else [pytest.mark.slow] for name in METHODS}

every_method = pytest.mark.parametrize("make", [pytest.param(METHODS[name], id=name) for name in FIRST.values()])
# other settings change what clients train and upload, but not which models are evaluated, and how
every_setting = pytest.mark.parametrize(
    "make", [pytest.param(make, id=name, marks=MARKS[name]) for name, make in METHODS.items()]
)


def runs():
    """All settings with one of the networks that they can train, in turn, and with one way to run clients.

    Slowly, a method also has a second network and other ways.
    """
    for index, (name, make) in enumerate(METHODS.items()):
        fitting = [network for network in NETWORKS if not name.startswith(UNSUITABLE.get(network, ()))]
        slowly = (index + 2, [("batched", None), ("auto", 2)], [pytest.mark.slow])
        for place, ways, marks in ((index, [("batched", 4)], MARKS[name]), slowly):
            if place == index or name in FIRST.values():
                network = fitting[place % len(fitting)]
                yield pytest.param(make, NETWORKS[network], ways, id=f"{name}-{network}", marks=marks)


def in_turn(partners):
    """Each method with every third of its partners, in turn, so that each partner meets a third of the methods."""
    for place, name in enumerate(FIRST.values()):
        for number, (partner, value) in enumerate(partners.items()):
            marks = [] if partner in ("Median", "Krum") else [pytest.mark.slow]
            if (place + number) % 3 == 0:
                yield pytest.param(METHODS[name], value, id=f"{name}-{partner}", marks=marks)


@pytest.fixture
def subject_of(ragged_data, tmp_path):
    """A small method of this file for the rules of ``pfl check``."""
    return lambda make, network=NETWORKS["mlp"]: Subject(
        partial(make, network=network, batch_size=4), tmp_path, ragged_data
    )


QUICK = (contract.repeats, contract.works_locally_without_side_effects, contract.uploads_what_it_says)
BELOW = (  # with more settings, networks and numbers
    contract.trains_unequal_clients,
    contract.resumes,
    contract.does_not_mix_clients,
    contract.trains_many_at_once,
    contract.leaves_absent_clients_alone,
    contract.is_made_again,
)
RULES = [rule for rule in contract.METHOD_CHECKS if rule not in BELOW]


@every_method
@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=[] if rule in QUICK else [pytest.mark.slow], id=rule.__name__) for rule in RULES]
)
def test_a_method_keeps_the_rules_of_pfl_check(rule, make, subject_of):
    rule(subject_of(make))


@every_setting
def test_resume_is_exact_bit_for_bit(make, subject_of):
    def doubling(method):
        is_private = isinstance(method.aggregator, DPAggregator)  # then clients are drawn at random
        return [] if is_private else [StageDoubling(n0=3, rounds_per_stage=2)]

    contract.resumes(subject_of(make), doubling)


@pytest.mark.parametrize(("make", "network", "ways"), [*runs()])
def test_backends_and_chunks_agree_to_1e_10_of_the_update_after_three_rounds(make, network, ways, subject_of):
    """Terms that begin as zero are not any more, and an upload was lost."""
    subject, datasets = subject_of(make, network=network), []
    ragged_data = subject.data
    subject.data = lambda **options: datasets.append(ragged_data(**options)) or datasets[-1]
    options = [{"backend": backend, "chunk_size": chunk_size} for backend, chunk_size in ways]
    assert contract.compare(subject, {str(way): way for way in options}, "") > 1e-3
    for data in datasets:
        assert 0 < sum(len(data.make_round(index).dropped) for index in range(2)) < 6


@every_setting
def test_clients_that_do_not_take_part_keep_what_they_have(make, ragged_data, fit):
    data = ragged_data(participation=Participation(pool_size=2))
    method = make(network=NETWORKS["mlp"], batch_size=4)
    method.build(data.input_shape, data.task, data.num_clients, data.seed)
    states = [(own.clients, name, own.members) for own in method.architectures for name in own.clients.names]
    before = [clients.stack(name).clone() for clients, name, _ in states]
    fit(method, data, 1, bare=True)
    for rows, (clients, name, members) in zip(before, states, strict=True):
        chosen = set(data.make_round(0).examples.ids.tolist()) & set(members.tolist())
        moved = members[(rows != clients.stack(name)).reshape(len(rows), -1).any(1)]
        for_all = name.startswith(method.written_by_server)
        expected = set(range(data.num_clients)) if for_all else chosen
        found = set(moved.tolist())
        assert found <= expected, name
        assert found == expected or name.startswith(MAY_STAY), name


class Garbage(pl.Callback):
    """The tensors of a round that only the garbage collector frees, which may be many rounds later."""

    def __init__(self):
        self.tensors = []

    def on_train_batch_start(self, *_):
        gc.freeze()
        gc.disable()

    def on_train_batch_end(self, *_):
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        self.tensors += [found for found in gc.garbage if isinstance(found, torch.Tensor)]
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()


@every_method
def test_a_round_leaves_no_tensors_in_cycles(make, ragged_data, fit):
    garbage = Garbage()
    fit(make(network=NETWORKS["mlp"], batch_size=4), ragged_data(), 2, bare=True, callbacks=[garbage])
    assert [tuple(tensor.shape) for tensor in garbage.tensors] == []


@every_method
def test_a_client_with_numbers_of_its_own_does_what_it_does_if_all_have_them(make, ragged_data):
    torch.set_default_dtype(torch.float64)
    data = ragged_data()
    data.setup("fit")
    batch = data.make_round(0)
    own = {"batch_size": 3, "lr": 0.02}
    options = [own, {"batch_size": 4, "lr": 0.05}]
    options.append({**options[1], "clients": {"1": own, "4": own}})
    results = []
    for numbers in options:
        method = make(network=NETWORKS["mlp"], **numbers)
        method.build_for(data)
        results.append(method.participate(batch, torch.arange(len(batch.examples)), batch.examples))
    everyone, none, some = results
    has_own = torch.isin(batch.examples.ids, torch.tensor([1, 4]))
    assert 0 < has_own.sum() < len(has_own)
    differ = False
    for part in ("states", "upload", "losses"):
        trees = [getattr(result, part) for result in (everyone, none, some)]
        trees = [tree if isinstance(tree, dict) else {part: tree} for tree in trees]
        assert trees[0].keys() == trees[2].keys()
        for name, rows in trees[2].items():
            expected = torch.where(wide(has_own, rows), trees[0][name], trees[1][name])
            torch.testing.assert_close(rows, expected, rtol=1e-10, atol=1e-12)
            differ |= not torch.equal(rows, trees[1][name])
    assert differ


@every_setting
def test_unequal_clients_give_finite_results_and_a_checkpoint_restores_them_without_data(
    make, ragged_data, fit, tmp_path
):
    method = make(network=NETWORKS["mlp"])
    trainer = fit(method, ragged_data(num_clients=7), 2)
    assert all(torch.isfinite(tensor).all() for tensor in tensors(method).values())
    scores = {name: value for name, value in trainer.callback_metrics.items() if "accuracy" in name}
    accuracies = [value for name, value in scores.items() if name.startswith(("val", "test"))]
    assert len(accuracies) == 8 * len(method.eval_models) + 2, "and the headlines of val and test"
    assert torch.isfinite(torch.stack(accuracies)).all()
    loaded = load_method(tmp_path / "run/checkpoints/last.ckpt", network=method.make_network)
    assert type(loaded) is type(method)
    assert distance(method, loaded) == 0
    said, wanted = (to_settings(each)["init_args"] for each in (loaded, method))
    for factory in ("server_optimizer", "shared_network"):
        if factory in said:
            said[factory] = wanted[factory]  # the parser's own one
    assert said == wanted


@pytest.mark.parametrize(("make", "vote"), [*in_turn(VOTES)])
def test_a_vote_bears_attackers_or_is_one_line(make, vote, ragged_data, fit):
    torch.set_default_dtype(torch.float64)

    def run(chunk_size=None, share=0.3):
        options = {"aggregator": vote(), "uplink": [SignFlip(share)]}
        method = make(network=NETWORKS["mlp"], batch_size=4, chunk_size=chunk_size, **options)
        fit(method, ragged_data(num_clients=7), 2, bare=True)
        return method

    name = type(make()).__name__
    if name in WITHOUT_A_VOTE:
        with pytest.raises(TypeError if name in WITHOUT_SUMS else PflError, match="aggregator"):
            fit(make(network=NETWORKS["mlp"], aggregator=vote()), ragged_data(), 2, bare=True)
        return
    whole = run()
    assert all(torch.isfinite(tensor).all() for tensor in tensors(whole).values())
    assert distance(whole, run(2)) < 1e-10
    if vote is Median:  # other rules may choose the same clients
        assert distance(whole, run(share=0.0)) > 1e-7, "somebody attacks"


@pytest.mark.slow
@every_method
def test_a_clients_model_as_a_module_gets_what_the_client_got(make, ragged_data, fit):
    torch.set_default_dtype(torch.float64)
    losses = {}

    class Scores(pl.Callback):
        def on_validation_epoch_end(self, trainer, method):
            scores = method.evaluator.scores.items()
            losses.update({name: metric.columns(metric.scores())["loss"].tolist() for name, metric in scores})

    data, method = ragged_data(), make(network=NETWORKS["mlp"], batch_size=4)
    fit(method, data, 2, callbacks=[Scores()])
    ((inputs, targets),) = data.client_dataloader(4, "test", batch_size=99)
    for model in method.eval_models:
        module = method.client(4, model, data)
        loss = nn.functional.cross_entropy(module(inputs), targets)
        assert loss.item() == pytest.approx(losses[f"test/{model}"][4], rel=1e-6)  # metrics are float32
    chosen_by_samples = data if method.eval_models in (("cluster",), ("mixture",)) else None
    module, before = method.client(4, data=chosen_by_samples), tensors(method)
    assert not module.training
    nn.init.ones_(next(module.parameters()))
    assert distance(before, method) == 0, "it is a copy"


KINDS = [kind for kind in vars(methods).values() if isinstance(kind, type) and issubclass(kind, Method)]


def test_the_contract_is_for_every_method_but_those_that_train_no_mlp():
    others = {Method, methods.ClientLoop, methods.FedBN, methods.LinearFedRep}
    assert {type(make()) for make in METHODS.values()} - {PersonalSGD} == {*KINDS} - others


@pytest.mark.parametrize("method", KINDS)
def test_a_method_does_not_change_a_default_of_a_base(method):
    for base in method.__mro__[1 : method.__mro__.index(Method) + 1]:
        inherited = inspect.signature(base).parameters
        for name, parameter in inspect.signature(method).parameters.items():
            assert name not in inherited or parameter.default == inherited[name].default


@pytest.mark.slow
@every_method
def test_mixed_and_pure_bfloat16_are_near_full_precision(make, ragged_data, fit):
    def trained(precision, **options):
        method = make(network=NETWORKS["wide-mlp"])
        metrics = fit(method, ragged_data(), 2, precision, precision=precision, **options).callback_metrics
        return method, float(metrics["train/loss"])

    (full, loss), (mixed, mixed_loss) = (trained(precision, bare=True) for precision in ("32-true", "bf16-mixed"))
    for method in (full, mixed):
        assert {tensor.dtype for tensor in tensors(method).values() if tensor.is_floating_point()} <= {torch.float32}
    assert mixed_loss == pytest.approx(loss, rel=0.05)
    assert mixed_loss != loss
    torch.set_default_dtype(torch.bfloat16)  # of the data, too
    pure, pure_loss = trained("bf16-true")
    assert {parameter.dtype for parameter in pure.network.parameters()} == {torch.bfloat16}
    assert pure_loss == pytest.approx(loss, rel=0.1)


@pytest.mark.slow
@every_method
@pytest.mark.parametrize(("precision", "kind"), [("64-true", torch.float64), ("bf16-true", torch.bfloat16)])
def test_data_that_do_not_cast_take_the_precision_of_the_run(make, precision, kind, ragged_data, fit):
    method, data = make(network=NETWORKS["mlp"], batch_size=4), ragged_data()
    fit(method, data, 2, precision=precision)
    for model in method.eval_models:
        module = method.client(4, model, data)
        assert {parameter.dtype for parameter in module.parameters()} == {kind}
        assert all(parameter.isfinite().all() for parameter in module.parameters())


@pytest.mark.slow
@every_method
def test_layers_that_are_called_as_what_a_method_keeps_train_alike_or_are_refused(make, ragged_data, fit, monkeypatch):
    beside, words, options = Params.beside, set(), {"batch_size": 4}
    monkeypatch.setattr(Params, "beside", lambda params, word, other: words.add(word) or beside(params, word, other))
    if "adapter" in getattr(make.args[0], "keywords", {}):
        options["adapter"] = LoRA(2, targets="second")

    def trained(*names):
        def network(input_shape, num_classes):
            layers = nn.Linear(256, 5), nn.Linear(5, 4), nn.Linear(4, num_classes)
            return Network({"flat": nn.Flatten(), **dict(zip(names, layers, strict=True))})

        method = make(network=network, **options)
        fit(method, ragged_data(), 2, bare=True)
        return method

    reference = trained("first", "second", "third")
    words |= {name.split(".")[0] for name in (*reference.clients.names, *reference.server.names, *reference.uploads)}
    for word in sorted(words - {"first", "second", "third"}):
        for own, names in {"first": (word, "second", "third"), "third": ("first", "second", word)}.items():
            expected = {re.sub(rf"\b{own}\b", word, name): tensor for name, tensor in tensors(reference).items()}
            refused = word in PREFIXES.union(reference.uploads)
            with pytest.raises(PflError, match=f"a layer of the name {word} ") if refused else nullcontext():
                assert distance(expected, trained(*names)) < 1e-6, names


@pytest.mark.slow
@every_method
def test_a_layer_that_shares_the_weight_of_an_adapted_one_stays_as_it_is(make, ragged_data, fit):
    torch.set_default_dtype(torch.float64)

    def trained(apart, targets):
        def network(input_shape, num_classes):
            return nn.Sequential(nn.Flatten(), nn.Linear(256, 6), Tied(6, apart), nn.Linear(6, num_classes))

        method = make(network=network, head=1, batch_size=4, adapter=LoRA(2, targets=targets))
        fit(method, ragged_data(), 2, bare=True)
        return tensors(method)

    for targets in ("*.first", ["*.first", "*.second"]):
        tied, apart = (trained(each, targets) for each in (False, True))
        assert tied.keys() == apart.keys()
        assert distance(tied, apart) < 1e-12


@pytest.mark.slow
@every_method
def test_new_clients_train_a_new_head_each_on_a_common_body(make, ragged_data, fit):
    torch.set_default_dtype(torch.float64)
    found = {}
    for backend, chunk_size in (("sequential", None), ("batched", 3), ("auto", 1)):
        method = make(network=NETWORKS["mlp"], backend=backend, chunk_size=chunk_size)
        trainer = fit(method, ragged_data(), 1, bare=True)
        data = ragged_data(new_clients=4, new_head_epochs=3, val_fraction=0.0)
        before, body = tensors(method), method.common_body()
        method.evaluator.measures["finetuned/models"] = seen = Models()
        (scores,) = trainer.test(method, data, verbose=False)
        assert distance(before, method) == 0, "the run is as it was"
        assert method.evaluator.scores["test/finetuned"].samples.shape == (4,)
        named = {key.split("/")[1] for key in scores if key.startswith("test/")}
        assert named == {"accuracy", *method.evaluated_models}
        assert all(map(math.isfinite, scores.values()))
        assert all(distance(body, seen.found[client]) == 0 for client in range(4))
        names = sorted(method.newcomer_network.parts(method.head)["head"])
        models = [seen.found[client] for client in range(4)]
        found[backend] = torch.stack([torch.cat([model[name].flatten() for name in names]) for model in models])
    heads = found["sequential"]
    assert torch.pdist(heads).min() > 1e-6
    assert max((heads - other).abs().max() for other in found.values()) < 1e-10


@pytest.mark.slow
@every_setting
def test_a_lost_upload_is_as_if_its_client_had_not_taken_part(make, ragged_data, fit):
    class OthersAlone(ragged_data):
        def make_round(self, index):
            nobody = {"dropped": torch.zeros(0, dtype=torch.int64), "dropped_times": np.zeros(0)}
            return super().make_round(index)._replace(**nobody)

    def run(kind):
        method, data = make(network=NETWORKS["mlp"], batch_size=4), kind(participation=Participation(dropout=0.4))
        fit(method, data, 2, bare=True)
        return method, [len(data.make_round(index).examples) for index in range(2)]

    (lossy, heard), (others, _) = run(ragged_data), run(OthersAlone)
    assert all(2 <= count < 6 for count in heard)
    assert distance(lossy, others) == 0
    assert lossy.accounting.clock.compute >= others.accounting.clock.compute
    assert lossy.aggregator.bytes == others.aggregator.bytes


every_task = pytest.mark.parametrize("task_data", TASKS.values(), ids=TASKS)
OF_EVERY_TASK = ("FedAvg", "FedRep", "Ditto", "DePRL", "FedMac")


def network_of(data):
    """What learns the task of some data."""
    return getattr(data, "network", NETWORKS["mlp"])


@every_task
@pytest.mark.parametrize("name", OF_EVERY_TASK)
def test_every_task_trains_alike_on_both_backends(name, task_data, ragged_data, fit):
    torch.set_default_dtype(torch.float64)
    data = task_data(ragged_data)

    def run(backend):
        method = METHODS[name](network=network_of(data), batch_size=4, backend=backend)
        metrics = fit(method, data(), 2).callback_metrics
        return tensors(method), {tag: float(value) for tag, value in metrics.items()}

    (sequential, metrics), (batched, others) = run("sequential"), run("batched")
    assert distance(sequential, batched) < 1e-10
    assert metrics == pytest.approx(others, abs=1e-6)
    assert f"test/{data.task.score.name}" in metrics
    assert all(map(math.isfinite, metrics.values()))


@pytest.mark.parametrize(("make", "task_data"), [*in_turn(TASKS)])
def test_a_method_resumes_bit_for_bit_on_a_task_or_says_in_a_line_what_it_needs(
    make, task_data, ragged_data, fit, tmp_path
):
    data = task_data(ragged_data)
    method = make(network=network_of(data), batch_size=8)
    kind = type(method).__name__
    lines = dict.fromkeys(getattr(data, "unsuitable", ()), r"model\.(head|adapter\.targets|network)(:| must) .*")
    if "classes" in method.needs:
        lines[kind] = f"model: {kind} supports classification only, got {data.task.goal}"
    if kind in lines:
        with pytest.raises(PflError, match=f"^{lines[kind]}$"):
            fit(method, data(num_clients=4), 1, bare=True)
        return
    metrics = fit(method, data(num_clients=4), 2, "straight").callback_metrics
    assert math.isfinite(metrics[f"test/{data.task.score.name}"])
    assert all(tensor.isfinite().all() for tensor in tensors(method).values())
    fit(make(network=network_of(data), batch_size=8), data(num_clients=4), 1, "resumed")
    again = make(network=network_of(data), batch_size=8)
    last = tmp_path / "resumed/checkpoints/last.ckpt"
    resumed = fit(again, data(num_clients=4), 2, "resumed", last).callback_metrics
    assert distance(method, again) == 0
    assert resumed["train/loss"] == metrics["train/loss"]
