from pfl_lightning.methods.base import Method


class LGFedAvg(Method):
    """Local representation, global head (Liang et al., Think Locally, Act Globally, 2020, arXiv:2001.01523).

    Rule of a round::

        body_i, head_i = SGD for epochs on f_i, from body_i, head     # both at once
        keep body_i
        head = head - server_lr * (head - sum_i weight_i * head_i)

    The head is the last two layers with parameters. LG-SRPFL is the same with the ``StageDoubling`` callback.

    Differs: the original starts from a model that FedAvg has trained, SRPFL and we from scratch. The authors refit,
    when judging, from the mean of all bodies; we start from the client's own, which is all that it would have.
    """

    keeps = "body"
    refits = "body"
    usual_head_layers = 2
