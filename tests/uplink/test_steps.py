"""Steps between clients and the server against their closed forms, and all that may be combined with them."""

from functools import partial
from itertools import combinations

import pytest
import torch
from fakes.methods import built, distance, tensors

from pfl_lightning.errors import PflError
from pfl_lightning.methods import DeltaFL, FedAvg, FedRep, RoLoRA, Sparsity
from pfl_lightning.models import LoRA
from pfl_lightning.server import (
    CenteredClipping,
    DPAggregator,
    Mean,
    Median,
    Message,
    NearestNeighbours,
    SecureAggregator,
    TrimmedMean,
)
from pfl_lightning.system import Asynchronous, Participation
from pfl_lightning.system.attackers import drawn
from pfl_lightning.tree import Params
from pfl_lightning.uplink import (
    ALIE,
    Clip,
    ErrorFeedback,
    LowRank,
    Momentum,
    Quantize,
    Senders,
    Sign,
    SignFlip,
    Step,
    TopK,
    pass_on,
    rebase_stale_uploads,
)
from pfl_lightning.uplink.steps import Prune

RECEIVED = {"w": torch.tensor([1.0, -1.0]), "b": torch.tensor([2.0]), "mean": torch.tensor([5.0])}
ROWS = {
    "w": torch.tensor([[4.0, -1.0], [1.0, 2.0], [1.5, -1.0]]),
    "b": torch.tensor([[6.0], [2.0], [2.0]]),
    "mean": torch.tensor([[9.0], [5.0], [1.0]]),
}


def senders(ids=(0, 1, 2), num_clients=3, received=RECEIVED, seed=1):
    parameters = {name for name in received if name != "mean"}
    return Senders(torch.tensor(ids), Params(received, {}), parameters, num_clients, (seed, "train", 0), 0)


def test_a_clipped_change_has_the_norm_over_all_parameters_and_keeps_its_direction():
    clipped = Clip(1.0)(ROWS, senders())
    torch.testing.assert_close(clipped["w"], torch.tensor([[1.6, -1.0], [1.0, 0.0], [1.5, -1.0]]))
    torch.testing.assert_close(clipped["b"], torch.tensor([[2.8], [2.0], [2.0]]))
    assert clipped["mean"] is ROWS["mean"]
    rows = {name: stack.expand(3, *stack.shape) for name, stack in RECEIVED.items()}  # each client has its own
    own = senders()._replace(received=Params({}, rows))
    assert {name: stack.tolist() for name, stack in Clip(1.0)(ROWS, own).items()} == {
        name: stack.tolist() for name, stack in clipped.items()
    }


def test_a_flipped_change_is_as_far_on_the_other_side_and_a_step_back_flips_it_again():
    flipped = SignFlip(1.0)(ROWS, senders())
    assert flipped["w"].tolist() == [[-2.0, -1.0], [1.0, -4.0], [0.5, -1.0]]
    assert flipped["mean"].tolist() == ROWS["mean"].tolist(), "statistics are not attacked"
    assert SignFlip(1.0)(flipped, senders())["w"].tolist() == ROWS["w"].tolist()
    assert SignFlip(1.0, scale=2.0)(ROWS, senders())["b"].tolist() == [[-6.0], [2.0], [2.0]]


def test_attackers_are_always_the_same_and_so_many_as_the_share_says():
    few = drawn(1, 10, 0.3)
    assert int(few.sum()) == 3
    assert int(drawn(1, 9, 0.2).sum()) == 1
    assert (drawn(1, 10, 0.5) | ~few).all(), "more attackers are those and others"
    assert [*map(int, (drawn(1, 10, 0.0).sum(), drawn(1, 10, 1.0).sum()))] == [0, 10]
    assert not torch.equal(few, drawn(2, 10, 0.3))
    ids = (int(few.nonzero()[0, 0]), int((~few).nonzero()[0, 0]), int((~few).nonzero()[1, 0]))
    sent = SignFlip(0.3)(ROWS, senders(ids, num_clients=10))
    assert sent["w"].tolist() == [[-2.0, -1.0], *ROWS["w"].tolist()[1:]]


