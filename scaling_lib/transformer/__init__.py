"""What a Transformer costs to hold and to run: parameters, FLOPs, activations and the KV cache, each under a named convention.

A `Transformer` says what the model is; counts are functions of it. Derived in chapters/04-transformers.md.
"""

from collections.abc import Mapping
from typing import Any

from scaling_lib.transformer import models
from scaling_lib.transformer.architecture import Transformer
from scaling_lib.transformer.blocks import Experts, Latent
from scaling_lib.transformer.flops import Flops, Matmul, attention_pairs, forward_flops, matmuls, utilization
from scaling_lib.transformer.memory import (
    Quantization,
    StateBytes,
    WeightBytes,
    kv_cache_bytes,
    state_bytes,
    weight_bytes,
)
from scaling_lib.transformer.models import model
from scaling_lib.transformer.params import COUNTINGS, Parameters, Weight, active_parameters, parameters, weights
from scaling_lib.transformer.remat import (
    Activation,
    ActivationBytes,
    TrainFlops,
    activation_bytes,
    logits_bytes,
    names,
    reruns,
    train_flops,
)

__all__ = [
    "COUNTINGS",
    "MODELS",
    "Activation",
    "ActivationBytes",
    "Experts",
    "Flops",
    "Latent",
    "Matmul",
    "Parameters",
    "Quantization",
    "StateBytes",
    "TrainFlops",
    "Transformer",
    "Weight",
    "WeightBytes",
    "activation_bytes",
    "active_parameters",
    "attention_pairs",
    "forward_flops",
    "kv_cache_bytes",
    "logits_bytes",
    "matmuls",
    "model",
    "names",
    "parameters",
    "reruns",
    "state_bytes",
    "train_flops",
    "utilization",
    "weight_bytes",
    "weights",
]

MODELS: Mapping[str, Transformer]
"""Every model of the catalog by name; read from disk when first asked for."""


def __getattr__(name: str) -> Any:
    if name == "MODELS":
        return models.MODELS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
