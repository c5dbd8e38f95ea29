"""Tasks with a closed form."""

from pfl_lightning.score_kind import ScoreKind
from pfl_lightning.tasks import AMOUNT, Classification


class Copies(Classification):
    """A sample stands for several of one class: its targets are the class, and how many; without one it has no score.

    Args:
        kwargs: See ``Task``.
    """

    score = ScoreKind("hits", higher_is_better=True, scale=10, unit=" (of 10)", digits=2)

    def check(self, targets):
        super().check(targets[:, 0])

    def labels(self, targets):
        return targets[:, 0]

    def examples(self):
        outputs, classes = super().examples()
        return outputs, classes[:, None].repeat(1, 2)

    def usual_losses(self, outputs, targets):
        return targets[..., 1] * super().usual_losses(outputs, targets[..., 0])

    def usual_gradients(self, outputs, targets):
        losses, gradients = super().usual_gradients(outputs, targets[..., 0])
        return targets[..., 1] * losses, targets[..., 1:] * gradients

    def amounts(self, targets):
        return targets[:, 1]

    def statistics(self, outputs, targets):
        return {"hits": targets[:, 1] * super().statistics(outputs, targets[:, 0])["correct"]}

    def scores(self, sums, samples):
        return {self.score.name: sums["hits"] / sums[AMOUNT]}

    def columns(self, sums, samples):
        return self.scores(sums, samples)
