"""A client's adapters in a folder: as peft reads it, and back in."""

from functools import partial

import pytest
import torch
from fakes.methods import built, distance, make_method, tensors

from pfl_lightning.data import Arrays
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedDPA, FedExLoRA, FedPer, FlexLoRA, FLoRA, HetLoRA, Local
from pfl_lightning.models import LoRA, ViT
from pfl_lightning.models.hugging_face import HuggingFaceModel
from pfl_lightning.models.peft_folder import write_peft

SMALL = partial(ViT, patch=8, depth=2, width=6, heads=2)
ADAPTER = LoRA(3, alpha=6.0)

pytest.importorskip("safetensors")  # of an extra, as transformers and peft are
pytestmark = pytest.mark.usefixtures("float64")


def exported(method, client, folder, task=None):
    head = {method.network.original_name(name) for name in method.parts["head"]}
    write_peft(method.client(client, merged=False), method.adapter, head, folder, task)
    return method.client(client)


@pytest.fixture
def trained(ragged_data, fit):
    """A method whose clients keep adapters, after a round."""
    method = built(Local, ragged_data(), network=SMALL, adapter=ADAPTER)
    fit(method, ragged_data(), 1, bare=True)
    return method


def test_peft_gives_the_outputs_of_the_client(trained, ragged_data, tmp_path):
    peft = pytest.importorskip("peft")
    merged = exported(trained, 3, tmp_path / "client")
    base = built(Local, ragged_data(), network=SMALL).network
    assert distance(tensors(base), trained.client(3)) > 1e-3
    model = peft.PeftModel.from_pretrained(base, tmp_path / "client").eval()
    images = torch.randn(4, 1, 16, 16)
    torch.testing.assert_close(model(images), merged(images), rtol=0, atol=1e-12)
    torch.testing.assert_close(model.merge_and_unload()(images), merged(images), rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [FlexLoRA, HetLoRA])
def test_a_smaller_rank_is_a_folder_of_the_whole_one_with_zeros(make, ragged_data, fit, tmp_path):
    peft = pytest.importorskip("peft")
    method = built(make, ragged_data(), network=SMALL, adapter=ADAPTER, ranks=[3, 1])
    fit(method, ragged_data(), 2, bare=True)
    head = {method.network.original_name(name) for name in method.parts["head"]}
    write_peft(method.client(3, "personal", merged=False), ADAPTER, head, tmp_path / "client")
    base = built(Local, ragged_data(), network=SMALL).network
    model = peft.PeftModel.from_pretrained(base, tmp_path / "client").eval()
    images = torch.randn(4, 1, 16, 16)
    torch.testing.assert_close(model(images), method.client(3, "personal")(images), rtol=0, atol=1e-12)
    assert (model(images) - method.client(3, "global")(images)).abs().max() > 1e-6


def test_it_comes_back_in_and_what_peft_writes_does_too(trained, ragged_data, tmp_path):
    peft = pytest.importorskip("peft")
    exported(trained, 3, tmp_path / "client")
    base = built(Local, ragged_data(), network=SMALL).network
    peft.PeftModel.from_pretrained(base, tmp_path / "client").save_pretrained(tmp_path / "theirs")
    for folder in ("client", "theirs"):
        method = FedAvg(network=SMALL, adapter=ADAPTER, pretrained=str(tmp_path / folder))
        method.build_for(ragged_data(seed=1))
        assert distance(tensors(method.client(0)), trained.client(3)) == 0
        assert "10 of the" in method.pretrained_report


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapter": LoRA(2, alpha=6.0)}, "adapters of rank 3 and alpha 6, where model.adapter has 2 and 6"),
        ({"adapter": LoRA(3, alpha=16.0)}, "adapters of rank 3 and alpha 6, where model.adapter has 3 and 16"),
        ({}, "adapters of rank 3 and alpha 6, where model.adapter has none"),
        ({"adapter": LoRA(3, alpha=6.0, targets="block1.*out")}, "has block1.attention.qkv.lora_A, which ViT has not"),
    ],
)
def test_other_adapters_get_one_line(options, message, trained, ragged_data, tmp_path):
    exported(trained, 0, tmp_path / "client")
    with pytest.raises(PflError, match=message):
        FedAvg(network=SMALL, pretrained=str(tmp_path / "client"), **options).build_for(ragged_data())


def test_other_weights_get_one_line(trained, ragged_data, tmp_path):
    exported(trained, 0, tmp_path / "client")
    with pytest.raises(PflError, match="has adapters of other weights than those of ViT"):
        FedAvg(network=SMALL, adapter=ADAPTER, pretrained=str(tmp_path / "client")).build_for(ragged_data(seed=2))


@pytest.mark.parametrize("damage", ["{", '{"peft_type": "LORA", "use_dora": true}', '{"peft_type": "IA3"}', "{}"])
def test_a_damaged_folder_gets_one_line(damage, trained, ragged_data, tmp_path):
    exported(trained, 0, tmp_path / "client")
    (tmp_path / "client/adapter_config.json").write_text(damage)
    with pytest.raises(PflError, match=r"^model.pretrained: cannot read '[^\n]*; write it with [^\n]*$"):
        FedAvg(network=SMALL, adapter=ADAPTER, pretrained=str(tmp_path / "client")).build_for(ragged_data())


def test_models_without_one_adapter_a_layer_are_refused(ragged_data):
    data = ragged_data()
    for method, name, message in (
        (built(FedAvg, data, network=SMALL), "global", "model.adapter null"),
        (built(FedDPA, data, network=SMALL, adapter=ADAPTER), "personal", "FedDPA's personal model"),
    ):
        with pytest.raises(PflError, match=f"as: peft is not possible with {message}"):
            method.client(0, name, data, merged=False)


@pytest.mark.parametrize("kind", [FedExLoRA, FLoRA])
def test_weights_that_have_moved_are_refused(kind, ragged_data, tmp_path):
    method = built(kind, ragged_data(), network=SMALL, adapter=ADAPTER)
    with pytest.raises(PflError, match=r"^as: peft has no adapters of weights that have moved too; allowed: file"):
        exported(method, 0, tmp_path / "client")
    assert not (tmp_path / "client").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # of peft's use of transformers
def test_a_text_classifier_of_the_hub_takes_the_folder(hugging_face, ragged_data, fit, tmp_path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    tokens = torch.randint(5, 10, (60, 6), generator=torch.Generator().manual_seed(0))
    data = Arrays(tokens, tokens[:, 0] % 3, torch.arange(60) % 3)
    network = partial(HuggingFaceModel, name=str(hugging_face / "bert"))
    method = make_method(FedPer, keeps="head|*lora_B", network=network, adapter=LoRA(2), optimizer="AdamW", lr=0.1)
    fit(method, data, 1, bare=True)
    expected = exported(method, 2, tmp_path / "client", "SEQ_CLS")
    kind = transformers.AutoModelForSequenceClassification
    base = kind.from_pretrained(hugging_face / "bert", num_labels=3, ignore_mismatched_sizes=True, dtype=torch.float64)
    model = peft.PeftModel.from_pretrained(base, tmp_path / "client").eval()
    mask = torch.ones_like(tokens)
    outputs = model(input_ids=tokens, attention_mask=mask).logits
    torch.testing.assert_close(outputs, expected(tokens), rtol=0, atol=1e-9)
    config = peft.PeftConfig.from_pretrained(tmp_path / "client")
    assert (config.base_model_name_or_path, config.task_type) == (str(hugging_face / "bert"), "SEQ_CLS")
