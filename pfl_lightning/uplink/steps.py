from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pfl_lightning.bounds import OpenUnitInterval, PositiveFloat, PositiveInt, Share, ValueBits
from pfl_lightning.errors import PflError
from pfl_lightning.seeding import Key, random_bits
from pfl_lightning.server import Message, clipped
from pfl_lightning.server.messages import kept_entries
from pfl_lightning.tree import Params, Tree, select, wide

MEMORY = "memory."  # begins the names of what a step has clients keep until their next upload
BITS = "bits."  # begins the names of how many bits the tensors of each client take


class Senders(NamedTuple):
    """The clients whose uploads pass a step.

    Attributes:
        ids: Their ids, ``[clients]``, on the device of the rows.
        received: What they began the round with, ``[...]`` or ``[clients, ...]`` each.
        parameters: Names of the network's parameters; other tensors of a model are statistics of BatchNorm.
        num_clients: Number of clients of the run that can train, whether they take part or not.
        key: Key of the round's randomness; it begins with the seed of the run.
        round_index: Rounds before this one.
    """

    ids: Tensor
    received: Params
    parameters: Set[str]
    num_clients: int
    key: Key
    round_index: int


class Step(ABC):
    """A step between what clients have trained and what the server adds up: a pure function of rows.

    Steps may be repeated, and see some clients at a time, in any order: what they draw at random must follow from the
    key and the clients' ids. Where the size of a tensor depends on its numbers, a step returns beside the models how
    many bits each client sends, ``bits.fc.weight``, ``[clients]``.

    Attributes:
        together: Whether it must see all clients of a round at once, by rising id. Then the server needs a vote, and
            the steps that follow see them together, too.
        remembers: Whether it has clients keep something until their next upload: a tensor for each parameter that they
            send, 0 at first. It finds them as ``senders.received.own["memory.fc.weight"]``, and returns the new ones
            beside the models, under the same names.
    """

    together: ClassVar[bool] = False
    remembers: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, rows: Tree, senders: Senders) -> Tree:
        """The models of some clients after this step.

        Args:
            rows: Their shared tensors, ``[clients, ...]`` each; they must not be changed in place.
            senders: The clients.

        Returns:
            Tensors of the same names and shapes.
        """

    def message(self, message: Message) -> Message:
        """How the upload is written after this step, given how it was before; by default in the same way."""
        return message


class Sent(NamedTuple):
    """What some clients send.

    Attributes:
        rows: Their models, ``[clients, ...]`` each.
        memory: What they keep until their next upload, under names that begin with ``MEMORY``.
        bits: How many bits tensors take whose size depends on their numbers, ``[clients]`` each; of the others a
            ``Message`` tells it.
    """

    rows: Tree
    memory: Tree
    bits: Tree


def pass_on(steps: Sequence[Step], rows: Tree, senders: Senders) -> Sent:
    """What the server receives of some clients' models; arguments as for a step.

    Raises:
        PflError: If a step returns tensors of other names or shapes.
    """
    memory: Tree = {}
    bits: Tree = {}
    for step in steps:
        after = step(rows, senders)
        memory |= {name: stack for name, stack in after.items() if name.startswith(MEMORY)}
        if step.message(Message()) != Message():  # it writes all tensors in its own way
            bits = {}
        bits |= {name.removeprefix(BITS): stack for name, stack in after.items() if name.startswith(BITS)}
        models = {name: stack for name, stack in after.items() if not name.startswith((MEMORY, BITS))}
        rows = alike(rows, models, type(step).__name__)
    return Sent(rows, memory, bits)


def one_by_one(steps: Sequence[Step]) -> Sequence[Step]:
    """The steps before the first that must see all clients at once."""
    return [*takewhile(lambda step: not step.together, steps)]


def alike(rows: Tree, after: Tree, step: str) -> Tree:
    """The tensors of some models after a step of this name, of the same names and shapes as before.

    Raises:
        PflError: If they have others.
    """
    shapes, found = ({name: stack.shape for name, stack in tree.items()} for tree in (rows, after))
    if found != shapes:
        name = min(name for name, _ in shapes.items() ^ found.items())
        was, is_now = ([*tree[name]] if name in tree else "nothing" for tree in (shapes, found))
        raise PflError(
            f"model.uplink: {step} must return tensors of the same names and shapes, got {is_now} as {name}, which was "
            f"{was}"
        )
    return after


