import pytest
import torch
from fakes.loops import participants
from fakes.loops import trained as trained_alone
from fakes.methods import built, distance, tensors
from fakes.ranks import ADAPTER, ENTRIES, HEAD, LAYERS, OPTIONS, RANKS, network_of_rank, of_rank, product, shared
from torch.func import functional_call

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FlexLoRA
from pfl_lightning.methods.flexlora import factors
from pfl_lightning.models import LoRA
from pfl_lightning.server import SecureAggregator

pytestmark = pytest.mark.usefixtures("float64")

# Factors


def test_factors_are_the_nearest_of_their_rank_and_their_error_is_what_they_leave_out():
    matrix = torch.randn(6, 9)
    values = torch.linalg.svdvals(matrix)
    for rank in (1, 4, 6, 8):
        a, b = factors(matrix, torch.randn(rank, 9))
        assert (a.shape, b.shape) == ((rank, 9), (6, rank))
        left_out = values[rank:].square().sum()
        assert ((b @ a - matrix).square().sum() - left_out).abs() < 1e-12
        first_a, first_b = factors(matrix, torch.randn(2, 9))
        assert torch.equal(first_a[:1], a[:1]), "a smaller rank has the first components"
        assert torch.equal(first_b[:, :1], b[:, :1])
        assert (a[:6] @ a[:6].T - torch.eye(len(a[:6]))).abs().max() < 1e-12


def test_no_sign_is_left_to_chance():
    matrix = torch.randn(6, 9)
    a, b = factors(matrix, torch.zeros(3, 9))
    assert (a.gather(1, a.abs().argmax(1, keepdim=True)) > 0).all()
    opposite_a, opposite_b = factors(-matrix, torch.zeros(3, 9))
    torch.testing.assert_close((opposite_a, opposite_b), (a, -b))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_where_there_is_nothing_a_stays_and_b_is_zero(dtype):
    start = torch.randn(4, 9).to(dtype)
    matrix = (torch.randn(6, 2) @ torch.randn(2, 9)).to(dtype)
    a, b = factors(matrix, start)
    assert torch.equal(a[2:], start[2:])
    assert not b[:, 2:].any()
    assert b[:, :2].all()
    torch.testing.assert_close(b @ a, matrix)
    a, b = factors(torch.zeros(6, 9, dtype=dtype), start)
    assert torch.equal(a, start)
    assert not b.any()


# Rounds


@pytest.mark.parametrize("secure", [False, True], ids=["clear", "secure"])
def test_rounds_of_clients_of_three_ranks_are_a_plain_loop(secure, pool_of, fit, backend):
    data = pool_of(4)
    aggregator = SecureAggregator(limit=1000.0) if secure else None
    method = built(FlexLoRA, data, adapter=ADAPTER, ranks=RANKS, aggregator=aggregator, backend=backend, **OPTIONS)
    frozen = tensors(method.network)
    common = shared(method)
    fit(method, data, 3, bare=True)
    for index in range(3):
        clients = participants(data, index)
        samples = sum(int(own.counts) for _, own in clients)
        means = {name: torch.zeros_like(tensor) for name, tensor in common.items() if "lora" not in name}
        products = {layer: torch.zeros_like(frozen[f"{layer}.weight"]) for layer in LAYERS}
        for client, own in clients:
            rank = RANKS[client % 3]
            network = network_of_rank(rank, data, {**frozen, **common})
            key = (1, "train", index, "all")
            numbers = {"moves": frozenset(common), "epochs": 2, "momentum": 0.5, "decay": 0.01}
            model, _ = trained_alone(network, tensors(network), own, key, **numbers)
            share = int(own.counts) / samples
            for name in means:
                means[name] += share * model[name]
            for layer in LAYERS:
                products[layer] += share * product(model, layer)
        common |= means
        for layer in LAYERS:
            u, s, v = torch.linalg.svd(products[layer])
            signs = torch.tensor([1.0 if row[row.abs().argmax()] > 0 else -1.0 for row in v[:3]])
            common[f"{layer}.lora_A"] = signs[:, None] * v[:3]
            common[f"{layer}.lora_B"] = u[:, :3] * s[:3] * signs
    assert distance(common, method.network) < (1e-5 if secure else 1e-9)
    assert product(common, "fc1").abs().max() > 1e-2


