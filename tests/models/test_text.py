import pytest
import torch
from fakes.cohorts import Identity, deal_out, params_of
from fakes.methods import distance
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from pfl_lightning.client import Engine, Phase, Samples
from pfl_lightning.client.backends import Batched
from pfl_lightning.models.text import PADDING, CharGRU, Embedding, FastText, LSTMClassifier, OneHot, TweetLSTM, WordLSTM

UNKNOWN = 1
LENGTH, VOCABULARY, DIM = 7, 11, 4
TOKENS, VECTORS = (LENGTH, VOCABULARY), (LENGTH, DIM)


pytestmark = pytest.mark.usefixtures("float64")


def tweet_lstm(dropout=0.0, classes=3):
    return TweetLSTM(TOKENS, classes, embedding_dim=DIM, hidden=3, bottleneck=5, dropout=dropout)


def tweets(lengths):
    tokens = torch.randint(UNKNOWN, VOCABULARY, (len(lengths), LENGTH))
    return torch.where(torch.arange(LENGTH) < torch.tensor(lengths)[:, None], tokens, PADDING)


@pytest.mark.parametrize("head", [1, 2, 3])  # the splits of SRPFL and its code
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_tweet_lstm_is_cut_as_the_papers_splits(head, dropout):
    body = tweet_lstm(dropout).cut(head)[0]
    assert {name.split(".")[0] for name in body} == {*["embedding", "lstm", "fc1"][: 4 - head]}


def copied(layer, network, name):
    prefix = f"{name}."
    tensors = {key.removeprefix(prefix): t for key, t in network.state_dict().items() if key.startswith(prefix)}
    layer.load_state_dict(tensors)
    return layer