class ErrorFeedback(Step):
    """Adds to each change what another step has left of those before, and so loses nothing in the long run.

    Rule for client i, whose error e_i is 0 at first: ``v = w_i + e_i;  w_i = step(v);  e_i = v - w_i``

    Paper: Karimireddy, Rebjock, Stich, Jaggi, Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML
    2019, arXiv:1901.09847, Algorithm 2.

    Args:
        step: The step, such as ``TopK`` or ``Sign``.
    """

    remembers = True

    def __init__(self, step: Step) -> None:
        self.step = step

    def __call__(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Step``; beside the models it returns the errors."""
        errors = {name: senders.received.own[MEMORY + name] for name in select(rows, senders.parameters)}
        wanted = {**rows, **{name: rows[name] + error for name, error in errors.items()}}
        after = self.step(wanted, senders)
        bits = {name: stack for name, stack in after.items() if name.startswith(BITS)}
        sent = alike(wanted, {name: after[name] for name in after.keys() - bits}, type(self.step).__name__)
        return {**sent, **bits, **{MEMORY + name: wanted[name] - sent[name] for name in errors}}

    def message(self, message: Message) -> Message:
        """See ``Step``: that of the other step."""
        return self.step.message(message)


class Momentum(Step):
    """Sends a moving average of the changes of a client, by which attackers stand out from the noise of mini-batches.

    Rule for client i, whose average m_i is 0 at first, and x what it received; with a single local step changes are
    gradients: ``m_i = momentum m_i + (1 - momentum) (w_i - x);  w_i = x + m_i``

    Paper: Karimireddy, He, Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021,
    arXiv:2012.10333, Algorithm 1.

    Args:
        momentum: How much of the average stays.
    """

    remembers = True

    def __init__(self, momentum: OpenUnitInterval = 0.9) -> None:
        self.momentum = momentum

    def __call__(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Step``; beside the models it returns the averages."""
        received = senders.received.tree
        averages = {}
        for name, stack in select(rows, senders.parameters).items():
            before = senders.received.own[MEMORY + name]
            averages[name] = self.momentum * before + (1 - self.momentum) * (stack - received[name])
        sent = {name: received[name] + average for name, average in averages.items()}
        return {**rows, **sent, **{MEMORY + name: average for name, average in averages.items()}}


@dataclass(frozen=True)
class Prune(Step):
    """Sets small parameters to zero before a model is sent.

    Paper: Liu et al., "Sparse Personalized Federated Learning" (FedMac), IEEE TNNLS 2023, arXiv:2107.05330.

    Attributes:
        threshold: Entries up to this absolute value become zero.
        min_density: Share of the entries of a model that are kept at least, the largest ones; 0 for none.
    """

    threshold: float
    min_density: float = 0.0

    def __call__(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Step``."""
        return {**rows, **self.pruned(select(rows, senders.parameters))}

    def message(self, message: Message) -> Message:
        """See ``Step``: zeros are packed."""
        return replace(message, packed=True)

    def pruned(self, models: Tree) -> Tree:
        """Some models without their small entries.

        Args:
            models: Their parameters, ``[models, ...]`` each; not changed.
        """
        sizes = {name: stack.abs() for name, stack in models.items()}
        masks = {name: ~(size <= self.threshold) for name, size in sizes.items()}  # nan stays, to be seen
        if self.min_density and models:
            entries = torch.cat([size.reshape(len(size), -1) for size in sizes.values()], 1)
            least = entries.topk(kept_entries(self.min_density, entries.shape[1]), sorted=True).values[:, -1]
            masks = {name: masks[name] | (size >= wide(least, size)) for name, size in sizes.items()}
        return {name: stack.where(masks[name], 0) for name, stack in models.items()}  # a product could be -0.0


def bits_of_entries(mask: Tensor, rows: Tensor) -> Tensor:
    """Bits of those entries of a tensor that a mask says, ``[clients]``; both are ``[clients, ...]``."""
    return 8 * rows.element_size() * mask.reshape(len(mask), -1).sum(1)


class Clip(Step):
    """Clips the change of each client's model to a norm, over all parameters that it sends.

    Rule; x is what client i received: ``w_i = x + (w_i - x) * min(1, norm / |w_i - x|)``

    Paper: Sun, Kairouz, Suresh, McMahan, Can You Really Backdoor Federated Learning?, 2019, arXiv:1911.07963.

    Args:
        norm: Largest norm of a change.
    """

    def __init__(self, norm: PositiveFloat = 1.0) -> None:
        self.norm = norm

    def __call__(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Step``."""
        parameters = select(rows, senders.parameters)
        return {**rows, **clipped(parameters, select(senders.received.tree, parameters), self.norm)}


class Quantize(Step):
    """Sends the change of each parameter by few bits, rounded at random so that its mean stays.

    Rule for each tensor of client i; x is what it received, and L = 2^(bits - 1) - 1:

        scale = max |w_i - x| / L
        w_i   = x + scale * floor((w_i - x) / scale + U),  U uniform on [0, 1)

    Paper: Alistarh, Grubic, Li, Tomioka, Vojnovic, QSGD: Communication-Efficient SGD via Gradient Quantization and
    Encoding, NeurIPS 2017, arXiv:1610.02132.

    Differs: the scale is that of the largest entry, where the paper takes the norm, and every entry takes the same
    number of bits, where the paper codes frequent ones by fewer.

    Args:
        bits: Bits of an entry, its sign included; the scale of each tensor takes 32 more.
    """

    def __init__(self, bits: ValueBits = 8) -> None:
        self.bits = bits

    def __call__(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Step``."""
        received = senders.received.tree
        parameters = select(rows, senders.parameters)
        return {
            **rows,
            **{name: self._rounded(name, stack, received[name], senders) for name, stack in parameters.items()},
        }

    def message(self, message: Message) -> Message:
        """See ``Step``; zeros take no fewer bits than other entries."""
        return replace(message, packed=False, value_bits=self.bits)

    def _rounded(self, name: str, stack: Tensor, received: Tensor, senders: Senders) -> Tensor:
        """The rows of a tensor after rounding, ``[clients, ...]``."""
        changes = (stack - received).double().reshape(len(stack), -1)
        scales = changes.abs().amax(1, keepdim=True) / (2 ** (self.bits - 1) - 1)
        draws = random_bits((*senders.key, "quantize", name), senders.ids, changes.shape[1]).double() * 2.0**-63
        levels = torch.floor(changes / scales.where(scales > 0, 1.0) + draws)
        rounded: Tensor = received + (levels * scales).view_as(stack).to(stack)
        return rounded


class TopK(Step):
    """Sends the largest entries of the change of each parameter, and none of the others.

    Paper: Aji, Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017, arXiv:1704.05021.

    Differs: what the paper adds to the next change is lost without ``ErrorFeedback``; a share is kept of each tensor.

    Args:
        kept: Share of the entries that are sent, rounded up; a bitmap says which.
    """

    def __init__(self, kept: Share = 0.1) -> None:
        self.kept = kept

    def __call__(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Step``."""
        received = senders.received.tree
        parameters = select(rows, senders.parameters)
        return {**rows, **{name: self._cut(stack, received[name]) for name, stack in parameters.items()}}

    def message(self, message: Message) -> Message:
        """See ``Step``."""
        return replace(message, packed=False, kept=float(self.kept))

    def _cut(self, stack: Tensor, received: Tensor) -> Tensor:
        """The rows of a tensor of which the largest changes are kept, ``[clients, ...]``."""
        changes = (stack - received).reshape(len(stack), -1)
        largest = changes.abs().topk(kept_entries(float(self.kept), changes.shape[1]), dim=1).indices
        is_kept = torch.zeros_like(changes, dtype=torch.bool).scatter_(1, largest, True)
        return stack.where(is_kept.view_as(stack), received)


class LowRank(Step):
    """Sends the change of each matrix as a product of two that are thin, as many columns as it takes.

    Rule for each tensor of client i that has two dimensions or more, as a matrix [m, n] with a row for each entry of
    its first one; x is what the client received, and t counts rounds from 1:

        w_i - x   = sum_j s_j u_j v_j',  s_1 >= s_2 >= ...
        energy    = first_energy + (last_energy - first_energy) * min(1, t / rounds)
        k         = smallest with s_1^2 + ... + s_k^2 > energy * sum_j s_j^2, or all
        w_i       = x + s_1 u_1 v_1' + ... + s_k u_k v_k'

    These are k (m + n + 1) numbers. Where the matrix has no more than that, it is sent as it is.

    Paper: Wu, Wu, Lyu, Huang, Xie, Communication-Efficient Federated Learning via Knowledge Distillation, Nature
    Communications 2022, arXiv:2108.13323, with an energy from 0.95 to 0.98.

    Differs: in the authors' code a matrix that takes all of its singular values becomes zero.

    Args:
        first_energy: Energy before the first round.
        last_energy: Energy from round ``rounds`` on.
        rounds: Number of rounds in which it grows.
    """

    def __init__(
        self, first_energy: OpenUnitInterval = 0.95, last_energy: OpenUnitInterval = 0.98, rounds: PositiveInt = 100
    ) -> None:
        self.first_energy = first_energy
        self.last_energy = last_energy
        self.rounds = rounds

    def __call__(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Step``."""
        progress = min(1.0, (senders.round_index + 1) / self.rounds)
        energy = self.first_energy + (self.last_energy - self.first_energy) * progress
        sent = {}
        for name, stack in select(rows, senders.parameters).items():
            if stack.ndim > 2:
                sent[name], sent[BITS + name] = low_rank(stack, senders.received.tree[name], energy)
        return {**rows, **sent}


def low_rank(stack: Tensor, received: Tensor, energy: float) -> tuple[Tensor, Tensor]:
    """The rows of a tensor with changes of low rank, and how many bits each takes; see ``LowRank``.

    Args:
        stack: ``[clients, ...]``; a row that is not finite stays.
        received: ``[...]`` or ``[clients, ...]``.
        energy: Share of the squared singular values that is kept.
    """
    changes = (stack - received).flatten(2).double()
    is_finite = changes.isfinite().all(2).all(1)
    changes = changes.where(wide(is_finite, changes), 0)
    rows, columns = changes.shape[1:]
    is_tall = rows > columns
    # the smaller of D'D and DD' has the squares of the singular values, several times as fast as they themselves
    squares, vectors = torch.linalg.eigh(changes.mT @ changes if is_tall else changes @ changes.mT)  # rising
    energies = squares.clamp(min=0).flip(1).cumsum(1)
    total = energies[:, -1:]
    ranks = ((energies <= energy * total).sum(1) + 1).clamp(max=squares.shape[1]) * (total[:, 0] > 0)
    kept = vectors * (torch.arange(squares.shape[1], 0, -1, device=squares.device) <= ranks[:, None])[:, None]
    projection = kept @ vectors.mT
    numbers = ranks * (rows + columns + 1)
    is_short = is_finite & (numbers < rows * columns)
    rebuilt = received + (changes @ projection if is_tall else projection @ changes).view_as(stack).to(stack)
    sent = rebuilt.where(wide(is_short, stack), stack)
    return sent, 8 * stack.element_size() * numbers.where(is_short, rows * columns)


class Sign(Step):
    """Sends the sign of each entry of the change, and one size for each tensor.

    Rule; x is what client i received, and 0 counts as positive: ``w_i = x + mean |w_i - x| sign(w_i - x)``

    Paper: Karimireddy, Rebjock, Stich, Jaggi, Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML
    2019, arXiv:1901.09847.

    Differs: what the paper adds to the next change is lost without ``ErrorFeedback``.
    """

    def __call__(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Step``."""
        received = senders.received.tree
        signs = {}
        for name, stack in select(rows, senders.parameters).items():
            changes = stack - received[name]
            size = changes.abs().flatten(1).mean(1)
            signs[name] = received[name] + torch.where(changes >= 0, 1, -1) * wide(size, changes)
        return {**rows, **signs}

    def message(self, message: Message) -> Message:
        """See ``Step``."""
        return replace(message, packed=False, value_bits=1)


def rebase_stale_uploads(trained: Tree, began: Tree, newest: Tree, shares: Tensor, changes: Collection[str]) -> Tree:
    """Uploads of clients that began with older models, as parts of a mean that the newest model x steps to.

    FedAsync's rule (Xie et al. 2019, arXiv:1903.03934) is ``x + s_i * (trained_i - x)``, and FedBuff's (Nguyen et al.
    2022, arXiv:2106.06639) ``x + s_i * (trained_i - began_i)``.

    Args:
        trained: What clients have sent, ``[cohort, ...]``; integers come back as floats.
        began: What they began with, ``[cohort, ...]``.
        newest: The newest model, ``[...]``.
        shares: How much each upload counts, ``[cohort]``.
        changes: Names of the tensors of which the change counts, FedBuff's rule.
    """
    rebased = {}
    for name, rows in trained.items():
        start = began[name] if name in changes else newest[name]
        moved = (rows - start).to(rows if rows.is_floating_point() else shares)
        rebased[name] = moved.mul_(wide(shares, moved)).add_(newest[name])  # in place: new memory is what takes time
    return rebased
