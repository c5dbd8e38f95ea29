from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.families.head_then_body import HeadThenBody
from pfl_lightning.models import Part


class FedRep(HeadThenBody, Averaging):
    """Shared body (representation), personal heads.

    Rule of a round:

        repeat epochs times:
            head_i = SGD for head_epochs on f_i(body_i, .), from head_i  # body frozen
            body_i = SGD for body_epochs on f_i(., head_i), from body_i  # head frozen
        keep head_i
        body   = body - server_lr * (body - sum_i weight_i * body_i)

    FedRep-SRPFL is the same with the ``StageDoubling`` callback. ``momentum`` is 0.5 by default.

    Paper: Collins et al., Exploiting Shared Representations, ICML 2021, arXiv:2102.07078, Algorithm 1.

    Differs: the paper and the authors' code, and Algorithm 1 of SRPFL, take all steps on the head before those on the
    body; with several ``epochs`` we alternate, as SRPFL's code does. Theirs is ``epochs`` 1 and several
    ``body_epochs``. For evaluation that code fine-tunes from the mean of all heads; we start from the
    client's own head, because a server can only know the mean if clients upload their heads.
    """

    doubled_name = "FedRep-SRPFL"

    keeps: Part = "head"
