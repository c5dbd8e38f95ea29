"""Methods on causal language models, which have no head that trains beside adapters."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fakes.hugging_face import END
from fakes.loops import batches, participants
from fakes.methods import built, distance, make_method, tensors, weighted_mean
from torch.nn import functional as F

from pfl_lightning import load_method
from pfl_lightning.cli import main
from pfl_lightning.cli.export import task_type
from pfl_lightning.data import Arrays
from pfl_lightning.errors import PflError
from pfl_lightning.methods import (
    MOON,
    Ditto,
    FedALA,
    FedALT,
    FedAvg,
    FedBABU,
    FedDPA,
    FedExLoRA,
    FedPer,
    FedRep,
    FLoRA,
    Local,
    RoLoRA,
)
from pfl_lightning.models import HuggingFaceModel, LoRA
from pfl_lightning.models.peft_folder import write_peft
from pfl_lightning.tree import movable

WORDS = ["to be or not to be", "that is the question", "whether tis nobler", "in the mind", "to suffer", "the slings"]
RATES = {"optimizer": "AdamW", "epochs": 2, "batch_size": 2, "lr": 0.01, "weight_decay": 0.1, "decay_biases": True}
FULL = 2 * 2 * (32 + 32 + 32 + 32 + 32 + 16 + 32 + 16)  # A and B of q, o, k, v of rank 2 in two blocks of llama
FULL_A = 2 * 2 * 4 * 32


@pytest.fixture
def texts(language_models):
    def make(name="llama", **options):
        clients = [0, 0, 0, 1, 1, 2] * 2
        given = {"targets": WORDS * 2, "clients": clients, "target_type": "tokens", "max_length": 8, **options}
        return Arrays(tokenizer=str(language_models / name), **{"test_fraction": 0.3, "val_fraction": 0.0, **given})

    return make


@pytest.fixture
def model(language_models):
    def options(name="llama", **others):
        network = partial(HuggingFaceModel, name=str(language_models / name), dropout=False)
        return {"network": network, **RATES, **others}

    return options


@pytest.fixture
def trained(texts, model, fit):
    """A method after some rounds, and its network before."""

    def run(make, name="llama", rounds=1, **options):
        data = texts(name)
        data.setup()
        method = built(make, data, **model(name, **options))
        start = tensors(method.network)
        fit(method, data, rounds, bare=True)
        return method, start, data

    return run


def own_name(name):
    """Our name of one of peft's tensors."""
    return name.replace("base_model.model.", "").replace("base_layer.", "").replace(".default.weight", "")


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # of peft's use of transformers
@pytest.mark.parametrize("backend", ["sequential", "batched"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_round_is_that_of_a_plain_loop_with_peft(name, backend, trained, language_models, float64):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    method, start, data = trained(
        FedAvg, name, adapter=LoRA(2, alpha=6.0, targets=["*q_proj", "*v_proj", "*c_attn"]), backend=backend
    )
    targets = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn"]}[name]
    config = peft.LoraConfig(
        r=2, lora_alpha=6, target_modules=targets, task_type="CAUSAL_LM", fan_in_fan_out=name == "gpt2"
    )
    clients, counts = [], []
    for _, own in participants(data, 0):
        base = transformers.AutoModelForCausalLM.from_pretrained(language_models / name, dtype=torch.float64)
        model = peft.get_peft_model(base, config).eval()  # without dropout
        moving = {own_name(each): tensor for each, tensor in model.named_parameters() if tensor.requires_grad}
        begin = {method.network.original_name(each): start[each] for each in movable(method.network)}
        assert moving.keys() == begin.keys()
        for each, tensor in moving.items():
            tensor.data.copy_(begin[each])
        optimizer = torch.optim.AdamW(moving.values(), lr=RATES["lr"], weight_decay=RATES["weight_decay"])
        for epoch in batches(own, (1, "train", 0, "all"), RATES["epochs"], RATES["batch_size"]):
            for inputs, labels in epoch:
                logits = model(input_ids=inputs).logits[..., : END + 1]
                loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten().long(), ignore_index=-100)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        clients.append({each: tensor.detach() for each, tensor in moving.items()})
        counts.append(int(own.counts[0]))
    expected = weighted_mean(clients, torch.tensor(counts))
    found = {method.network.original_name(each): tensor for each, tensor in movable(method.network).items()}
    assert (update := distance(expected, begin)) > 1e-3
    assert distance(expected, found) < 1e-6 * update


@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_the_whole_model_trains_tied_or_not(name, trained, float64):
    methods = [trained(FedAvg, name, backend=backend) for backend in ("sequential", "batched")]
    (one, start, _), (many, _, _) = methods
    moving = movable(one.network)
    assert distance(tensors(one.network), tensors(many.network)) < 1e-10 * distance(start, tensors(one.network))
    assert all(not torch.equal(tensor, start[each]) for each, tensor in moving.items())
    assert one.accounting.ledger.down == 64 * 3 * sum(tensor.numel() for tensor in moving.values())
    module = one.client(0, "global")
    assert (module.model.embed_tokens.weight is module.lm_head.weight) == (name == "llama-tied")


@pytest.mark.parametrize(
    ("make", "options", "sent", "kept"),
    [
        (FedAvg, {}, FULL, 0),
        (FedAvg, {"freeze_a": True}, FULL - FULL_A, 0),
        (partial(FedPer, keeps="*lora_B"), {}, FULL_A, FULL - FULL_A),
        (partial(FedPer, keeps="head|*lora_B"), {}, FULL_A, FULL - FULL_A),
        (Local, {}, 0, FULL),
        (Ditto, {}, FULL, FULL),
        (RoLoRA, {}, FULL, None),
        (FedExLoRA, {}, FULL, None),
        (FLoRA, {}, 0, None),
        (FedALT, {}, FULL + 1, None),
    ],
    ids=["FedIT", "FFA", "FedSA", "FedSA-GLUE", "Local", "Ditto", "RoLoRA", "FedEx", "FLoRA", "FedALT"],
)
def test_adapters_alone_are_sent_and_kept(make, options, sent, kept, trained, float64):
    method, start, _ = trained(make, adapter=LoRA(2, **options))
    assert method.accounting.ledger.down == 64 * 3 * sent
    assert kept is None or method.clients.nbytes == 8 * 3 * kept
    changed = [each for each in start if not torch.equal(method.network.state_dict()[each], start[each])]
    moved = {each.rpartition(".")[2] for each in changed}
    assert moved <= {"lora_A", "lora_B", "rest_A", "rest_B"} | ({"weight"} if make in (FedExLoRA, FLoRA) else set())
    assert not any("lm_head" in each or "embed" in each for each in changed)


@pytest.mark.parametrize("make", [FedExLoRA, FLoRA])
def test_the_weights_of_gpt2_move_as_the_mean_of_products(make, trained, float64):
    method, start, data = trained(make, "gpt2", adapter=LoRA(2, targets="*c_proj"), backend="sequential")
    reference, _, _ = trained(Local, "gpt2", adapter=LoRA(2, targets="*c_proj"), backend="sequential")
    path = "GPT2LMHeadModel.transformer.h.0.attn.c_proj"  # as many inputs as outputs
    products = reference.clients.stack(f"{path}.lora_B") @ reference.clients.stack(f"{path}.lora_A")
    weights = data.make_round(0).examples.counts.double()
    mean = torch.einsum("c,cij->ij", weights / weights.sum(), products)
    layer = method.network.get_submodule(path)
    whole = layer.weight + 8.0 * (layer.lora_B @ layer.lora_A).T
    torch.testing.assert_close(whole, start[f"{path}.weight"] + 8.0 * mean.T, rtol=0, atol=1e-12)
    assert mean.abs().max() > 1e-6


def test_without_a_head_clients_are_fine_tuned_on_their_adapters(trained, texts):
    for make in (FedAvg, FedExLoRA):
        method, _, data = trained(make, adapter=LoRA(2))
        tuned, shared = (method.client(0, model, data, merged=False) for model in ("finetuned", "global"))
        moved = {
            each.rpartition(".")[2]
            for each, tensor in tuned.state_dict().items()
            if not torch.equal(tensor, shared.state_dict()[each])
        }
        assert moved == {"lora_A", "lora_B"}


@pytest.mark.parametrize("make", [FedRep, FedPer, FedBABU, FedALA, MOON, FedDPA])
def test_a_method_that_needs_a_head_gets_a_line(make, texts, model):
    data = texts()
    data.setup()
    line = r"^model\.network: \w+ needs a head; LlamaForCausalLM has none that trains beside adapters; allowed: another"
    with pytest.raises(PflError, match=line):
        built(make, data, **model(adapter=LoRA(2)))


def test_an_output_layer_that_is_tied_is_no_head(texts, model):
    data = texts()
    data.setup()
    with pytest.raises(PflError, match=r"FedRep needs a head; LlamaForCausalLM has none that trains; allowed: another"):
        built(FedRep, data, **model("llama-tied"))
    assert built(FedRep, data, **model("llama")).kept == {"LlamaForCausalLM.lm_head.weight"}


def test_new_clients_have_no_new_head(texts, model, fit):
    method = make_method(FedAvg, **model(adapter=LoRA(2)))
    trainer = fit(method, texts(num_clients=2), 1, bare=True)
    line = r"data\.new_head_epochs: 10 is not possible with LlamaForCausalLM, which has no head that trains; allowed: 0"
    with pytest.raises(PflError, match=line):
        trainer.test(method, texts(num_clients=2, new_clients=1), verbose=False)


OPTIONS = ["--model.network", "HuggingFaceModel", "--model.network.dropout", "false", "--model.adapter", "LoRA"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # of peft's use of transformers
@pytest.mark.parametrize("name", ["llama-tied", "gpt2"])
def test_a_client_is_scored_by_the_librarys_loss_and_goes_through_peft_and_back(
    name, language_models, in_an_empty_folder, capsys
):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    frame = pd.DataFrame({"text": WORDS * 2, "who": ["ann", "bob", "cat"] * 4})
    frame.to_csv("train.csv", index=False)
    frame.head(6).to_csv("test.csv", index=False)
    folder = str(language_models / name)
    data = ["--data", "Table", "--data.file", "train.csv", "--data.test_file", "test.csv", "--data.client", "who"]
    data += ["--data.target", "text", "--data.target_type", "tokens", "--data.tokenizer", folder]
    network = [*OPTIONS, "--model.network.name", folder, "--model.local.lr", "0.1"]
    main(["fit", "--model", "FedPer", "--model.keeps", "*lora_B", *network, *data, "--trainer.max_steps", "2"])
    run = "runs/FedPer-Table/version_0"
    main(["test", run])
    number = Path(run, "data.txt").read_text().partition(" = bob")[0][-1]
    main(["export", run, "client", "--client", number, "--as", "peft"])
    capsys.readouterr()
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model = peft.PeftModel.from_pretrained(base, "client").eval()
    assert model.peft_config["default"].task_type == "CAUSAL_LM"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    losses, counts = [], []
    for text in [WORDS[1], WORDS[4]]:  # bob's
        tokens = torch.tensor([[*tokenizer(text)["input_ids"], END]])
        counts.append(tokens.shape[1] - 1)
        losses.append(model(input_ids=tokens, labels=tokens).loss.item() * counts[-1])
    table = pd.read_csv(f"{run}/test.csv")
    bob = table[(table.client == int(number)) & (table.model == "stored")].iloc[0]
    assert bob.tokens == sum(counts)
    np.testing.assert_allclose(bob.perplexity, np.exp(sum(losses) / sum(counts)), rtol=1e-4)
    assert model.generate(input_ids=tokens[:, :5], max_new_tokens=3, do_sample=False).shape == (1, 8)
    main(["fit", "--model", "FedAvg", *network, *data, "--trainer.max_steps", "1", "--model.pretrained", "client"])
    method = load_method(Path("runs/FedAvg-Table/version_0/checkpoints/last.ckpt"))
    assert method.num_clients == 3


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # of peft's use of transformers
@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2"])
def test_peft_has_the_logits_of_the_client(name, trained, language_models, tmp_path, float64):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    method, _, data = trained(Local, name, adapter=LoRA(2), lr=0.1)
    folder = tmp_path / "client"
    write_peft(method.client(1, merged=False), method.adapter, (), folder, task_type(method.network))
    base = transformers.AutoModelForCausalLM.from_pretrained(language_models / name, dtype=torch.float64)
    tokens = torch.randint(END, (3, 8))
    with torch.no_grad():
        plain = base(input_ids=tokens).logits
        model = peft.PeftModel.from_pretrained(base, folder).eval()
        expected = method.client(1)(tokens)
        found = model(input_ids=tokens).logits[..., : END + 1]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert (found - plain[..., : END + 1]).abs().max() > 1e-3
    again = make_method(
        FedAvg,
        adapter=LoRA(2),
        pretrained=str(folder),
        network=partial(HuggingFaceModel, name=str(language_models / name), dropout=False),
    )
    again.build_for(data)
    torch.testing.assert_close(again.client(0, "global")(tokens), expected, rtol=0, atol=1e-12)
