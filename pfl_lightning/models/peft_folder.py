"""A client's adapters as a folder of Hugging Face's ``peft``, and such a folder as adapters."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pfl_lightning import files
from pfl_lightning.errors import PflError
from pfl_lightning.models.adapters import Attention, LoRA, adapted_layers, is_transposed
from pfl_lightning.models.hugging_face import INSTALL
from pfl_lightning.models.network import Network
from pfl_lightning.tree import Tree, digest

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."  # of peft's names
BASE = "base"  # entry of the metadata with the digest of the weights that the adapters belong to
FACTORS = (".lora_A", ".lora_B")


class PeftTensors(dict[str, Tensor]):
    """The tensors of a folder of peft's, by the names in the module that is adapted.

    Attributes:
        base: Digest of the weights that they belong to; empty if the folder does not say.
    """

    base = ""

    def check(self, network: Network, head: Collection[str], key: str) -> None:
        """Check that a network has all of these tensors, and the weights that they belong to.

        Args:
            network: The network, with adapters.
            head: Names of the head's tensors.
            key: What to blame.

        Raises:
            PflError: If it does not.
        """
        state = network.state_dict()
        names = {network.original_name(name): name for name in state}
        if unknown := sorted(self.keys() - names.keys()):
            allowed = "allowed: model.adapter.targets as in the folder's target_modules, and its network"
            raise PflError(f"{key} has {unknown[0]}, which {network.kind} has not; {allowed}")
        tensors = {alias: state[name] for alias, name in names.items() if name not in head}
        if self.base not in ("", base_digest(tensors)):
            raise PflError(f"{key} has adapters of other weights than those of {network.kind}; allowed: the same ones")


def base_digest(tensors: Tree) -> str:
    """Digest of the tensors of a module without head, by their names, that are no adapters."""
    return digest({name: tensors[name] for name in sorted(tensors) if not name.endswith(FACTORS)})


def check_folder(path: Path) -> None:
    """Check the path of a folder that is to be written.

    Raises:
        PflError: If it exists.
    """
    if path.exists():
        raise PflError(f"file: '{path}' exists; allowed: a new folder")


def write_peft(module: nn.Module, adapter: LoRA, head: Collection[str], folder: Path, task: str | None = None) -> None:
    """Write the adapters and the head of a module to a new folder, which ``PeftModel.from_pretrained`` reads.

    Args:
        module: The module, with adapters, which are not merged.
        adapter: What has added them.
        head: Names of the head's tensors.
        folder: The folder.
        task: The ``task_type`` of peft, such as ``SEQ_CLS`` or ``CAUSAL_LM``.

    Raises:
        PflError: If peft has no such adapters, or a library is missing.
        OSError: If it cannot be written.
    """
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise PflError(f"as: peft needs {INSTALL} ({error})") from error
    if any(isinstance(each, Attention) for each in module.modules()):
        raise PflError("as: peft has no adapters of torch's MultiheadAttention; allowed: file, with merged weights")
    adapted: list[Any] = [layer for layer in module.modules() if hasattr(layer, "lora_hook")]
    if any(layer.weight.requires_grad for layer in adapted):
        raise PflError("as: peft has no adapters of weights that have moved too; allowed: file, with merged weights")
    state = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    layers = adapted_layers(state)
    tensors = {f"{PREFIX}{name}.weight": state[name] for path in layers for name in (path + each for each in FACTORS)}
    tensors |= {f"{PREFIX}{name}": state[name] for name in head}
    base = base_digest({name: tensor for name, tensor in state.items() if name not in head})
    settings = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": getattr(getattr(module, "config", None), "name_or_path", None),
        "r": int(adapter.rank),
        "lora_alpha": float(adapter.alpha),
        "lora_dropout": float(adapter.dropout),
        "target_modules": layers,
        "modules_to_save": sorted({name.rpartition(".")[0] for name in head}),
        "bias": "none",
        "fan_in_fan_out": any(map(is_transposed, adapted)),
        "inference_mode": True,
    }
    with files.new_folder(folder):
        for name, content in (
            (TENSORS, save(tensors, {BASE: base})),
            (CONFIG, json.dumps(settings, indent=2).encode()),
        ):
            with files.new_file(folder / name) as file:
                file.write(content)


def read_peft(folder: Path, adapter: LoRA | None) -> PeftTensors:
    """Read the tensors of such a folder.

    Args:
        folder: The folder.
        adapter: The adapters that the network has.

    Raises:
        ValueError: If these are others, or the folder is not of LoRA's plain form.
        PflError: If a library is missing.
    """
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise PflError(f"model.pretrained: a folder of peft needs {INSTALL} ({error})") from error
    settings: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    special = [key for key in ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern") if settings.get(key)]
    if settings.get("peft_type") != "LORA" or special:
        raise ValueError(
            f"adapters of another kind than plain LoRA ({', '.join(special) or settings.get('peft_type')})"
        )
    wanted = (settings["r"], settings["lora_alpha"])
    if adapter is None or wanted != (adapter.rank, adapter.alpha):
        found = "none" if adapter is None else f"{adapter.rank} and {adapter.alpha:g}"
        raise ValueError(f"adapters of rank {wanted[0]} and alpha {wanted[1]:g}, where model.adapter has {found}")
    with safe_open(folder / TENSORS, framework="pt") as file:
        tensors = PeftTensors({_own_name(name): file.get_tensor(name) for name in sorted(file.keys())})
        tensors.base = (file.metadata() or {}).get(BASE, "")
    return tensors


def _own_name(name: str) -> str:
    """The name in the adapted module of one of peft's tensors."""
    own = name.removeprefix(PREFIX)
    return own.removesuffix(".weight") if own.removesuffix(".weight").endswith(FACTORS) else own
