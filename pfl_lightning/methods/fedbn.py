from pfl_lightning.methods.families.averaging import Aggregated, ServerOptimized, Uplinked, Weighted
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.models import Part


class FedBN(FineTuned, Weighted, Aggregated, Uplinked, ServerOptimized):
    """FedAvg whose clients keep their BatchNorm layers, for clients whose inputs look different.

    Rule of a round; the model of client i is (w, bn_i), where bn_i are scales, shifts and running statistics:

        (w_i, bn_i) = SGD for epochs on f_i, from (w, bn_i)
        w = w - server_lr * (w - sum_i weight_i * w_i)

    ``batch_norm: local`` of other methods keeps the statistics alone.

    Paper: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021,
    arXiv:2102.07623, Algorithm 1.

    Differs: the paper takes the plain mean of the clients' w_i, which is ``weighting: uniform``.
    """

    keeps: Part = "BatchNorm"
