"""Methods as other codes have them, where no option says it."""

from dataclasses import replace

from torch import nn
from torch.optim import SGD

from pfl_lightning.client.phase import Phase
from pfl_lightning.methods import ClientLoop, FedAvg, FedBABU
from pfl_lightning.methods.families.client_loop import ClientLoader


class FullBatchFedAvg(ClientLoop):
    """FedAvg by plain SGD on full mini-batches alone, as in PFLlib; a client that has none does not train."""

    def client_update(self, model: nn.Module, loader: ClientLoader) -> None:
        """See ``ClientLoop``."""
        optimizer = SGD(model.parameters(), lr=self.rate(self.local.lr))
        for _ in range(self.local.epochs):
            for inputs, targets in loader:
                if len(inputs) == self.local.batch_size:
                    optimizer.zero_grad()
                    self.sample_losses(model(inputs), targets).mean().backward()
                    optimizer.step()


class WholeFedAvg(FedAvg):
    """FedAvg-FT whose clients fine-tune the body, too, as PFLlib's new clients do."""

    finetunes = "all"


class WholeFedBABU(FedBABU):
    """FedBABU whose clients fine-tune the body, too."""

    finetunes = "all"


class PlainWholeFedBABU(WholeFedBABU):
    """The same by plain SGD, as in PFLlib."""

    @property
    def finetuning(self) -> Phase:
        """See ``FineTuned``."""
        return replace(super().finetuning, momentum=0.0)