@pytest.mark.parametrize("bits", [2, 4, 16])
def test_a_quantized_change_is_a_neighbouring_level_and_its_mean_the_change(bits):
    generator = torch.Generator().manual_seed(3)
    received = {"w": torch.randn(50, generator=generator, dtype=torch.float64)}
    change = torch.randn(50, generator=generator, dtype=torch.float64)
    count = 4000
    rows = {"w": (received["w"] + change).expand(count, 50)}
    found = Quantize(bits)(rows, senders(range(count), count, received))["w"] - received["w"]
    scale = change.abs().max() / (2 ** (bits - 1) - 1)
    levels = found / scale
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-9)
    assert float((found - change).abs().max()) <= float(scale)
    assert float((found.mean(0) - change).abs().max()) < 5 * float(scale) / count**0.5
    still = Quantize(bits)({"w": received["w"].expand(3, 50)}, senders(received=received))
    assert torch.equal(still["w"], received["w"].expand(3, 50)), "what did not change does not"


def test_a_number_is_quantized_too():
    received = {"scale": torch.tensor(2.0)}
    rows = {"scale": torch.tensor([2.0, 3.0, 1.5])}
    found = Quantize(8)(rows, senders(received=received))["scale"]
    torch.testing.assert_close(found, rows["scale"])  # each is the largest of its own tensor


def test_a_client_draws_the_same_in_any_chunk():
    whole = Quantize(3)(ROWS, senders())
    for client in range(3):
        alone = Quantize(3)({name: stack[client : client + 1] for name, stack in ROWS.items()}, senders((client,)))
        assert {name: stack[0].tolist() for name, stack in alone.items()} == {
            name: stack[client].tolist() for name, stack in whole.items()
        }