def test_the_mean_of_the_products_is_exact_if_its_rank_is_small_enough(pool_of, fit):
    """Two clients of ranks 1 and 2 have a mean of rank 3; a mean of the factors is another one."""
    data = pool_of(2)
    method = built(FlexLoRA, data, adapter=ADAPTER, ranks=[1, 2], **OPTIONS)
    data.setup()
    method.build_for(data)
    batch = next(each for each in map(data.make_round, range(9)) if each.examples.ids.remainder(2).sum() == 1)
    sent = method.participate(batch, torch.arange(2), batch.examples).upload
    optimizer = method.configure_optimizers()
    method.optimizers = lambda: optimizer
    share = batch.examples.counts / batch.examples.counts.sum()
    mean = {name: torch.tensordot(share.double(), stack, 1) for name, stack in sent.items()}
    method.server_update({name: tensor for name, tensor in mean.items() if name != "train/loss"}, batch)
    for layer in LAYERS:
        found = product(method.network.state_dict(), layer)
        assert (found - mean[f"products.{layer}"]).abs().max() < 1e-14
        assert torch.linalg.matrix_rank(found) == 3


def test_a_client_is_evaluated_with_what_its_rank_holds(train):
    method = train(FlexLoRA, 2, adapter=ADAPTER, ranks=RANKS)
    received = method.received(torch.arange(6))

    class Train:
        ids = torch.arange(6)

    personal = method.eval_model("personal", Train, received, ())
    inputs = torch.randn(4, 1, 16, 16)
    for client in range(6):
        own = personal.client(client)
        rank = RANKS[client % 3]
        assert [torch.linalg.matrix_rank(product(own, layer)) for layer in LAYERS] == [rank, rank]
        assert distance(of_rank(own, rank), of_rank(tensors(method.network), rank)) == 0
        outputs = functional_call(method.network.eval(), own, inputs)
        torch.testing.assert_close(method.client(client, "personal")(inputs), outputs)
    assert method.clients.names == []


def test_clients_send_and_receive_factors_of_their_rank(train):
    """Two clients of each rank; layers of 256 by 8 and 8 by 5, and a head of 5 by 3."""
    ledger = train(FlexLoRA, 1, adapter=ADAPTER, ranks=RANKS).accounting.ledger
    numbers = 2 * (3 + 1 + 2) * ENTRIES + 6 * HEAD
    assert ledger.down == 64 * numbers
    assert ledger.up == 64 * (numbers + 6), "and a loss each"


def test_secure_sums_are_of_the_products(train):
    ledger = train(FlexLoRA, 1, adapter=ADAPTER, ranks=RANKS, aggregator=SecureAggregator()).accounting.ledger
    assert ledger.up == 6 * 64 * (256 * 8 + 8 * 5 + HEAD + 1 + 1), "and a loss and a weight each"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"ranks": [2, 4]}, r"model.ranks must be numbers from 1 to 3, the rank of model.adapter, got \[2, 4\]"),
        ({"ranks": []}, r"model.ranks must be numbers from 1 to 3, the rank of model.adapter, got \[\]"),
        (
            {"adapter": LoRA(freeze_a=True)},
            "model.adapter.freeze_a must be false with FlexLoRA, whose clients train A and B, got true",
        ),
    ],
)
def test_other_ranks_are_one_line(options, line):
    with pytest.raises(PflError, match=f"^{line}$"):
        FlexLoRA(**{"adapter": ADAPTER, **options})
