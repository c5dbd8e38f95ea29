from functools import partial

import pytest
import torch
from fakes.methods import built, distance

from pfl_lightning.methods import FedAvg, FedNTD

pytestmark = pytest.mark.usefixtures("float64")


def test_the_term_is_the_divergence_over_the_other_classes():
    method = FedNTD()
    outputs, received, target = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([0])
    outputs.requires_grad_()
    logs, global_logs = (method.not_true(logits, target) for logits in (outputs, received))
    torch.testing.assert_close(logs.exp()[0, 1:], torch.tensor([0.1192, 0.8808]), atol=1e-4, rtol=0)
    torch.testing.assert_close(global_logs.exp()[0, 1:], torch.tensor([0.7311, 0.2689]), atol=1e-4, rtol=0)
    divergence = (global_logs.exp() * (global_logs - logs)).sum()
    assert divergence.item() == pytest.approx(1.006842, abs=1e-6)
    divergence.backward()
    torch.testing.assert_close(outputs.grad, torch.tensor([[0.0, -0.6119, 0.6119]]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_a_step_has_the_gradient_of_the_paper(temperature, ragged_data):
    """Beside cross-entropy: strength * temperature * (q - q_g), and 0 at the true class."""
    method = built(partial(FedNTD, strength=0.5, temperature=temperature), ragged_data())
    source = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 3, generator=source, requires_grad=True)
    features = torch.randn(4, 5, generator=source)
    targets = torch.tensor([0, 2, 1, 1])
    head = {name: tensor.detach() for name, tensor in method.network.state_dict().items() if name.startswith("fc3")}
    extras = {"amounts": torch.ones(4), "global": features, **{f"global.{name}": t for name, t in head.items()}}
    method.distilling_losses(outputs, features, targets, extras).sum().backward()
    received = features @ head["fc3.weight"].T + head["fc3.bias"]
    usual = outputs.detach().softmax(1) - torch.eye(3)[targets]
    for row, target in enumerate(targets.tolist()):
        others = [label for label in range(3) if label != target]
        q, q_g = ((logits[row, others] / temperature).softmax(0) for logits in (outputs.detach(), received))
        usual[row, others] += 0.5 * temperature * (q - q_g)
    torch.testing.assert_close(outputs.grad, usual)


def test_without_the_term_or_with_two_classes_it_is_fedavg(train):
    method, outputs, targets = FedNTD(), torch.tensor([[0.5], [-2.0]]), torch.tensor([1, 0])
    assert torch.equal(method.distilling_losses(outputs, outputs, targets, {}), method.sample_losses(outputs, targets))
    assert distance(train(partial(FedNTD, strength=0.0), 2), train(FedAvg, 2)) < 1e-12
    assert distance(train(FedNTD, 2), train(FedAvg, 2)) > 1e-6
