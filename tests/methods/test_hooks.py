import warnings

import pytest
import torch

from pfl_lightning.methods import FedRep, Method


def test_a_misspelled_hook_is_told_with_the_nearest_one():
    with pytest.warns(UserWarning, match=r"Typo\.server_stp is never called; did you mean server_update\?"):

        class Typo(Method):
            def server_stp(self, mean, batch):
                pass


def test_a_part_of_a_hooks_name_is_told_with_the_whole():
    with pytest.warns(UserWarning, match=r"Losing\.loss is never called; did you mean sample_losses\?"):

        class Losing(Method):
            def loss(self, outputs, targets):
                pass


def test_a_function_that_nobody_calls_is_told_with_the_hooks():
    with pytest.warns(
        UserWarning,
        match=r"Idle\.rest is never called; hooks are initial_state, select_clients, local_update, sample_los",
    ):

        class Idle(Method):
            def rest(self):
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
