from pfl_lightning.methods.families.exact_lora import ExactLoRA


class FedExLoRA(ExactLoRA):
    """FedIT whose server adds to the frozen weights what the means of the factors lack of the mean of their products.

    Rule of a round; adapters of low rank add s B A to the weights W, s = alpha / rank, and h is the head:

        (A_i, B_i, h_i) = local optimizer for epochs on f_i(W, .), from (A, B, h)
        (A, B, h) = sum_i weight_i * (A_i, B_i, h_i)
        W = W + s * (sum_i weight_i * B_i A_i - B A)

    So W + s B A becomes the mean of the clients' W + s B_i A_i, which it is not in FedIT. With one participant it is
    FedIT. Clients receive A, B, h, and the change of W, which has a rank of at most (uploads - 1) * rank. They are
    evaluated with the shared model (``global``).

    Paper: Singhal, Ponkshe, Vepakomma, FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of Large
    Language Models, ACL 2025, arXiv:2410.09432.

    Differs: the paper weights all clients alike, which is ``weighting: uniform``.
    """

    display_name = "FedEx-LoRA"

    def rank_of_change(self, uploads: int) -> int:
        """See ``ExactLoRA``: the differences to the means have one rank less than the factors."""
        return (uploads - 1) * self.rank
