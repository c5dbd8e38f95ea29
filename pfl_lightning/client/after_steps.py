"""Rules for ``Phase.after_step``: what happens to the tensors after each local step."""

from dataclasses import dataclass

from pfl_lightning.tree import Tree, prefixed, select


@dataclass(frozen=True)
class Follow:
    """Copies of the parameters take a step towards them: ``copy = copy - rate * (copy - w)``.

    The step of a client's copy of the global model in pFedMe (Dinh et al., Personalized Federated Learning with Moreau
    Envelopes, NeurIPS 2020, arXiv:2006.08848, Algorithm 1) and FedMac (arXiv:2107.05330).

    Attributes:
        rate: Size of the step; 1 sets the copies to the parameters.
        prefix: Prefix of the copies' tensors, such as ``copy`` for ``copy.fc1.weight``; they are changed in place.
    """

    rate: float
    prefix: str = "copy"

    def __call__(self, tensors: Tree, beside: Tree) -> Tree:
        """The copies after the step."""
        return {name: beside[name].lerp_(tensor, self.rate) for name, tensor in prefixed(self.prefix, tensors).items()}


@dataclass(frozen=True)
class Masked:
    """Sets entries outside a client's mask to zero, so that only those inside are trained.

    Attributes:
        prefix: Prefix of the boolean masks, such as ``mask`` for ``mask.fc1.weight``.
    """

    prefix: str = "mask"

    def __call__(self, tensors: Tree, beside: Tree) -> Tree:
        """The masked tensors."""
        masks = {name: beside[f"{self.prefix}.{name}"] for name in tensors}
        return {name: tensor * masks[name] for name, tensor in tensors.items()}  # several times as fast as where

    def onto(self, models: Tree, masks: Tree) -> Tree:
        """Masked models together with their masks, the latter under the prefix, ``[models, ...]`` each."""
        beside = prefixed(self.prefix, masks)
        return {**models, **self(select(models, masks), beside), **beside}
