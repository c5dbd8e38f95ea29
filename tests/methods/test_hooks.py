import warnings

import pytest
import torch

from pfl_lightning.methods import FedRep, Method


def test_a_misspelled_hook_is_told_with_the_nearest_one():
    with pytest.warns(UserWarning, match=r"Typo\.server_updat is never called; did you mean server_update\?"):

        class Typo(Method):
            def server_updat(self, mean, batch):
                pass


def test_helpers_and_overridden_hooks_are_nothing_to_talk_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Helped(FedRep):
            def local_update(self, cohort, received, key):
                helpers = [lambda trained: self.helper(trained) for _ in range(2)]
                return helpers[0](super().local_update(cohort, received, key))

            def helper(self, trained):
                return trained

            @torch.no_grad()
            def server_update(self, mean, batch):
                self.other(mean)

            def other(self, mean):
                pass

            def _hidden(self):
                pass

            def on_fit_end(self):
                pass

        class Further(Helped):
            def helper(self, trained):
                return trained
