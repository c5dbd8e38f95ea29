import torch
from torch import Tensor, nn

from pfl_lightning.bounds import ClosedUnitInterval, PositiveInt
from pfl_lightning.errors import PflError
from pfl_lightning.models.linear import linear_layers
from pfl_lightning.models.network import Network, num_outputs
from pfl_lightning.models.recurrent import GRU, LSTM

PADDING = 0


class TweetLSTM(Network):
    """SRPFL's Sent140 network: word vectors, a two-layer bidirectional LSTM and two linear layers.

    Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning", TMLR 2023, arXiv:2206.02078.

    Dropout acts on the word vectors, between the LSTM's layers and after the bottleneck.

    Args:
        input_shape: Length in tokens and size of the vocabulary.
        num_classes: Number of classes; two classes need only one output.
        embedding_dim: Length of a word vector.
        hidden: Width of the LSTM in each direction.
        bottleneck: Width of the first linear layer.
        dropout: Probability of dropping a unit.

    Raises:
        PflError: If the inputs are not tokens.
    """

    takes = "padded tokens"

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        embedding_dim: PositiveInt = 100,
        hidden: PositiveInt = 256,
        bottleneck: PositiveInt = 5,
        dropout: ClosedUnitInterval = 0.5,
    ) -> None:
        layers = {
            "embedding": Embedding(step_size(self, input_shape), embedding_dim, dropout),
            "lstm": MaskedLSTM(embedding_dim, hidden, num_layers=2, dropout=dropout, bidirectional=True),
            **linear_layers([2 * hidden, bottleneck, num_outputs(num_classes)], {2: dropout}),
        }
        super().__init__(layers)


class FastText(Network):
    """fastText as PFLlib uses it for AG News: the mean of the word vectors, and a linear layer.

    Paper: Joulin et al., "Bag of Tricks for Efficient Text Classification", EACL 2017, arXiv:1607.01759.

    Differs: the mean is over the words alone; PFLlib's is over padding too, and it has another linear layer before the
    last. There are no vectors of pairs of words.

    Args:
        input_shape: Length in tokens and size of the vocabulary.
        num_classes: Number of classes; two classes need only one output.
        embedding_dim: Length of a word vector.

    Raises:
        PflError: If the inputs are not tokens.
    """

    takes = "padded tokens"

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, embedding_dim: PositiveInt = 32) -> None:
        embedding = Embedding(step_size(self, input_shape), embedding_dim)
        fc = nn.Linear(embedding_dim, num_outputs(num_classes))
        super().__init__({"embedding": embedding, "mean": MaskedMean(), "fc": fc})


class LSTMClassifier(Network):
    """Delta-FL's Sent140 network: an LSTM on frozen word vectors, and a linear layer on its last step.

    Padding counts as words with a zero vector.

    Paper: Laguel et al., "Device Heterogeneity in Federated Learning: A Superquantile Approach", 2020,
    arXiv:2002.11223.

    Args:
        input_shape: Length in words and length of a word vector.
        num_classes: Number of classes; two classes need only one output.
        hidden: Width of the LSTM.

    Raises:
        PflError: If the inputs are not sequences of vectors.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, hidden: PositiveInt = 50) -> None:
        lstm = LSTM(step_size(self, input_shape), hidden)
        super().__init__({"lstm": lstm, "fc": nn.Linear(hidden, num_outputs(num_classes))})


class CharGRU(Network):
    """Delta-FL's Shakespeare network: one-hot characters, a GRU, and a linear layer on its last step.

    Where each character has a target, the linear layer is on every step. Texts have no padding: token 0 is a character,
    too.

    Paper: Laguel et al., "Device Heterogeneity in Federated Learning: A Superquantile Approach", 2020,
    arXiv:2002.11223.

    Args:
        input_shape: Length in characters and size of the alphabet.
        num_classes: Number of classes; two classes need only one output.
        hidden: Width of the GRU.
        output_shape: Number of classes, or ``(length, classes)`` for outputs at every step; default: at the last one.

    Raises:
        PflError: If the inputs are not tokens.
    """

    takes = "tokens"

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        hidden: PositiveInt = 128,
        output_shape: tuple[int, ...] = (),
    ) -> None:
        alphabet = step_size(self, input_shape)
        every_step = len(output_shape) > 1
        outputs = num_classes if every_step else num_outputs(num_classes)
        layers = {"onehot": OneHot(alphabet), "gru": GRU(alphabet, hidden, every_step=every_step)}
        super().__init__({**layers, "fc": nn.Linear(hidden, outputs)})


class WordLSTM(Network):
    """LEAF's network for Reddit: word vectors, an LSTM, and a linear layer on every step, for the next word.

    Paper: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, arXiv:1812.01097.

    Args:
        input_shape: Length in words and size of the vocabulary.
        num_classes: Number of words to choose from.
        embedding_dim: Length of a word vector.
        hidden: Width of the LSTM.
        layers: Number of its layers.

    Raises:
        PflError: If the inputs are not tokens.
    """

    takes = "padded tokens"

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        embedding_dim: PositiveInt = 200,
        hidden: PositiveInt = 256,
        layers: PositiveInt = 2,
    ) -> None:
        embedding = nn.Embedding(step_size(self, input_shape), embedding_dim, padding_idx=PADDING)
        lstm = LSTM(embedding_dim, hidden, num_layers=layers, every_step=True)
        super().__init__({"embedding": embedding, "lstm": lstm, "fc": nn.Linear(hidden, num_classes)})


class Embedding(nn.Embedding):
    """Tokens ``[batch, length]`` to vectors ``[batch, length, dim + 1]``; the last channel is 1 for a word.

    Padding has 0 there and a zero vector that is not trained. Dropout acts on the vectors alone.

    Args:
        vocabulary: Number of tokens.
        dim: Length of a vector.
        dropout: Probability of dropping an entry of a vector.
    """

    def __init__(self, vocabulary: int, dim: int, dropout: float = 0.0) -> None:
        super().__init__(vocabulary, dim, padding_idx=PADDING)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look the tokens up."""
        vectors = super().forward(tokens)
        present = (tokens != PADDING).unsqueeze(-1)
        return torch.cat([self.dropout(vectors), present.to(vectors.dtype)], -1)


class MaskedLSTM(LSTM):
    """An LSTM on the outputs of ``Embedding``, whose last channel tells words from padding."""

    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        """Last hidden state of the last layer, ``[batch, directions * hidden]``."""
        return super().forward(inputs[..., :-1], inputs[..., -1] > 0)


class MaskedMean(nn.Module):
    """The mean of word vectors, of the outputs of ``Embedding``; 0 where there are no words."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Mean over the words, ``[batch, dim]``."""
        return inputs[..., :-1].sum(1) / inputs[..., -1:].sum(1).clamp(min=1)


class OneHot(nn.Module):
    """Tokens ``[batch, length]`` to one-hot rows ``[batch, length, vocabulary]``.

    Args:
        vocabulary: Number of tokens.
    """

    rows: Tensor

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.eye(vocabulary), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look the tokens up."""
        return self.rows[tokens]


def step_size(network: Network, input_shape: tuple[int, ...]) -> int:
    """Size of one step of a sequence: that of the vocabulary for tokens, or the length of a vector."""
    if len(input_shape) != 2:
        kind = type(network).__name__
        raise PflError(f"model.network: {kind} takes sequences (length, size of a step), got inputs of {input_shape}")
    return input_shape[1]
