from pfl_lightning.methods.families.gossip import Gossip


class DPSGD(Gossip):
    """Decentralized SGD: every client trains a whole model, and mixes it with those of its neighbours.

    Rule of a round:

        w_i = SGD for epochs on f_i, from w_i
        w_i = sum_j P_ij w_j

    On the complete graph, with all clients in every round, it is FedAvg with uniform weights. For the paper's single
    step set ``epochs: 1`` and ``epoch_steps: 1``.

    Paper: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS 2017, arXiv:1705.09056,
    Algorithm 1.

    Differs: the paper takes the gradient at w_i while w_i is mixed; we mix what was trained, as DePRL's experiments do
    (arXiv:2312.10815).
    """

    display_name = "D-PSGD"
