"""Linear FedRep is for regressions alone, so its contract is tested here."""

import csv
from functools import partial
from itertools import product
from math import cos, sin, sqrt
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from fakes.cohorts import Identity
from fakes.methods import distance
from torch.optim.lr_scheduler import StepLR

from pfl_lightning import load_method
from pfl_lightning.callbacks import OracleDoubling, StageDoubling
from pfl_lightning.cli import main
from pfl_lightning.client import Examples, Samples
from pfl_lightning.data import Digits, FederatedDataModule, LinearRepresentation, NaturalUsers
from pfl_lightning.data.datamodule import LabelledData
from pfl_lightning.errors import PflError
from pfl_lightning.methods import LinearFedRep
from pfl_lightning.methods.linear_fedrep import second_moment
from pfl_lightning.metrics import principal_angle_distance
from pfl_lightning.models import MLP, LinearNetwork
from pfl_lightning.objects import to_settings
from pfl_lightning.system import Participation
from pfl_lightning.tasks import Regression

CONFIGS = Path(__file__).parents[2] / "configs/papers/srpfl"


pytestmark = pytest.mark.usefixtures("float64")


def make(**options) -> LinearFedRep:
    return LinearFedRep(network=options.pop("network", LinearNetwork), **{"lr": 0.5, **options})


def problem(**options) -> LinearRepresentation:
    return LinearRepresentation(**{"num_clients": 12, "noise": 0.0, "val_fraction": 0.0, "fresh": True, **options})


