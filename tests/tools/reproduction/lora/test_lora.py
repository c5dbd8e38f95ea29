import numpy as np
import torch
from fakes.methods import built, tensors
from fakes.sent140 import write_table
from fakes.torchvision_data import write_mnist
from reproduction.lora import roles
from reproduction.lora.head_only import HeadOnly
from reproduction.lora.permuted import PermutedMNIST
from reproduction.lora.tweets import TweetTexts

from pfl_lightning.data import MNIST


def test_each_user_has_a_permutation_of_the_classes_for_both_splits(tmp_path, recwarn):
    (folder := tmp_path / "MNIST" / "raw").mkdir(parents=True)
    random, sizes = np.random.default_rng(0), {"train": 400, "test": 80}
    images = {name: random.integers(0, 256, (size, 1, 28, 28), np.uint8) for name, size in sizes.items()}
    write_mnist(folder, images, {name: random.integers(0, 10, size) for name, size in sizes.items()})
    plain = MNIST(root=str(tmp_path)).load()
    ours = PermutedMNIST(root=str(tmp_path), num_clients=4).load()
    names = [np.full(10, -1) for _ in range(4)]
    for before, split in zip(plain, ours, strict=True):
        assert torch.equal(before.inputs, split.inputs)
        assert split.users.bincount().tolist() == [len(split.users) // 4] * 4
        for user, old, new in zip(split.users, before.targets, split.targets, strict=True):
            assert names[user][old] in (-1, new)
            names[user][old] = new
    assert all(sorted(each) == [*range(10)] for each in names)
    assert len({tuple(each) for each in names}) == 4


def test_tweets_are_those_of_users_with_enough_of_them(tmp_path):
    tweets = [("ann", "so sad", 0), ("bob", "yay", 1), ("ann", "sunny, it is", 1)]
    write_table(tmp_path / "data" / "raw_data" / "training.csv", tweets)
    (raw,) = TweetTexts(root=str(tmp_path), least=2).read()
    assert raw[:3] == (("so sad", "sunny, it is"), ("0", "4"), ("ann", "ann"))


def test_each_half_of_the_roles_has_the_pieces_of_its_texts_with_the_next_character_of_each(tmp_path, monkeypatch):
    texts = {name: name * 70 for name in "ABC"} | {"SHORT": "x"}
    monkeypatch.setattr(roles, "read_roles", lambda text: texts)
    (folder := tmp_path / "data/raw_data").mkdir(parents=True)
    (folder / "raw_data.txt").write_text("")
    for half, names in (("pretraining", "AC"), ("clients", "B")):
        data, _ = roles.Roles(half=half, root=str(tmp_path)).load()
        assert data.users.tolist() == [*range(len(names))]
        assert data.inputs.tolist() == data.targets.tolist() == [[roles.token(name)] * 64 for name in names]
    texts["B"] = "".join(map(chr, range(ord("A"), ord("Z") + 1))) * 6
    data, _ = roles.Roles(half="clients", root=str(tmp_path)).load()
    following = [*data.inputs[0].tolist(), *data.inputs[1].tolist()][1:]
    assert [*data.targets[0].tolist(), *data.targets[1].tolist()][:-1] == following


def test_the_head_alone_trains_and_is_sent(train, ragged_data):
    method, start = train(HeadOnly, 1), tensors(built(HeadOnly, ragged_data()).network)
    moved = {name for name, tensor in tensors(method.network).items() if not torch.equal(tensor, start[name])}
    assert moved == method.parts["head"]
    assert method.accounting.ledger.down == 32 * 6 * 18
    assert method.accounting.ledger.up == 32 * 6 * (18 + 1), "and the loss"
