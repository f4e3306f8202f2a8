"""A small network and its training."""

import copy

import torch
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]  # inputs (n, d), targets (n, 1)


class Readout(nn.Linear):
    """A last layer that scales its input by 1/√width, so that weights of order 1 give outputs of order 1."""

    def forward(self, x: Tensor) -> Tensor:
        """W x/√width + b."""
        return super().forward(x * self.in_features**-0.5)


def mlp(num_inputs: int, width: int, seed: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Two hidden layers, one output; the random numbers of the caller are not touched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, second, readout = nn.Linear(num_inputs, width), nn.Linear(width, width), Readout(width, 1)
        nn.init.normal_(first.weight, std=num_inputs**-0.5)
        nn.init.normal_(first.bias)
        nn.init.normal_(second.weight, std=width**-0.5)
        nn.init.normal_(readout.weight)
        nn.init.zeros_(second.bias)
        nn.init.zeros_(readout.bias)
    return nn.Sequential(first, activation(), second, activation(), readout)


def train(
    model: nn.Module,
    data: Pair,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    validation: Pair | None = None,
) -> None:
    """Fit the model in place by least squares; with validation data, end with the weights of its best epoch."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    best, best_error = model.state_dict(), float("inf")
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(data[0]), generator=generator), batch_size):
            optimizer.zero_grad()
            mean_squared_error(model, (data[0][rows], data[1][rows])).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
        if validation is not None:
            with torch.no_grad():
                error = float(mean_squared_error(model, validation))
            if error < best_error:
                best, best_error = copy.deepcopy(model.state_dict()), error
    model.load_state_dict(best)


def mean_squared_error(model: nn.Module, data: Pair) -> Tensor:
    """Mean of (f(x) − y)²."""  # ()
    x, y = data
    return (model(x) - y).square().mean()