class Distances(pl.Callback):
    """Remembers the distance at the first evaluation, and after every round."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_validation_end(self, trainer, pl_module) -> None:
        if trainer.global_step == 0:
            self.values.append(float(trainer.callback_metrics["train/distance"]))

    def on_train_batch_end(self, trainer, *_) -> None:
        self.values.append(float(trainer.callback_metrics["train/distance"]))


class TwoSamples(FederatedDataModule):
    """One client with X = sqrt(2) I, w* = 1 and B* = (cos .5, sin .5), without noise."""

    input_shape = (2,)
    task = Regression().sized(1)
    usual_partition = NaturalUsers
    representation = np.array([[cos(0.5)], [sin(0.5)]])

    def load(self):
        inputs = sqrt(2) * torch.eye(2)
        data = LabelledData(inputs, (inputs @ torch.tensor(self.representation))[:, 0], torch.zeros(2).long())
        return data, data

    def transform(self):
        return Identity()


@pytest.mark.parametrize(
    ("lr", "direction", "after"),
    [(0.5, (0.97858106, 0.20586189), 0.28849594), (1.0, None, 0.10157150)],
)
def test_one_round_is_that_computed_by_hand(lr, direction, after, fit):
    # the moment is 1/2 sum y_j^2 x_j x_j^T = 2 diag(cos^2 .5, sin^2 .5), so B starts at e1; w is cos .5
    # there, and the gradient (0, -sin .5 cos .5)
    method, data = make(network=partial(LinearNetwork, rank=1), lr=lr), TwoSamples(num_clients=1, val_fraction=0.0)
    trainer = fit(method, data, 1, bare=True)
    found = method.representation[:, 0] * method.representation[0, 0].sign()
    expected = torch.nn.functional.normalize(torch.tensor([1.0, lr * sin(0.5) * cos(0.5)]), dim=0)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    if direction is not None:
        torch.testing.assert_close(found, torch.tensor(direction), atol=1e-8, rtol=0)
    assert float(trainer.callback_metrics["train/distance"]) == pytest.approx(after, abs=1e-8)
    assert float(method.clients.stack("head.weight").abs()) == pytest.approx(0.87758256, abs=1e-8)


def test_second_moment_has_its_expectation_where_averages_are_exact():
    # t = (1, 1, 0) and sigma = .5 give 2.25 I + 2 t t^T. Averages over the points 0 (4 times), sqrt(3),
    # -sqrt(3) are the normal moments up to the 5th, and y^2 x x^T has degree 4
    points = torch.tensor([0.0] * 4 + [sqrt(3), -sqrt(3)])
    grid = torch.tensor(list(product(points, repeat=4)))
    inputs, targets = grid[:, :3], grid[:, 0] + grid[:, 1] + 0.5 * grid[:, 3]
    moment = second_moment(inputs[None], targets[None], torch.tensor([len(grid)]))
    torch.testing.assert_close(moment, torch.tensor([[4.25, 2, 0], [2, 4.25, 0], [0, 0, 2.25]]))


def test_second_moment_weighs_clients_equally_whatever_they_hold():
    inputs, targets = torch.randn(2, 3, 2), torch.randn(2, 3)
    inputs[1, 1:], targets[1, 1:] = 0, 0
    one = (targets[0, :, None, None] ** 2 * inputs[0, :, :, None] * inputs[0, :, None]).mean(0)
    other = targets[1, 0] ** 2 * torch.outer(inputs[1, 0], inputs[1, 0])
    torch.testing.assert_close(second_moment(inputs, targets, torch.tensor([3, 1])), (one + other) / 2)


def test_clients_are_evaluated_by_a_head_that_fits_the_received_representation_and_by_their_own():
    method, data = make(), problem(fresh=False, noise=0.3)
    data.setup()
    method.build(data.input_shape, data.task, data.num_clients)
    train = data.make_eval_batch(data.evaluation_order).train
    evaluated = dict(method.evaluate(train, (1,)))
    every = torch.arange(train.longest).expand(len(train), -1)
    features, targets = train.gather(every) @ method.representation, train.targets(every)
    errors = torch.einsum("csr,cr->cs", features, evaluated["finetuned"].own["head.weight"][:, 0]) - targets
    assert errors.abs().max() > 0.1
    assert torch.einsum("cs,csr->cr", errors, features).abs().max() < 1e-12, "the normal equations"
    assert torch.equal(evaluated["stored"].own["head.weight"], method.clients.stack("head.weight")[train.ids])


def test_clients_of_any_size_solve_for_the_head_and_step_along_the_gradient_at_it(backend):
    method = make(backend=backend, lr=0.3)
    method.build((5,), Regression().sized(1), 3)
    inputs, targets, counts = torch.randn(12, 5), torch.randn(12), torch.tensor([6, 4, 2])
    index = torch.stack([torch.arange(6), torch.arange(6, 12), torch.arange(10, 16) % 12])
    ids = torch.tensor([2, 0, 1])
    cohort = Examples(Samples(inputs, targets, Identity()), ids, index, counts, ids)
    trained, losses = method.local_update(cohort, method.received(cohort.ids), (1,))
    for row, count in enumerate(counts):
        x, y = inputs[index[row, :count]], targets[index[row, :count]]
        body = method.representation.T.clone().requires_grad_()
        head = torch.from_numpy(np.linalg.lstsq((x @ body.T).detach().numpy(), y.numpy(), rcond=None)[0])
        loss = (x @ body.T @ head - y).square().mean() / 2
        loss.backward()
        torch.testing.assert_close(trained.own["head.weight"][row, 0], head)
        torch.testing.assert_close(trained.own["body.weight"][row], (body - 0.3 * body.grad).detach())
        torch.testing.assert_close(losses[row], loss.detach())


@pytest.mark.slow
def test_distance_contracts_and_heads_become_those_of_the_data(fit):
    method, data, distances = make(), problem(participation=Participation(pool_size=8)), Distances()
    fit(method, data, 40, callbacks=[distances])
    assert distances.values[0] < 0.9, "the method of moments knows something of the representation"
    # our simulations have factors of 0.58 to 0.60 a round (docs/evidence/derivations.md)
    assert 0 < distances.values[-1] < 0.75**40 * distances.values[0]
    torch.testing.assert_close(method.representation.T @ method.representation, torch.eye(2))
    users = data.tables["train"].flat[data.tables["train"].starts] // data.samples
    truth = torch.tensor(data.heads @ data.representation.T)[users]  # B w_i of each client
    train = data.make_eval_batch(data.evaluation_order).train
    evaluated = dict(method.evaluate(train, (1,)))
    for params, ids, rows in (
        (evaluated["finetuned"], train.ids, slice(None)),
        (evaluated["stored"], data.make_round(39).examples.ids, data.make_round(39).examples.ids),
    ):
        found = params.own["head.weight"][rows, 0] @ params.shared["body.weight"]
        torch.testing.assert_close(found, truth[ids])


def test_first_representation_is_random_or_from_moments(fit):
    starts = {}
    for init, seed in product(("random", "method_of_moments"), (1, 2)):
        fit(method := make(init=init, lr=1e-9), problem(seed=seed), 1, bare=True)
        starts[init, seed] = method.representation
        torch.testing.assert_close(method.representation.T @ method.representation, torch.eye(2))
    assert principal_angle_distance(starts["random", 1], starts["random", 2]) > 0.1
    # moments are those of the fixed samples, which do not follow the seed
    assert principal_angle_distance(starts["method_of_moments", 1], starts["method_of_moments", 2]) < 1e-6


@pytest.mark.parametrize("double", [partial(StageDoubling, 2, 2), partial(OracleDoubling, 2, 1.0)])
def test_resume_is_exact_bit_for_bit(double, resumed):
    start, data = partial(make, init="random"), partial(problem, noise=0.3)
    straight, method, last = resumed(start, data, 8, 3, lambda: [double()])
    loaded = load_method(last, network=LinearNetwork)
    assert straight.trainer.callback_metrics["system/cohort"] > 2
    assert distance(straight, method) == distance(straight, loaded) == 0
    assert straight.accounting.clock == method.accounting.clock == loaded.accounting.clock
    assert straight.trainer.callback_metrics == method.trainer.callback_metrics
    assert to_settings(straight) == to_settings(loaded)


def of_rank(rank):
    return partial(LinearNetwork, rank=rank)


def two_rounds(fit, seed=0, **options):
    method = make(**options)
    fit(method, problem(noise=0.3, seed=seed), 2, bare=True)
    return method


def test_seeds_and_the_schedule_matter_and_backends_and_chunks_do_not(fit):
    reference = two_rounds(fit, backend="sequential")
    assert distance(reference, two_rounds(fit, backend="sequential")) == 0
    assert distance(reference, two_rounds(fit, seed=1)) > 1e-6
    assert distance(reference, two_rounds(fit, lr_schedule=partial(StepLR, step_size=1, gamma=0.01))) > 1e-3
    for backend, chunk_size in (("batched", 5), ("auto", None), ("sequential", 3)):
        assert distance(reference, two_rounds(fit, backend=backend, chunk_size=chunk_size)) < 1e-12


def test_clients_that_do_not_take_part_keep_their_heads(fit):
    data, method = problem(participation=Participation(pool_size=3)), make()
    method.build(data.input_shape, data.task, data.num_clients, data.seed)
    before = method.clients.stack("head.weight").clone()
    fit(method, data, 1, bare=True)
    moved = (before != method.clients.stack("head.weight")).flatten(1).any(1)
    assert set(moved.nonzero().flatten().tolist()) == set(data.make_round(0).examples.ids.tolist())


@pytest.mark.parametrize(
    ("network", "data", "line"),
    [
        (MLP, problem, "model.network: MLP is not possible with LinearFedRep; allowed: Linear"),
        (LinearNetwork, Digits, "data: 10 classes is not possible with LinearFedRep; allowed: one real number"),
        (of_rank(21), problem, "model.network.rank: 21 is not possible; allowed: 1 to 20, the dimension"),
        (of_rank(3), partial(problem, samples=3), "data: 2 training samples on a client; allowed: 3 (model.network"),
    ],
)
def test_what_is_not_linear_or_too_little_is_refused_in_one_line(network, data, line, fit):
    with pytest.raises(PflError) as refusal:
        fit(make(network=network), data(), 1, bare=True)
    assert str(refusal.value).startswith(line)


def test_a_precision_that_solves_no_equations_is_refused(fit):
    line = "trainer.precision: bf16-true is not possible with LinearFedRep, which solves equations; allowed: 32-true"
    with pytest.raises(PflError, match=line):
        fit(make(), problem(), 1, bare=True, precision="bf16-true")


@pytest.fixture
def command(tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)

    def run(name: str, *options: str) -> list[dict[str, str]]:
        main(["fit", f"--config={CONFIGS}/{name}.yaml", "--trainer.enable_progress_bar=false", *options])
        (table,) = Path("runs").glob("*-LinearRepresentation/version_0/metrics.csv")
        with table.open(newline="") as file:
            return list(csv.DictReader(file))

    return run


@pytest.mark.slow
def test_the_command_line_reaches_what_float64_can_tell(command, capsys):
    rows = command("linear_contraction", "--trainer.max_steps=60", "--trainer.val_check_interval=60")
    assert 0.05 < float(rows[0]["train/distance"]) < 0.5
    assert float(rows[-1]["train/distance"]) < 1e-13


@pytest.mark.slow
def test_noise_of_the_configuration_ends_at_its_floor(command, capsys):
    rows = command("linear_floor", "--trainer.max_steps=50", "--trainer.val_check_interval=50")
    # our simulations (docs/evidence/derivations.md): 0.0156 for 8 participants, a mean over 30 rounds
    assert np.mean([float(row["train/distance"]) for row in rows[-30:]]) == pytest.approx(0.0156, rel=0.15)


@pytest.mark.slow
def test_the_oracle_of_the_configuration_stops_the_run_also_when_it_is_resumed(command, capsys):
    command("linear_speedup", "--trainer.max_steps=11")
    rows = command("linear_speedup", "--ckpt_path=last")
    assert (rows[1]["system/cohort"], rows[-1]["system/cohort"]) == ("8.0", "64.0")
    assert float(rows[-1]["train/distance"]) <= 1.25 * 0.133 / sqrt(64)
    assert len(rows) < 50
    assert f"after round {len(rows) - 1}" in capsys.readouterr().out
