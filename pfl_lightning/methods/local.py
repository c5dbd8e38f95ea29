from pfl_lightning.methods.base import Method


class Local(Method):
    """No communication: every client trains a model of its own whenever it takes part; everyone's sanity baseline.

    Rule of a round::

        w_i = SGD for epochs on f_i, from w_i
        keep w_i
    """

    keeps = "all"
    refits = "nothing"
