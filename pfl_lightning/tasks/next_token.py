import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.score_kind import ScoreKind
from pfl_lightning.tasks.task import AMOUNT, Sums, Task, check_values

NO_TARGET = -100
HIGHEST = 20.0  # of a mean loss whose perplexity is told

PERPLEXITY = ScoreKind("perplexity", higher_is_better=False, scale=1, unit="", digits=2)


class NextToken(Task):
    """Each sample is a sequence of tokens, and each of them has the token that follows it as its target, or none.

    Targets are int ``[samples, length]``, with -100 where there is none, and a network's outputs are logits
    ``[samples, length, tokens]``. The usual loss of a sample is the sum of the softmax cross-entropy over its targets;
    a step and a client's mean loss divide by their number. Clients are scored by their perplexity, the exponential of
    the mean loss of their targets, which is capped at exp(20), and have none without targets.

    Args:
        loss: See ``Task``.
    """

    score = PERPLEXITY
    every_step = True

    @property
    def goal(self) -> str:
        """What networks learn, for people."""
        return f"the next of {self.outputs} tokens"

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The length of the sequences and the number of tokens."""
        return (input_shape[0], self.outputs)

    def check(self, targets: Tensor) -> None:
        """Check that the targets are tokens or -100, ``[samples, length]``, and that there is a token."""
        if targets.ndim != 2:
            raise ValueError(f"targets must have the shape [samples, length], got {list(targets.shape)}")
        if targets.is_floating_point():
            raise ValueError(f"targets must be whole numbers, got {targets.dtype}")
        has_target = targets != NO_TARGET
        in_range = (targets >= 0) & (targets < self.outputs)
        requirement = f"whole numbers from 0 to {self.outputs - 1}, or {NO_TARGET} for none"
        check_values(targets, in_range | ~has_target, "targets", requirement)
        if not has_target.any():
            raise ValueError(f"targets must have a token, got {NO_TARGET} alone")

    def examples(self) -> tuple[Tensor, Tensor]:
        """Two sequences, the second of which is shorter."""
        tokens = torch.arange(min(self.outputs, 3)).expand(2, -1)
        targets = tokens.clone()
        targets[1, 1:] = NO_TARGET
        return F.one_hot(tokens, self.outputs).to(torch.get_default_dtype()), targets

    def amounts(self, targets: Tensor) -> Tensor:
        """Number of targets of each sample, ``[...]``, of targets ``[..., length]``."""
        return (targets != NO_TARGET).sum(-1)

    def usual_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Sum of the cross-entropy, ``[...]``, of outputs ``[..., length, tokens]`` and targets ``[..., length]``."""
        classes = targets.flatten().long()
        losses = F.cross_entropy(outputs.flatten(0, -2), classes, ignore_index=NO_TARGET, reduction="none")
        return losses.view(targets.shape).sum(-1)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """How many of the targets are predicted."""
        return {"correct": (outputs.argmax(-1) == targets).sum(-1)}

    def scores(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """The perplexity, and the share of targets that are predicted."""
        tokens = sums[AMOUNT]
        perplexity = (sums["loss"] / tokens).clamp(max=HIGHEST).exp()
        return {self.score.name: perplexity, "accuracy": sums["correct"] / tokens}

    def columns(self, sums: Sums, samples: Tensor) -> dict[str, Tensor]:
        """The number of targets, and the scores."""
        return {"tokens": sums[AMOUNT], **self.scores(sums, samples)}

    def predictions(self, outputs: Tensor, takes_classes: bool) -> Tensor:
        """Logits as torchmetrics takes them: of classes ``[samples, tokens, length]``, or as they are."""
        return outputs.movedim(-1, 1) if takes_classes else outputs
