import pytest
import torch
from torchvision.models import VisionTransformer

from pfl_lightning.errors import PflError
from pfl_lightning.models import ViT

NAMES = {
    "self_attention.in_proj_": "attention.qkv.",
    "self_attention.out_proj": "attention.out",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "mlp.0": "fc1",
    "mlp.3": "fc2",
    "encoder.ln": "norm",
    "heads.head": "head",
}


def ours(name):
    """Our name of one of torchvision's tensors."""
    name = name.replace("encoder.layers.encoder_layer_", "block")
    for theirs, our in NAMES.items():
        name = name.replace(theirs, our)
    return name


def test_outputs_are_those_of_torchvisions_vision_transformer():
    torch.manual_seed(0)
    theirs = VisionTransformer(8, 4, num_layers=2, num_heads=2, hidden_dim=6, mlp_dim=12, num_classes=5).double().eval()
    torch.nn.init.normal_(theirs.heads.head.weight)
    network = ViT((3, 8, 8), 5, patch=4, depth=2, width=6, heads=2, hidden=2).double().eval()
    weights = {
        ours(name).replace("block1", "block2").replace("block0", "block1"): t for name, t in theirs.state_dict().items()
    }
    weights |= {
        "patches.linear.weight": weights.pop("conv_proj.weight").flatten(1),
        "patches.linear.bias": weights.pop("conv_proj.bias"),
        "patches.token": weights.pop("class_token")[0],
        "patches.positions": weights.pop("encoder.pos_embedding")[0],
    }
    network.load_state_dict(weights)
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(network(images), theirs(images), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"patch": 3}, r"^model\.network\.patch must divide both sides of images of 8 x 8, got 3$"),
        ({"heads": 5}, r"^model\.network\.heads must divide the width 192, got 5$"),
    ],
)
def test_what_does_not_divide_gets_a_line(options, line):
    with pytest.raises(PflError, match=line):
        ViT((3, 8, 8), 5, **options)
