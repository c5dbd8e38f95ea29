"""The contract of a method notices what goes wrong, and says what to change."""

import re
from functools import partial

import pytest
from fakes import faults
from fakes.forked import SERVER

from pfl_lightning.contract import ContractError, Subject, check, methods, several
from pfl_lightning.contract.clients import UnequalClients
from pfl_lightning.contract.findings import Copies, findings, kind_and_arguments
from pfl_lightning.contract.subject import LAST
from pfl_lightning.methods import FedRep
from pfl_lightning.models import MLP

FAULTS = {
    faults.ReadsRowsAtTheServer: (methods.works_with_secure_sums, "SecureAggregator .*; or take a base without"),
    faults.SendsRowsForNothing: (methods.counts_what_the_server_reads, "no bits are counted; count them in count_tr"),
    faults.DrawsFromTorch: (methods.repeats, r"differ in network\.fc1\.bias by 0\.\d+; draw by seed_of"),
    faults.ChangesInPlace: (methods.works_locally_without_side_effects, r"has changed network\.fc1\.bias in place"),
    faults.ForgetsAnUpload: (methods.uploads_what_it_says, "uploads names direction, but local_update returns no"),
    faults.RemembersInSelf: (methods.resumes, r"ends another way, by .*; what a later round needs belongs in initial_"),
    faults.CountsCalls: (methods.works_locally_without_side_effects, r"another upload fc1\.bias, by 0\.01; what"),
    faults.MixesClients: (methods.does_not_mix_clients, "in chunks of two clients, .*: it must not add up or average"),
    faults.MixesClientsInAPenalty: (
        methods.trains_many_at_once,
        "with backend=batched, of an update of .*; clients",
    ),
    faults.WritesAbsentClients: (methods.leaves_absent_clients_alone, r'did not take part; .* = \("fc3",\)'),
    faults.MovesInEvaluation: (methods.evaluates_without_side_effects, "eval_model must return new tensors"),
    faults.DividesByNothing: (
        methods.trains_unequal_clients,
        "is not finite after two rounds; a client has one sample",
    ),
    faults.GoesThroughASet: (methods.does_not_depend_on_the_order_of_names, r"go through sorted\(names\)"),
    faults.MovesWithTheClock: (
        methods.bears_lost_uploads,
        r"fc1\.bias has changed by 0\.02; change it in server_update",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_method_that_trains_breaks_its_rule(fault, tmp_path):
    rule, sentence = FAULTS[fault]
    subject = Subject(partial(fault, network=partial(MLP, hidden=(8, 5))), tmp_path)
    if rule is not methods.trains_unequal_clients:
        methods.trains_unequal_clients(subject)
    with pytest.raises(ContractError, match=sentence):
        rule(subject)


def test_an_error_of_the_users_own_breaks_a_rule_and_tells_its_place():
    (finding,) = check(faults.FailsOnOneSample())
    assert re.fullmatch(r"ZeroDivisionError: division by zero \(faults\.py, line \d+\)", finding.broken)


def test_a_checkpoint_that_does_not_fit_breaks_a_rule(tmp_path):
    made = partial(faults.AddsATensor, network=partial(MLP, hidden=(8, 5)))
    *_, finding = findings([methods.repeats, methods.is_made_again], lambda folder: Subject(made, folder))
    assert "seen" in finding.broken


@pytest.mark.slow
def test_a_process_that_imports_all_anew_trains_a_method(tmp_path):
    copies = Copies(*kind_and_arguments(FedRep()))
    assert several.run_together(several.CONTEXT, 1, several.train, copies, UnequalClients, tmp_path, 1) == []
    assert (tmp_path / LAST).is_file()


@pytest.mark.slow
def test_a_method_keeps_all_rules_with_two_processes(monkeypatch):
    monkeypatch.setattr(several, "CONTEXT", SERVER)
    found = [*check(FedRep())]
    assert [finding.rule for finding in found if finding.broken] == []
    assert found[-1].rule == "Two processes give what one gives"


@pytest.mark.slow
def test_a_method_that_reads_rows_of_its_process_alone_breaks_the_last_rule(monkeypatch):
    monkeypatch.setattr(several, "CONTEXT", SERVER)
    (broken,) = [finding for finding in check(faults.TakesRowsOfItsProcess()) if finding.broken]
    assert "all_rows(self.clients.stack(name), self.num_clients)" in broken.broken


def test_after_a_method_that_does_not_train_no_other_rule_is_tried():
    (finding,) = check(faults.DividesByNothing())
    assert "not finite" in finding.broken
