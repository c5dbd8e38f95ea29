from pfl_lightning.methods.base import Method


class FedAvg(Method):
    """Federated averaging: one model for all (McMahan et al. 2017; SRPFL, section 2.1).

    Rule of a round::

        w_i = SGD for epochs on f_i, from w
        w   = w - server_lr * (w - sum_i weight_i * w_i)

    FedAvg-FT is the same run judged by its ``refitted`` model: each client trains the head for ``eval_epochs`` on a
    copy of w (SRPFL, section 2.2). FLANP and FLANP-FT are the same with the ``StageDoubling`` callback.

    Differs: the authors refit with momentum 0.5 whatever the training's momentum; we use one ``momentum``.
    """
