"""Hashes that tell whether two models, or two batches, are the same to the bit."""

import hashlib
import re
from typing import Any

import torch
from torch import Tensor, nn

from richbll._version import __version__
from richbll.network.batches import Batch, tensors_in
from richbll.network.network import Network

DIGEST_BYTES = 16


def new_digest(start: bytes = b"") -> Any:
    """A hash to add tensors to."""
    return hashlib.blake2b(start, digest_size=DIGEST_BYTES)


def add_tensor(digest: Any, name: str, tensor: Tensor) -> None:
    """Its name, dtype, shape and bytes."""
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
    whole = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    flat = whole.resolve_conj().resolve_neg().cpu().contiguous().flatten()
    if flat.numel():
        digest.update(flat.view(torch.uint8).numpy())


def batch_digest(before: bytes, batch: Batch) -> bytes:
    """The hash of a batch and, through `before`, of all batches before it."""
    digest = new_digest(before)
    digest.update(repr(tuple(batch.kwargs)).encode())
    for tensor in tensors_in((batch.args, batch.kwargs)):
        add_tensor(digest, "input", tensor)
    for name, own in (("targets", batch.targets), ("weights", batch.row_weights)):
        if own is not None:
            add_tensor(digest, name, own)
    return bytes(digest.digest())


def network_fingerprint(network: Network) -> dict[str, str]:
    """What must be the same for a fit to go on where another stopped."""
    names = new_digest(repr(sorted(network.parameter_sizes)).encode())
    layers = [network.last_layer.name, *(tap.name for tap in network.last_layer.taps)]
    return {
        "richbll": __version__,
        "torch": torch.__version__,
        "device": network.device.type,
        "modules of the model": _structure(network.model),
        "weights of the model": _weights(network.model),
        "last layer": ", ".join(layers),
        "parameters that count": f"{len(network.parameter_sizes)} ({names.hexdigest()})",
    }


def _structure(model: nn.Module) -> str:
    text = re.sub("0x[0-9a-fA-F]+", "", str(model))  # addresses of objects differ from run to run
    return str(new_digest(text.encode()).hexdigest())


def _weights(model: nn.Module) -> str:
    """Of all values of all parameters and buffers."""
    digest = new_digest()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        add_tensor(digest, name, tensor)
    return str(digest.hexdigest())
