from pfl_lightning.methods.method import Method


class Local(Method):
    """No communication: every client trains its own model in the rounds that it takes part in. A baseline.

    Rule of a round:

        w_i = SGD for epochs on f_i, from w_i
        keep w_i
    """

    keeps = "all"
