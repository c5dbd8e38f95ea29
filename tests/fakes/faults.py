"""Methods and poisons with a fault each, as people make them, for what must notice it."""

import torch

from pfl_lightning.data import LabelFlip
from pfl_lightning.methods import FedAvg, FedRep, Method


class ReadsRowsAtTheServer(FedAvg):
    keeps = "head"

    def server_update(self, mean, batch):
        rows = self.clients.gather(batch.examples.ids)
        super().server_update({**mean, "fc1.bias": mean["fc1.bias"] + rows["fc3.bias"].mean()}, batch)


class DrawsFromTorch(FedAvg):
    def local_update(self, cohort, received, key):
        trained, losses = super().local_update(cohort, received, key)
        bias = trained.own["fc1.bias"]
        return trained.with_own({"fc1.bias": bias + 0.01 * torch.randn_like(bias)}), losses


class ChangesInPlace(FedAvg):
    def local_update(self, cohort, received, key):
        received.tree["fc1.bias"] += 0.01
        return super().local_update(cohort, received, key)


class ForgetsAnUpload(FedAvg):
    uploads = ("direction",)


class RemembersInSelf(FedAvg):
    rounds = 0

    def server_update(self, mean, batch):
        self.rounds += 1
        moved = {name: tensor / self.rounds for name, tensor in mean.items()}
        super().server_update(moved, batch)


class CountsCalls(FedAvg):
    calls = 0

    def local_update(self, cohort, received, key):
        self.calls += 1
        trained, losses = super().local_update(cohort, received, key)
        return trained.with_own({"fc1.bias": trained.own["fc1.bias"] + 0.01 * self.calls}), losses


class MixesClients(FedAvg):
    def local_update(self, cohort, received, key):
        trained, losses = super().local_update(cohort, received, key)
        bias = trained.own["fc1.bias"]
        return trained.with_own({"fc1.bias": bias - bias.mean(0)}), losses


class MixesClientsInAPenalty(FedAvg):
    def local_update(self, cohort, received, key):
        phase = self.phase("all", penalty=lambda params, others: {"fc1.bias": normed(params["fc1.bias"])})
        return self.engine.train(cohort, received, phase, (*key, "all"))


def normed(rows):
    return rows / rows.norm()


class WritesAbsentClients(FedRep):
    def server_update(self, mean, batch):
        super().server_update(mean, batch)
        self.clients.stack("fc3.bias").mul_(0.9)


class MovesInEvaluation(FedAvg):
    def eval_model(self, model, train, received, key):
        self.network.fc1.bias.data += 0.01
        return super().eval_model(model, train, received, key)


class DividesByNothing(FedAvg):
    def local_update(self, cohort, received, key):
        trained, losses = super().local_update(cohort, received, key)
        unbiased = (cohort.counts / (cohort.counts - 1)).to(losses)
        return trained.with_own({"fc1.bias": trained.own["fc1.bias"] * unbiased[:, None]}), losses


class GoesThroughASet(FedAvg):
    def server_update(self, mean, batch):
        for place, name in enumerate(self.parts["all"]):
            mean[name] = mean[name] * (1 + 0.01 * place)
        super().server_update(mean, batch)


class FailsOnOneSample(FedAvg):
    def local_update(self, cohort, received, key):
        deviations = [1 / (count - 1) for count in cohort.counts.tolist()]
        return super().local_update(cohort, received, (*key, len(deviations)))


class MovesWithTheClock(FedAvg):
    def advance_clock(self, batch):
        super().advance_clock(batch)
        self.network.fc1.bias.data += 0.01


class AddsATensor(FedAvg):
    def server_update(self, mean, batch):
        super().server_update(mean, batch)
        self.register_buffer("seen", torch.ones(3))


class TakesRowsOfItsProcess(Method):
    keeps = "head"

    def server_update(self, mean, batch):
        heads = self.clients.stack("fc3.bias").abs().mean()  # of its own clients
        super().server_update({**mean, "fc1.bias": mean["fc1.bias"] + heads}, batch)

    def count_traffic(self, batch, up, down):
        super().count_traffic(batch, up, down)
        up.add(self.clients.first(["fc3.bias"]), len(batch.examples))


class SendsRowsForNothing(Method):
    keeps = "head"

    def server_update(self, mean, batch):
        rows = self.clients.gather(batch.examples.ids)
        super().server_update({**mean, "fc1.bias": mean["fc1.bias"] + rows["fc3.bias"].mean()}, batch)


class PoisonsScaledPixels(LabelFlip):
    def __call__(self, inputs, targets, classes, random):
        return inputs / 255, targets


class FlipsToClassesFrom1On(LabelFlip):
    def __call__(self, inputs, targets, classes, random):
        return inputs, classes - targets


class LeavesOutTargets(LabelFlip):
    def wanted(self, inputs, targets):
        return inputs, targets[::2]


class ShufflesByTorch(LabelFlip):
    def __call__(self, inputs, targets, classes, random):
        return inputs, targets[torch.randperm(len(targets))]


class MarksInPlace(LabelFlip):
    def __call__(self, inputs, targets, classes, random):
        inputs[..., 0, 0] = 255
        return inputs, targets