def test_tweet_lstm_is_the_papers_layers():
    network, lengths = tweet_lstm(dropout=0.5).eval(), [7, 2, 5, 1]
    tokens = tweets(lengths)
    vectors = copied(nn.Embedding(VOCABULARY, DIM, padding_idx=PADDING), network, "embedding")(tokens)
    lstm = copied(nn.LSTM(DIM, 3, 2, batch_first=True, bidirectional=True), network, "lstm")
    packed = pack_padded_sequence(vectors, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    hidden = lstm(packed)[1][0]
    values = copied(nn.Linear(6, 5), network, "fc1")(torch.cat([hidden[-2], hidden[-1]], -1)).clamp(min=0)
    torch.testing.assert_close(network(tokens), copied(nn.Linear(5, 3), network, "fc2")(values))


def test_fasttext_is_a_linear_layer_on_the_mean_of_the_word_vectors():
    network, lengths = FastText(TOKENS, 3, embedding_dim=DIM), [7, 2, 0]
    tokens = tweets(lengths)
    vectors = network.embedding.weight
    means = [vectors[row[:length]].sum(0) / max(length, 1) for row, length in zip(tokens, lengths, strict=True)]
    torch.testing.assert_close(network(tokens), copied(nn.Linear(DIM, 3), network, "fc")(torch.stack(means)))


def test_char_gru_reads_one_hot_characters_and_answers_at_the_last():
    network, tokens = CharGRU(TOKENS, 5, hidden=3), torch.randint(VOCABULARY, (4, LENGTH))  # 0 is a character
    gru = copied(nn.GRU(VOCABULARY, 3, batch_first=True), network, "gru")
    states = gru(F.one_hot(tokens, VOCABULARY).double())[0]
    torch.testing.assert_close(network(tokens), copied(nn.Linear(3, 5), network, "fc")(states[:, -1]))


def test_lstm_classifier_answers_at_the_last_vector():
    network, vectors = LSTMClassifier(VECTORS, 2, hidden=3), torch.randn(4, *VECTORS)
    states = copied(nn.LSTM(DIM, 3, batch_first=True), network, "lstm")(vectors)[0]
    torch.testing.assert_close(network(vectors), copied(nn.Linear(3, 1), network, "fc")(states[:, -1]))


def test_padding_does_not_change_a_tweet_but_the_order_of_words_does():
    network = tweet_lstm().eval()
    tokens = torch.tensor([[2, 3, 4], [5, 6, PADDING]])
    outputs = network(tokens)
    torch.testing.assert_close(network(F.pad(tokens, (0, 4), value=PADDING)), outputs)
    swapped = network(tokens[:, [1, 0, 2]])
    assert ((swapped - outputs).abs().amax(1) > 1e-6).all()
    assert network(torch.full((1, 3), PADDING)).isfinite().all()


def test_padding_does_not_learn():
    embedding = Embedding(VOCABULARY, DIM)
    embedding(torch.tensor([[3, UNKNOWN, PADDING]])).sum().backward()
    assert embedding.weight.grad.any(1).nonzero().flatten().tolist() == [UNKNOWN, 3]


def test_dropout_spares_the_marks_of_the_words():
    embedding = Embedding(VOCABULARY, DIM, dropout=1.0)
    vectors = embedding(torch.tensor([[3, PADDING]]))
    assert not vectors[..., :DIM].any()
    assert vectors[..., DIM].tolist() == [[1, 0]]


def test_one_hot_rows_follow_the_networks_type_and_are_no_part_of_its_state():
    layer = OneHot(3).float()
    assert layer(torch.tensor([[2, 0]])).tolist() == [[[0, 0, 1], [1, 0, 0]]]
    assert layer(torch.tensor([[2]])).dtype == torch.float32
    assert not layer.state_dict()


def test_a_word_lstm_is_torchs_layers_one_after_the_other(float64):
    network = WordLSTM(TOKENS, VOCABULARY, embedding_dim=4, hidden=3, layers=2)
    tokens = torch.randint(VOCABULARY, (5, LENGTH))
    lstm = torch.nn.LSTM(4, 3, num_layers=2, batch_first=True)
    lstm.load_state_dict(network.lstm.state_dict())
    expected = network.fc(lstm(network.embedding(tokens))[0])
    assert expected.shape == (5, LENGTH, VOCABULARY)
    torch.testing.assert_close(network(tokens), expected)
    later = tokens.clone()
    later[:, 4:] = PADDING
    torch.testing.assert_close(network(later)[:, :4], expected[:, :4])


COUNTS = (9, 6, 5, 1)
NETWORKS = {
    "TweetLSTM": lambda: (tweet_lstm(), tweets([7, 3, 1] * 7)),
    "TweetLSTM with dropout": lambda: (tweet_lstm(0.5), tweets([7, 3, 1] * 7)),
    "CharGRU": lambda: (CharGRU(TOKENS, 3, hidden=4), torch.randint(VOCABULARY, (21, LENGTH))),
    "LSTMClassifier": lambda: (LSTMClassifier(VECTORS, 3, hidden=4), torch.randn(21, *VECTORS)),
}


@pytest.mark.parametrize(("own", "moves"), [("nothing", "all"), ("head", "body"), ("all", "head")])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_the_engines_backends_agree(name, moves, own):
    network, inputs = NETWORKS[name]()
    examples = deal_out(Samples(inputs, torch.randint(3, (sum(COUNTS),)), Identity()), COUNTS)
    parts = network.parts(1)
    params = params_of(network, parts[own], len(COUNTS))
    phase = Phase(parts[moves], epochs=2, batch_size=4, lr=0.1, momentum=0.5, weight_decay=0.01)
    batched, sequential = (Engine(network, backend) for backend in ("batched", "sequential"))
    models, losses = batched.train(examples, params, phase, (1, "train", 0))
    expected, expected_losses = sequential.train(examples, params, phase, (1, "train", 0))
    torch.testing.assert_close(losses, expected_losses)
    update = distance(expected.own, params.tree)
    assert update > 1e-3
    assert distance(expected.own, models.own) < 1e-10 * update
    torch.testing.assert_close(batched.sums(examples, expected), sequential.sums(examples, expected))


def test_auto_batches_recurrent_clients():
    for network in (CharGRU(TOKENS, 3), tweet_lstm(), tweet_lstm(0.5)):
        own = {name: tensor[None] for name, tensor in network.state_dict().items()}
        assert type(Engine(network).backend(network, own)) is Batched
