from pfl_lightning.methods.families.gossip import Gossip
from pfl_lightning.methods.families.head_then_body import HeadThenBody


class DePRL(Gossip, HeadThenBody):
    """Personal heads and a body (representation) that clients learn together without a server.

    Rule of a round; it is FedRep's, with consensus among neighbours in place of the server:

        repeat epochs times:
            head_i = SGD for head_epochs on f_i(body_i, .), from head_i  # body frozen
            body_i = SGD for body_epochs on f_i(., head_i), from body_i  # head frozen
        body_i = sum_j P_ij body_j

    On the complete graph, with all clients in every round, it is FedRep with uniform weights. For the single body step
    of the paper's theory set ``epoch_steps: 1``; head epochs are then steps, too, and ``body_epochs`` the several body
    steps of its Remark 1. ``momentum`` is 0.5 by default.

    Paper: Xiong et al., DePRL: Achieving Linear Convergence Speedup in Personalized Decentralized Learning with Shared
    Representations, AAAI 2024, arXiv:2312.10815, Algorithm 1.

    Differs: the paper's ``head_epochs`` is 2 (``configs/methods/deprl.yaml``). Its code mixes at the beginning of a
    round, which changes only when clients are evaluated; and while a head trains, its BatchNorm layers normalise by the
    mini-batch without updating their running statistics, where ours use these statistics.
    """

    mixes = "body"