def test_a_message_has_the_bytes_that_its_steps_say():
    tree = {"w": torch.tensor([[0.0] * 15 + [1.0]] * 2), "loss": torch.ones(2)}
    dense = 2 * (16 + 1) * 4
    assert Message().bytes(tree, {"w"}) == dense
    assert Prune(0.1).message(Message()).bytes(tree, {"w"}) == 2 * (2 + 4 + 4)
    assert Quantize(5).message(Message(packed=True)).bytes(tree, {"w"}) == 2 * (16 * 5 // 8 + 4 + 4)
    assert SignFlip().message(Clip().message(Message())) == Message()
    assert Sign().message(Message()).bytes(tree, {"w"}) == 2 * (2 + 4 + 4)
    assert TopK(0.25).message(Message()).bytes(tree, {"w"}) == 2 * (2 + 4 * 4 + 4)
    assert Quantize(8).message(TopK(0.25).message(Message())).bytes(tree, {"w"}) == 2 * (2 + 4 + 4 + 4)


def test_the_largest_changes_are_sent_and_the_others_are_as_received():
    sent = TopK(0.5)(ROWS, senders())
    assert sent["w"].tolist() == [[4.0, -1.0], [1.0, 2.0], [1.5, -1.0]]
    assert sent["mean"] is ROWS["mean"]
    wide = {"w": torch.tensor([[5.0, -9.0, 2.0, 3.0]])}
    received = {"w": torch.tensor([1.0, -1.0, 2.0, 2.0])}
    assert TopK(0.3)(wide, senders((0,), received=received))["w"].tolist() == [[5.0, -9.0, 2.0, 2.0]]
    assert TopK(0.01)(wide, senders((0,), received=received))["w"].tolist() == [[1.0, -9.0, 2.0, 2.0]]
    assert TopK(1.0)(wide, senders((0,), received=received))["w"].equal(wide["w"])


def test_what_feedback_has_not_sent_is_added_to_the_next_change():
    errors = {"memory.w": torch.zeros(3, 2), "memory.b": torch.zeros(3, 1)}
    total = {name: torch.zeros_like(ROWS[name]) for name in ("w", "b")}
    for rounds in range(1, 6):
        step = ErrorFeedback(TopK(0.5))
        after = step(ROWS, senders()._replace(received=Params(RECEIVED, errors)))
        errors = {name: after[name] for name in errors}
        for name in total:
            total[name] += after[name] - RECEIVED[name]
            wanted = rounds * (ROWS[name] - RECEIVED[name])
            torch.testing.assert_close(total[name] + errors[f"memory.{name}"], wanted)
    assert step.message(Message()) == TopK(0.5).message(Message())


def test_feedback_that_loses_nothing_is_no_step_and_a_client_that_waits_keeps_its_error(train, ragged_data):
    whole = [train(FedAvg, 2, uplink=steps).network for steps in ([], [ErrorFeedback(TopK(1.0))])]
    assert distance(*map(tensors, whole)) == 0
    data = ragged_data(participation=Participation(pool_size=2))
    method = train(FedRep, 1, data, uplink=[ErrorFeedback(TopK(0.1))])
    took_part = data.make_round(0).examples.ids.tolist()
    for name in [name for name in method.clients.names if name.startswith("memory.")]:
        moved = method.clients.stack(name).flatten(1).abs().sum(1) > 0
        assert set(moved.nonzero()[:, 0].tolist()) == set(took_part)
        assert name.removeprefix("memory.") in method.shared


@pytest.mark.parametrize("step", [ErrorFeedback(TopK(0.5)), Momentum()])
def test_what_is_remembered_of_tensors_that_are_not_sent_stays(step, train):
    adapter = LoRA(2, targets="fc1")
    memories = [train(RoLoRA, rounds, uplink=[step], adapter=adapter).clients.stack for rounds in (1, 2)]
    for factor, moves in (("A", True), ("B", False)):
        before, after = (stack(f"memory.fc1.lora_{factor}") for stack in memories)
        assert torch.equal(before, after) != moves
        assert before.any() != moves


def test_momentum_is_a_moving_average_of_the_changes():
    memory = {"memory.w": torch.ones(3, 2), "memory.b": torch.zeros(3, 1)}
    after = Momentum(0.75)(ROWS, senders()._replace(received=Params(RECEIVED, memory)))
    assert after["w"].tolist() == [[1 + 1.5, -1 + 0.75], [1 + 0.75, -1 + 1.5], [1 + 0.875, -1 + 0.75]]
    assert after["memory.w"].equal(after["w"] - RECEIVED["w"])
    assert after["b"].tolist() == [[3.0], [2.0], [2.0]]
    assert after["mean"] is ROWS["mean"]


@pytest.mark.parametrize(
    ("steps", "line"),
    [
        (
            [ErrorFeedback(TopK()), Momentum()],
            "model.uplink: Momentum is not possible beside another step",
        ),
        ([ALIE(), ErrorFeedback(TopK())], "model.uplink: ErrorFeedback is not possible beside another step with"),
        ([ErrorFeedback(Momentum())], "model.uplink.step: Momentum is not possible in ErrorFeedback; allowed: a step"),
        ([ErrorFeedback(ALIE())], "model.uplink.step: ALIE is not possible in ErrorFeedback; allowed: a step that"),
    ],
)
def test_what_clients_remember_is_of_one_step_before_what_sees_all_models(steps, line, ragged_data):
    with pytest.raises(PflError, match=f"^{line}"):
        built(FedAvg, ragged_data(), uplink=steps, aggregator=Mean())


@pytest.mark.parametrize(("energy", "rank"), [(0.8, 1), (0.9, 2), (0.95, 3)])
def test_a_change_keeps_as_many_singular_values_as_its_energy_takes(energy, rank):
    """Shares of the squares of 3, 1, 1 are .8182, .9091 and 1."""
    source = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, 3, generator=source))[0] for size in (20, 30))
    values = torch.tensor([3.0, 1.0, 1.0])
    received = torch.randn(20, 30, generator=source)
    changes = left * values @ right.T
    rows = {"w": torch.stack([received + changes, received, received + torch.nan])}
    step = LowRank(first_energy=energy, last_energy=energy)
    sent = step(rows, senders(received={"w": received}))
    aim = left * values.where(torch.arange(3) < rank, 0) @ right.T
    if rank != 2:  # of the two values of 1 either is the second
        torch.testing.assert_close(sent["w"][0] - received, aim, rtol=0, atol=1e-5)
    assert torch.linalg.matrix_rank(sent["w"][0] - received, atol=1e-3) == rank
    assert sent["w"][1].equal(received)
    assert sent["w"][2].isnan().all()
    assert sent["bits.w"].tolist() == [32 * rank * (20 + 30 + 1), 0, 32 * 20 * 30]


