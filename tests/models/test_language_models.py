"""Causal language models of ``transformers`` as networks."""

from functools import partial

import pytest
import torch
from fakes.hugging_face import END

from pfl_lightning.errors import PflError
from pfl_lightning.models import HuggingFaceModel, LoRA, start_network
from pfl_lightning.tree import movable

LENGTH, TOKENS = 12, END + 1
NAMES = ["llama", "llama-tied", "gpt2"]


def network(folder, adapter=None, shape=(LENGTH, TOKENS), **options):
    make = partial(HuggingFaceModel, name=str(folder), dropout=False, **options)
    extend = adapter and partial(adapter.add_to, head=1)
    return start_network(make, shape, TOKENS, 0, {}, "tokens", extend=extend, output_shape=(shape[0], TOKENS))


def theirs(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.get_default_dtype()).eval()


def tokens(rows=3):
    return torch.randint(TOKENS, (rows, LENGTH))


@pytest.mark.parametrize("name", NAMES)
def test_its_logits_are_the_librarys_for_the_tokens_of_the_data(name, language_models, float64):
    ours, reference, batch = network(language_models / name).eval(), theirs(language_models / name), tokens()
    with torch.no_grad():
        expected = reference(input_ids=batch).logits
        assert expected.shape[-1] == TOKENS + 2 * (name == "llama")
        torch.testing.assert_close(ours(batch), expected[..., :TOKENS], rtol=0, atol=1e-12)
    assert not any(layer.without_vmap for layer in ours)
    assert ours.pretrained == {*ours.state_dict()}


@pytest.mark.parametrize("name", NAMES)
def test_no_token_sees_a_later_one_so_padding_changes_nothing(name, language_models, float64):
    ours, batch = network(language_models / name).eval(), tokens()
    changed = batch.clone()
    changed[:, 7:] = 0
    with torch.no_grad():
        torch.testing.assert_close(ours(changed)[:, :7], ours(batch)[:, :7], rtol=0, atol=1e-12)
        assert (ours(changed)[:, 7] - ours(batch)[:, 7]).abs().max() > 1e-3


def test_a_network_that_reads_later_tokens_gets_a_line(hugging_face):
    make = partial(HuggingFaceModel, name=str(hugging_face / "bert-words"))
    with pytest.raises(PflError, match=r"^model\.network\.name: '.*' reads tokens behind the one that it predicts"):
        start_network(make, (6, 10), 10, 0, {}, "tokens", output_shape=(6, 10))


def test_a_head_that_the_folder_lacks_gets_a_warning(language_models, tmp_path):
    from transformers import AutoModel

    AutoModel.from_pretrained(language_models / "llama").save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"does not have lm_head\.weight, which begin at random"):
        network(tmp_path)


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        ((33, TOKENS), "takes at most 32 tokens, texts have 33; allowed: a smaller data.max_length"),
        ((LENGTH, TOKENS + 3), "has 259 tokens, the data 260; allowed: data.tokenizer of the same folder"),
    ],
)
def test_what_does_not_fit_gets_a_line(shape, line, language_models):
    with pytest.raises(PflError) as refusal:
        network(language_models / "llama", shape=shape)
    assert str(refusal.value) == f"model.network.name: '{language_models / 'llama'}' {line}"


@pytest.mark.parametrize("name", NAMES)
def test_beside_adapters_nothing_trains_and_there_is_no_head(name, language_models, float64):
    adapted, plain = (network(language_models / name, adapter) for adapter in (LoRA(2), None))
    batch = tokens()
    assert all("lora_" in tensor for tensor in movable(adapted))
    assert adapted.cut(1) == (frozenset(movable(adapted)), frozenset())
    parts = adapted.parts(1)
    assert parts["all"] == parts["body"] == parts["head|*lora_*"]
    assert torch.equal(adapted.eval()(batch), plain.eval()(batch))
    with pytest.raises(PflError, match=r"model\.head must begin with a linear layer, .* has no head"):
        adapted.linear_head(parts["head"])


def test_an_output_layer_is_a_head_if_it_is_not_tied(language_models):
    heads = {name: network(language_models / name).cut(1)[1] for name in NAMES}
    assert heads == {"llama": {"LlamaForCausalLM.lm_head.weight"}, "llama-tied": frozenset(), "gpt2": frozenset()}
    for name in ("llama-tied", "gpt2"):
        tied = network(language_models / name)
        assert len(movable(tied)) == len(tied.state_dict()) - 1


def test_the_transposed_layers_of_gpt2_are_adapted_and_merged_like_linear_ones(language_models, float64):
    adapter, batch = LoRA(2, alpha=5.0, targets="*attn.c_attn"), tokens()
    adapted = network(language_models / "gpt2", adapter).eval()
    module = adapted.module_with({})
    layers = [layer for layer in module.modules() if hasattr(layer, "lora_B")]
    assert [(layer.lora_A.shape, layer.lora_B.shape) for layer in layers] == [((2, 32), (96, 2))] * 2
    for layer in layers:
        torch.nn.init.normal_(layer.lora_B)
        rows = torch.randn(5, 32)
        change = 2.5 * (rows @ layer.lora_A.T) @ layer.lora_B.T
        torch.testing.assert_close(layer(rows), rows @ layer.weight + layer.bias + change)
    expected = module(batch)
    assert (expected - adapted(batch)).abs().max() > 1e-3
    merged = adapter.merge(module)
    assert merged.state_dict().keys() == theirs(language_models / "gpt2").state_dict().keys()
    torch.testing.assert_close(merged(batch), expected)
