"""Methods on networks of ``transformers``."""

import re
from functools import partial

import pytest
import torch
from fakes.methods import distance, make_method

from pfl_lightning import load_method
from pfl_lightning.client import LocalTraining
from pfl_lightning.data import Arrays
from pfl_lightning.methods import FedAvg, FedExLoRA, FedPer, FedRep, FLoRA
from pfl_lightning.models import HuggingFaceModel, LoRA
from pfl_lightning.models.wrapped import Wrapped
from pfl_lightning.tree import movable

pytestmark = pytest.mark.usefixtures("float64")


def texts():
    """Three clients with texts of tokens, of which 0 is padding."""
    random = torch.Generator().manual_seed(0)
    tokens, lengths = (torch.randint(2, high, (60, width), generator=random) for high, width in ((10, 6), (7, 1)))
    return Arrays(tokens * (torch.arange(6) < lengths), tokens[:, 0] % 3, torch.arange(60) % 3)


CASES = {
    "FedIT of images": (FedAvg, "vit", {"adapter": LoRA(2)}),
    "FedRep of images": (partial(FedRep, head_epochs=2), "vit", {}),
    "FedSA-LoRA of texts": (partial(FedPer, keeps="*lora_B"), "bert", {"adapter": LoRA(2, targets="*layer.1.*.query")}),
    "FedEx-LoRA of texts": (FedExLoRA, "bert", {"adapter": LoRA(2, targets="*layer.1.*.query")}),
    "FLoRA of images": (FLoRA, "vit", {"adapter": LoRA(2)}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "name", "options"), CASES.values(), ids=CASES)
def test_backends_agree_and_resume_is_exact(make, name, options, hugging_face, ragged_data, fit, tmp_path):
    def run(rounds, folder, backend="auto", ckpt_path=None):
        network = partial(HuggingFaceModel, name=str(hugging_face / name), dropout=False)
        method = make_method(make, network=network, backend=backend, optimizer="AdamW", lr=0.01, **options)
        fit(method, {"vit": ragged_data, "bert": texts}[name](), rounds, folder, ckpt_path)
        return method

    one, straight = run(2, "one", "sequential"), run(2, "straight")
    if "adapter" in options:
        assert all(choice.startswith("batched") for choice in straight.engine.choices.values())
    start = run(1, "resumed")
    assert distance(one, straight) < 1e-8 * distance(start, straight)
    last = tmp_path / "resumed/checkpoints/last.ckpt"
    assert distance(run(2, "resumed", ckpt_path=last), straight) == 0
    assert distance(load_method(last), straight) == 0
    held = torch.load(last, weights_only=True)["state_dict"]
    body = {name for name in held if name.startswith("network.") and "lora" not in name and "classifier" not in name}
    moved = {f"network.{name}" for name in straight.parts["body"] if "lora" not in name}
    assert body == moved, "what is frozen is in the folder"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "bert"])
def test_blocks_before_the_first_that_trains_are_computed_once_a_phase(
    name, hugging_face, ragged_data, fit, monkeypatch
):
    def run():
        network, data = partial(HuggingFaceModel, name=str(hugging_face / name), dropout=False), sets[name]()
        adapter, calls = LoRA(2, targets="*layer*.1.*"), []
        local = LocalTraining(epochs=3, batch_size=4, lr=0.01, optimizer="AdamW")
        method = FedAvg(network=network, adapter=adapter, local=local)
        data.setup()
        method.build_for(data)
        blocks = [each for path, each in method.network.named_modules() if re.search(r"\.layers?\.0$", path)]
        blocks[0].register_forward_hook(lambda *_: calls.append(1))
        start = trained(method)
        fit(method, data, 1, bare=True)
        return start, trained(method), len(calls)

    def trained(method):
        return {method.network.original_name(each): tensor.clone() for each, tensor in movable(method.network).items()}

    sets = {"vit": ragged_data, "bert": texts}
    start, found, calls = run()
    monkeypatch.setattr(Wrapped, "split_frozen_blocks", lambda *_: None)
    _, expected, every = run()
    assert distance(found, expected) < 1e-10 * distance(start, expected)
    assert calls == 1
    assert every > 3


@pytest.mark.parametrize(("name", "data"), [("vit", "ragged_data"), ("bert", None)])
def test_what_a_client_s_model_saves_predicts_in_the_library_as_it_does(
    name, data, hugging_face, request, fit, tmp_path
):
    import transformers

    data = request.getfixturevalue(data)() if data else texts()
    network = partial(HuggingFaceModel, name=str(hugging_face / name))
    method = make_method(FedAvg, network=network, adapter=LoRA(2), optimizer="AdamW", lr=0.1)
    fit(method, data, 1, bare=True)
    module = method.client(2)
    module.save_pretrained(tmp_path / "saved")
    again = getattr(transformers, type(module).__name__).from_pretrained(tmp_path / "saved", dtype=torch.float64)
    ((inputs, _),) = data.client_dataloader(2, "test", batch_size=99)
    assert again.state_dict().keys() == module.state_dict().keys()
    read = partial(HuggingFaceModel, data.input_shape, 3)
    with torch.no_grad():
        torch.testing.assert_close(read(str(tmp_path / "saved")).eval()(inputs), module(inputs))
        assert (read(str(hugging_face / name)).eval()(inputs) - module(inputs)).abs().max() > 1e-3