def test_a_matrix_that_takes_no_fewer_numbers_in_two_is_sent_as_it_is():
    rows = {"w": torch.randn(2, 4, 5), "b": torch.randn(2, 9), "k": torch.randn(2, 6, 2, 3, 3)}
    received = {name: torch.zeros_like(stack[0]) for name, stack in rows.items()}
    sent = LowRank(0.999999, 0.999999)(rows, senders((0, 1), received=received))
    assert all(sent[name].equal(stack) for name, stack in rows.items())
    assert {name: bits.tolist() for name, bits in sent.items() if name.startswith("bits.")} == {
        "bits.w": [32 * 20] * 2,
        "bits.k": [32 * 6 * 18] * 2,
    }


def test_the_energy_grows_until_a_round():
    change = torch.linalg.qr(torch.randn(40, 40, generator=torch.Generator().manual_seed(0)))[0]  # all values are 1
    kept = []
    for round_index in (0, 4, 9, 30):
        who = senders((0,), received={"w": torch.zeros(40, 40)})._replace(round_index=round_index)
        kept.append(LowRank(0.11, 0.31, 10)({"w": change[None]}, who)["bits.w"].item() // (32 * 81))
    assert kept == [6, 9, 13, 13], "more than 13, 21 and 31 % of 40"


def test_uploads_of_low_rank_are_counted_by_their_ranks_and_a_step_that_writes_all_alike_by_that(train):
    dense, low, quantized, fed_back = (
        train(FedAvg, 1, uplink=steps).accounting.ledger.up
        for steps in ([], [LowRank(0.5, 0.5)], [LowRank(0.5, 0.5), Quantize(8)], [ErrorFeedback(LowRank(0.5, 0.5))])
    )
    assert low < 0.6 * dense
    assert fed_back == low
    assert quantized == train(FedAvg, 1, uplink=[Quantize(8)]).accounting.ledger.up


def test_signs_have_the_mean_size_of_the_changes():
    sent = Sign()(ROWS, senders())
    assert sent["w"].tolist() == [[2.5, 0.5], [2.5, 0.5], [1.25, -0.75]]  # 1.5, 1.5 and 0.25 from [1, -1]
    assert sent["b"].tolist() == [[6.0], [2.0], [2.0]]
    assert sent["mean"] is ROWS["mean"]


def test_quantized_uploads_are_counted_by_their_bits(train):
    usual, few = (train(FedAvg, 1, uplink=steps) for steps in ([], [Quantize(8)]))
    losses = 32 * usual.num_clients
    tensors_of_clients = usual.num_clients * len([*usual.network.parameters()])
    assert few.accounting.ledger.up - losses == (usual.accounting.ledger.up - losses) / 4 + 32 * tensors_of_clients
    assert few.accounting.ledger.down == usual.accounting.ledger.down
    assert 0 < distance(usual, few) < 0.01


@pytest.mark.parametrize("step", [Clip(1e6), SignFlip(0.0), SignFlip(1 / 7)])
def test_a_step_that_changes_nothing_changes_no_bit(step, train):
    assert distance(train(FedAvg, 2), train(FedAvg, 2, uplink=[step])) == 0


def test_if_all_attack_the_model_moves_to_the_other_side(train, ragged_data, float64):
    start = tensors(built(FedAvg, ragged_data()).network)
    honest, attacked = (tensors(train(FedAvg, 1, uplink=steps).network) for steps in ([], [SignFlip(1.0)]))
    assert distance(honest, start) > 1e-3
    assert distance({name: 2 * tensor - honest[name] for name, tensor in start.items()}, attacked) < 1e-12


def test_stale_uploads_are_changes_of_the_newest_model_or_models_beside_it():
    newest, began = {"w": torch.tensor([10.0, 20.0])}, {"w": torch.tensor([[1.0, 2.0], [10.0, 20.0]])}
    trained, shares = {"w": torch.tensor([[3.0, 8.0], [11.0, 20.0]])}, torch.tensor([0.5, 1.0])
    # by changes 10 + (3 - 1) / 2 and 20 + (8 - 2) / 2; by models half-way from 10 to 3 and from 20 to 8
    changes = rebase_stale_uploads(trained, began, newest, shares, {"w"})["w"]
    assert changes.tolist() == [[11.0, 23.0], [11.0, 20.0]]
    assert rebase_stale_uploads(trained, began, newest, shares, set())["w"].tolist() == [[6.5, 14.0], [11.0, 20.0]]


def test_counters_come_back_as_numbers_between():
    found = rebase_stale_uploads(
        {"n": torch.tensor([8, 4])}, {}, {"n": torch.tensor(2)}, torch.tensor([0.5, 1.0]), set()
    )
    assert found["n"].tolist() == [5.0, 4.0]


class Renaming(Step):
    """Returns tensors under other names."""

    def __call__(self, rows, senders):
        return {f"my.{name}": stack for name, stack in rows.items()}


class Shortening(Step):
    """Returns fewer clients."""

    def __call__(self, rows, senders):
        return {name: stack[:-1] for name, stack in rows.items()}


@pytest.mark.parametrize(
    ("step", "found"), [(Renaming(), r"got nothing as b, which was \[3, 1\]"), (Shortening(), r"got \[2, 1\] as b")]
)
def test_a_step_that_returns_other_tensors_is_one_line(step, found):
    line = rf"^model.uplink: {type(step).__name__} must return tensors of the same names and shapes, {found}"
    with pytest.raises(PflError, match=line):
        pass_on([step], ROWS, senders())


class Alone(FedAvg):
    """Clients share nothing."""

    keeps = "all"


class Weighing(FedAvg):
    """Clients upload something else under the names of the model."""

    uploads_models = False


@pytest.mark.parametrize(
    ("make", "what"), [(Alone, "no model"), (Weighing, "several models, weighted ones, or parts of one")]
)
def test_steps_need_clients_that_upload_models(make, what, ragged_data):
    with pytest.raises(
        PflError, match=f"^model.uplink must be empty with {make.__name__}, whose clients upload {what}"
    ):
        built(make, ragged_data(), uplink=[SignFlip()])


# All pairs of what can happen to an upload

PARTS = {
    "secure": {"aggregator": SecureAggregator},
    "private": {"aggregator": partial(DPAggregator, 0.5, 0.1), "weighting": "uniform"},
    "median": {"aggregator": Median},
    "trimmed": {"aggregator": TrimmedMean},
    "clipped around": {"aggregator": lambda: NearestNeighbours(CenteredClipping(0.5))},
    "stale": {"participation": Asynchronous(4, 2)},
    "pruned": {"sparsity": Sparsity(prune=True, threshold=0.02)},
    "clipped": {"uplink": [Clip(0.5)]},
    "quantized": {"uplink": [Quantize(4)]},
    "of low rank": {"uplink": [LowRank()]},
    "attacked": {"uplink": [SignFlip(0.4)]},
    "remembered": {"uplink": [ErrorFeedback(TopK(0.5))]},
    "colluding": {"uplink": [ALIE(0.4, z=1.0)], "aggregator": Mean},
    "chosen by sums": {"make": partial(DeltaFL, quantile="sums", conformity=0.6)},
    "partly shared": {"make": FedRep},
}
REFUSED = {
    *((aggregator, "stale") for aggregator in ("secure", "private", "median", "trimmed", "clipped around")),
    *((aggregator, "chosen by sums") for aggregator in ("private", "median", "trimmed", "clipped around")),
    ("stale", "chosen by sums"),
    ("stale", "colluding"),
    ("colluding", "chosen by sums"),
}


@pytest.mark.parametrize(
    "names",
    [
        pair
        for pair in combinations(PARTS, 2)
        if "uplink" in PARTS[pair[0]] or not {*PARTS[pair[0]]} & {*PARTS[pair[1]]}
    ],
    ids=" and ".join,
)
def test_every_pair_trains_or_is_one_line(names, ragged_data, train):
    options = {}
    for name in names:
        uplink = options.get("uplink", [])
        options |= PARTS[name]
        options["uplink"] = uplink + PARTS[name].get("uplink", [])
    make, participation = options.pop("make", FedAvg), options.pop("participation", None)
    if "aggregator" in options:
        options["aggregator"] = options["aggregator"]()

    def run():
        return train(make, 2, ragged_data(**({"participation": participation} if participation else {})), **options)

    if names in REFUSED:
        with pytest.raises(PflError, match=r"^(model|data)\.\w+: [^\n]* is not possible [^\n]*; allowed: [^\n]*$"):
            run()
        return
    method = run()
    assert all(tensor.isfinite().all() for tensor in method.network.state_dict().values())
    assert method.accounting.ledger.up > 0
    assert distance(method.network, built(make, ragged_data()).network) > 0
