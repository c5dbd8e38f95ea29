from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.families.fine_tuned import FineTuned


class FedBABU(FineTuned, Averaging):
    """Shared body, trained under a fixed random head; each client fine-tunes its head only when it is evaluated.

    Rule of a round; h is the head of the initial model, the same for all clients:

        body_i = SGD for epochs on f_i(., h), from body
        body   = body - server_lr * (body - sum_i weight_i * body_i)

    Clients are evaluated with h fine-tuned for ``eval_epochs`` on their own samples (``finetuned``), and with h itself
    (``global``).

    Paper: Oh et al., FedBABU: Towards Enhanced Representation for Federated Image Classification, ICLR 2022,
    arXiv:2106.06042.
    """

    trains = "body"

    @property
    def eval_models(self) -> tuple[str, ...]:
        """The fine-tuned model first: the global one has a random head and is not meant to be used."""
        return ("finetuned", "global") if self.eval_epochs else ("global",)
