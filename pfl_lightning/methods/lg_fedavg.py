from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.families.fine_tuned import FineTuned


class LGFedAvg(FineTuned, Averaging):
    """Personal bodies, shared head.

    Rule of a round:

        body_i, head_i = SGD for epochs on f_i, from body_i, head     # both at once
        keep body_i
        head = head - server_lr * (head - sum_i weight_i * head_i)

    By default the head is the last two layers. LG-SRPFL is the same with the ``StageDoubling`` callback.

    Paper: Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020,
    arXiv:2001.01523.

    Differs: the original starts from a model trained by FedAvg; SRPFL and we train from scratch. For evaluation SRPFL's
    code fine-tunes from the mean of all bodies; we start from the client's own body, which is all that a client has.
    """

    display_name = "LG-FedAvg"
    doubled_name = "LG-SRPFL"

    keeps = "body"
    finetunes = "body"
    usual_head = 2
