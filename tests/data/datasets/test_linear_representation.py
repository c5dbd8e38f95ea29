import numpy as np
import pytest
import torch

from pfl_lightning.data import IID
from pfl_lightning.data.datasets.linear_representation import LinearRepresentation
from pfl_lightning.errors import PflError
from pfl_lightning.system import Participation


def by_user(data):
    """Inputs ``[users, samples, dimension]`` and targets ``[users, samples]``."""
    every, test = data.load()
    assert test is None
    shape = (len(data.heads), data.samples)
    assert every.users.tolist() == np.repeat(np.arange(shape[0]), shape[1]).tolist()
    return every.inputs.unflatten(0, shape).numpy(), every.targets.unflatten(0, shape).numpy()


def test_representation_is_orthonormal_and_heads_have_the_norm_of_the_papers():
    data = LinearRepresentation(dimension=20, rank=3, num_clients=7)
    np.testing.assert_allclose(data.representation.T @ data.representation, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(data.heads, axis=1), np.full(7, np.sqrt(3)), rtol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_heads_are_found_by_least_squares_where_there_is_no_noise(dtype, tolerance):
    torch.set_default_dtype(dtype)
    data = LinearRepresentation(noise=0.0, num_clients=5)
    for head, inputs, targets in zip(data.heads, *by_user(data), strict=True):
        table = inputs.astype(np.float64) @ data.representation
        found = np.linalg.lstsq(table, targets.astype(np.float64), rcond=None)[0]
        np.testing.assert_allclose(found, head, atol=tolerance)


def test_noise_and_inputs_have_their_variances():
    torch.set_default_dtype(torch.float64)
    data = LinearRepresentation(noise=0.3, samples=2000, num_clients=10)
    inputs, targets = by_user(data)
    noise = targets - np.einsum("usd,dk,uk->us", inputs, data.representation, data.heads)
    # the relative standard error of a variance is sqrt(2 / n): 0.01 for 20,000 numbers, 0.0022 for 400,000
    assert noise.var() == pytest.approx(0.09, rel=0.05)
    assert inputs.var() == pytest.approx(1, rel=0.01)
    assert noise.mean() == pytest.approx(0, abs=5 * 0.3 / np.sqrt(20_000))


def test_samples_are_the_same_in_every_run_and_with_more_clients_and_others_for_another_seed():
    first, again, other = (LinearRepresentation(num_clients=3, generator_seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.load()[0].inputs, again.load()[0].inputs)
    assert torch.equal(first.load()[0].targets, again.load()[0].targets)
    assert not torch.equal(first.load()[0].inputs, other.load()[0].inputs)
    assert not np.allclose(first.representation, other.representation)
    more = LinearRepresentation(num_clients=9)
    np.testing.assert_array_equal(first.heads, more.heads[:3])
    assert torch.equal(first.load()[0].inputs, more.load()[0].inputs[: 3 * first.samples])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"dimension": 2, "rank": 3}, "data.rank must be 1 to 2, the dimension, got 3"),
        (
            {"partition": IID(), "fresh": True},
            "data.partition must be NaturalUsers with data.fresh, got IID",
        ),
    ],
)
def test_what_is_not_possible_is_refused(options, line):
    with pytest.raises(PflError, match=f"^{line}$"):
        LinearRepresentation(**options)


def renewed(index: int = 0, **options):
    """A round with new samples; inputs ``[cohort, samples, dimension]`` and targets ``[cohort, samples]``."""
    options = {"num_clients": 6, "samples": 16, "test_fraction": 0.25, "val_fraction": 0.0, **options}
    data = LinearRepresentation(fresh=True, **options)
    data.setup()
    examples = data.make_round(index).examples
    every = torch.arange(examples.longest).expand(len(examples), -1)
    return data, examples.ids.tolist(), examples.gather(every), examples.targets(every)


def test_new_samples_have_the_heads_of_their_clients():
    torch.set_default_dtype(torch.float64)
    data, ids, inputs, targets = renewed(noise=0.0)
    table = data.tables["train"].examples(torch.tensor(ids))
    every = torch.arange(12).expand(6, -1)
    basis = torch.from_numpy(data.representation)
    heads = torch.linalg.lstsq(table.gather(every) @ basis, table.targets(every)[..., None]).solution
    torch.testing.assert_close((inputs @ basis @ heads)[..., 0], targets)


def test_new_samples_have_the_law_of_the_first_ones():
    data, ids, inputs, targets = renewed(samples=2000, noise=0.3)
    users = data.tables["train"].examples(torch.tensor(ids)).index[:, 0] // 2000
    noise = targets - torch.einsum(
        "csd,cd->cs", inputs, torch.from_numpy(data.heads @ data.representation.T)[users].float()
    )
    # as many as the training samples; the relative standard error of a variance is sqrt(2 / 9,000) = 0.015
    assert inputs.shape == (6, 1500, 20)
    assert float(noise.var()) == pytest.approx(0.09, rel=0.08)
    assert float(inputs.var()) == pytest.approx(1, rel=0.02)


def test_new_samples_are_a_function_of_seed_round_and_client():
    _, everyone, inputs, targets = renewed(3)
    _, few, again, again_targets = renewed(3, participation=Participation(pool_size=2))
    rows = [everyone.index(client) for client in few]
    assert torch.equal(inputs[rows], again)
    assert torch.equal(targets[rows], again_targets)
    for others in (renewed(4), renewed(3, seed=2)):
        assert not torch.isclose(others[2], inputs).any(2).all(1).any()
    assert not torch.isclose(inputs[0], inputs[1]).any(), "clients draw different samples"


def test_new_samples_leave_what_is_evaluated_and_cost_as_much_as_the_cohort():
    data = renewed(participation=Participation(pool_size=2))[0]
    fixed = LinearRepresentation(num_clients=6, samples=16, test_fraction=0.25, val_fraction=0.0)
    fixed.setup()
    assert torch.equal(data.tables["test"].samples.inputs, fixed.tables["test"].samples.inputs)
    assert data.make_eval_batch(data.evaluation_order).train.samples is data.tables["train"].samples
    assert len(data.make_round(0).examples.samples.targets) == 2 * 12
    assert len(fixed.make_round(0).examples.samples.targets) == 6 * 16
