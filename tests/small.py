"""A small network, its data, and what the library says of them."""

import torch
from torch import nn

from richbll import RichBLL

X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def fitted(model: nn.Module, data=X, **options) -> RichBLL:
    return RichBLL(model, **({"noise_variance": 0.3} | options)).fit(data)


WANT = fitted(mlp()).predict(X).epistemic_variance
