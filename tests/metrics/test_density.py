import pytest
import torch

from pfl_lightning.metrics import ClientDensity, density
from pfl_lightning.tree import Params

THRESHOLDS = (0.0, 0.5, 1.0)


def models(clients=5, dtype=torch.float32):
    """Random models of three layers with a good share of zeros, ``[clients, ...]``."""
    random = torch.Generator().manual_seed(0)
    shapes = {"conv.weight": (4, 3, 2), "conv.bias": (4,), "block.0.weight": (7,), "fc.weight": (3, 5)}
    stacks = {name: torch.randn(clients, *shape, generator=random, dtype=dtype) for name, shape in shapes.items()}
    return {name: torch.where(stack > -0.3, stack, 0) for name, stack in stacks.items()}


def metric_of(stacks):
    return ClientDensity({name: stack[0] for name, stack in stacks.items()}, THRESHOLDS)


def measured(stacks, *cohorts):
    """The densities of some chunks, by default of all clients at once with tensors of their own."""
    metric = metric_of(stacks)
    for cohort in cohorts or [Params({}, stacks)]:
        metric.update(torch.arange(2), metric.measure(cohort))
    return metric.compute()


def test_an_entry_at_the_threshold_counts_as_zero():
    values = torch.tensor([-2.0, -0.5, 0.0, 0.5, 0.51])
    shares = [density([values[:2], values[2:]], threshold).item() for threshold in (0.0, 0.5, 2.0)]
    assert shares == pytest.approx([4 / 5, 2 / 5, 0])


def test_a_layer_has_all_its_parameters_and_the_density_is_the_mean_over_the_clients():
    stacks = models()
    found = measured(stacks)
    layers = {"conv": ["conv.weight", "conv.bias"], "block": ["block.0.weight"], "fc": ["fc.weight"], "all": stacks}
    assert list(metric_of(stacks).layers) == ["conv", "block", "fc"]
    for row, names in zip(found, layers.values(), strict=True):
        for share, threshold in zip(row, THRESHOLDS, strict=True):
            clients = [density([stacks[name][client] for name in names], threshold) for client in range(5)]
            assert share.item() == pytest.approx(sum(clients).item() / 5, abs=1e-6)
    assert (found[:, :-1] > found[:, 1:]).all(), "thresholds make a difference"


@pytest.mark.parametrize("size", [1, 2, 4])
def test_chunks_agree_bit_for_bit(size):
    stacks = models()
    parts = [Params({}, stacks).rows(start, start + size) for start in range(0, 5, size)]
    assert torch.equal(measured(stacks, *parts), measured(stacks))


@pytest.mark.parametrize("own", [(), ("fc.weight",), ("conv.bias", "fc.weight")], ids=str)
def test_what_clients_share_counts_as_if_each_had_a_copy(own):
    stacks = models()
    shared = {name: stack[0] for name, stack in stacks.items() if name not in own}
    theirs = {name: stacks[name] for name in own}
    copies = {name: tensor.expand(5, *tensor.shape) for name, tensor in shared.items()}
    assert len(metric_of(stacks).measure(Params(shared, theirs))) == (5 if own else 1)
    assert torch.equal(measured(stacks, Params(shared, theirs)), measured(stacks, Params({}, {**copies, **theirs})))


def test_tensors_that_are_no_parameters_of_the_model_do_not_count():
    stacks = models()
    others = {"conv.running_mean": torch.zeros(5, 4), "copy.fc.weight": torch.zeros(5, 3, 5)}
    assert torch.equal(measured(stacks, Params({}, {**stacks, **others})), measured(stacks))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_any_float_type_is_counted(dtype):
    stacks = {name: stack.to(dtype) for name, stack in models().items()}
    exact = {name: stack.double() for name, stack in stacks.items()}
    assert torch.equal(measured(stacks), measured(exact))
