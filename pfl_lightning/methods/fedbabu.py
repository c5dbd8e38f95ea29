from pfl_lightning.methods.base import Method


class FedBABU(Method):
    """The body is learned together under a random head that never moves; a client finds its head when it is judged.

    Rule of a round; h is the head of the start model, the same for all::

        body_i = SGD for epochs on f_i(., h), from body
        body   = body - server_lr * (body - sum_i weight_i * body_i)

    Clients are judged by the head that ``eval_epochs`` of training on their own samples make of h (``refitted``), and
    by h itself (``global``).

    Paper: Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022,
    arXiv:2106.06042.
    """

    trains = "body"

    @property
    def judged_models(self) -> tuple[str, ...]:
        """The refitted model first: under a random head the other one is not meant to be used."""
        return super().judged_models[::-1]
