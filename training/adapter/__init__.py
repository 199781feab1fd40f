"""The adapter probe: a small language model with LoRA and a confidence head. It needs torch.

Other rooms and recipes import the names below from here, and nothing from the modules of this folder.
"""

from metaprobe.training.adapter.adapter_recipe import MadeAdapter, load_base, make_adapter, train_adapter, write_adapter
from metaprobe.training.adapter.decoder_graph import MASKED_ATTENTION, adapter_graph, quantise, quiet_exporter
from metaprobe.training.adapter.examples import adapter_roles, cut_layers
from metaprobe.training.adapter.scorer import AdapterScorer, AdapterSettings

__all__ = [
    "MASKED_ATTENTION",
    "AdapterScorer",
    "AdapterSettings",
    "MadeAdapter",
    "adapter_graph",
    "adapter_roles",
    "cut_layers",
    "load_base",
    "make_adapter",
    "quantise",
    "quiet_exporter",
    "train_adapter",
    "write_adapter",
]
