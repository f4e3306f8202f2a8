"""A zoo of tiny models, each with inputs. A case is a function of the number of outputs."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

NUM_TRAIN, NUM_TEST = 60, 9


@dataclass
class Case:
    """A model, the name of its last layer, and inputs for training and testing."""

    model: nn.Module
    last_layer: str
    train: Tensor
    test: Tensor

    def to(self, dtype: torch.dtype) -> "Case":
        def cast(x: Tensor) -> Tensor:
            return x.to(dtype) if x.is_floating_point() else x

        return Case(self.model.to(dtype), self.last_layer, cast(self.train), cast(self.test))


CASES: dict[str, Callable[[int], Case]] = {}


def case(make: Callable[[int], Case]) -> Callable[[int], Case]:
    CASES[make.__name__] = make
    return make


def _inputs(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(NUM_TRAIN, *shape, generator=generator, dtype=torch.float64),
        1.5 * torch.randn(NUM_TEST, *shape, generator=generator, dtype=torch.float64),
    )


def _tokens(length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randint(vocabulary, (NUM_TRAIN, length), generator=generator),
        torch.randint(vocabulary, (NUM_TEST, length), generator=generator),
    )


class Forward(nn.Module):
    """A model from parts and a forward function."""

    def __init__(self, forward: Callable[..., Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, *args, **kwargs):
        return self._forward(self, *args, **kwargs)


@case
def mlp(c: int) -> Case:
    model = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, c))
    return Case(model, "4", *_inputs(4))


@case
def mlp_without_bias(c: int) -> Case:
    model = nn.Sequential(nn.Linear(4, 10), nn.GELU(), nn.Linear(10, c, bias=False))
    return Case(model, "2", *_inputs(4))


@case
def cnn_batchnorm_groups(c: int) -> Case:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, groups=2, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(6, c),
    )
    with torch.no_grad():  # running statistics that are not the initial ones
        model[:6].train()(torch.randn(32, 2, 6, 6))
    return Case(model, "9", *_inputs(2, 6, 6))


@case
def conv_transpose(c: int) -> Case:
    model = nn.Sequential(
        nn.Conv1d(2, 3, 3, dilation=2), nn.SiLU(), nn.ConvTranspose1d(3, 2, 3, stride=2), nn.Tanh(), nn.Flatten(),
        nn.Linear(2 * 9, 7), nn.Tanh(), nn.Linear(7, c),
    )  # fmt: skip
    return Case(model, "7", *_inputs(2, 8))


@case
def resnet_block(c: int) -> Case:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        h = torch.relu(m.stem(x))
        h = torch.relu(h + m.norm(m.conv2(torch.relu(m.conv1(h)))))
        return m.head(h.mean(dim=(2, 3)))

    parts = {"stem": nn.Conv2d(3, 6, 3, padding=1), "conv1": nn.Conv2d(6, 6, 3, padding=1)}
    parts |= {"conv2": nn.Conv2d(6, 6, 3, padding=1), "norm": nn.GroupNorm(2, 6), "head": nn.Linear(6, c)}
    return Case(Forward(forward, **parts), "head", *_inputs(3, 5, 5))


@case
def lstm(c: int) -> Case:
    model = Forward(lambda m, x: m.head(m.rnn(x)[0][:, -1]), rnn=nn.LSTM(3, 6, batch_first=True), head=nn.Linear(6, c))
    return Case(model, "head", *_inputs(5, 3))


@case
def gru(c: int) -> Case:
    model = Forward(lambda m, x: m.head(m.rnn(x)[1][-1]), rnn=nn.GRU(3, 6, 2, batch_first=True), head=nn.Linear(6, c))
    return Case(model, "head", *_inputs(5, 3))


@case
def transformer_layer(c: int) -> Case:
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    parts = {"position": nn.Parameter(0.1 * torch.randn(5, 8)), "layer": layer, "head": nn.Linear(8, c)}
    model = Forward(lambda m, x: m.head(m.layer(x + m.position)[:, 0]), **parts)
    return Case(model, "head", *_inputs(5, 8))


@case
def embeddings(c: int) -> Case:
    parts = {"words": nn.Embedding(11, 5, padding_idx=0), "hidden": nn.Linear(5, 7), "head": nn.Linear(7, c)}
    model = Forward(lambda m, x: m.head(torch.tanh(m.hidden(m.words(x).mean(dim=1)))), **parts)
    return Case(model, "head", *_tokens(6, 11))


@case
def layernorm_head(c: int) -> Case:
    """Features collinear with the bias: Φ^rᵀΦ^r is singular by construction."""
    model = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 7), nn.LayerNorm(7), nn.Linear(7, c))
    return Case(model, "4", *_inputs(4))


@case
def tied_weights(c: int) -> Case:
    """One layer used twice, and one weight under two names."""
    shared = nn.Linear(8, 8)
    other = nn.Linear(8, 8)
    other.weight = shared.weight
    parts = {"first": nn.Linear(4, 8), "shared": shared, "other": other, "head": nn.Linear(8, c)}

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        h = torch.tanh(m.shared(torch.tanh(m.first(x))))
        return m.head(torch.tanh(m.other(torch.tanh(m.shared(h)))))

    return Case(Forward(forward, **parts), "head", *_inputs(4))


@case
def dead_relus(c: int) -> Case:
    model = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, c))
    with torch.no_grad():
        model[2].bias[:3] = -100.0
    return Case(model, "4", *_inputs(4))


@case
def duplicated_features(c: int) -> Case:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, c))
    with torch.no_grad():
        model[0].weight[1], model[0].bias[1] = model[0].weight[0].clone(), model[0].bias[0].clone()
        model[0].weight[2] = 0.0  # a constant feature
    return Case(model, "2", *_inputs(4))


@case
def fewer_rows_than_features(c: int) -> Case:
    train, test = _inputs(4)
    model = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, c))
    return Case(model, "4", train[:12], test)


@case
def mup_readout(c: int) -> Case:
    class ReadOut(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return nn.functional.linear(input / math.sqrt(self.in_features), self.weight, self.bias)

    return Case(nn.Sequential(nn.Linear(4, 10), nn.ReLU(), ReadOut(10, c)), "2", *_inputs(4))


@case
def scaled_and_shifted_output(c: int) -> Case:
    model = Forward(
        lambda m, x: (3.0 + 0.2 * m.head(torch.tanh(m.hidden(x)))).squeeze(-1),
        hidden=nn.Linear(4, 9),
        head=nn.Linear(9, c),
    )
    return Case(model, "head", *_inputs(4))


@case
def bare_parameters(c: int) -> Case:
    parts = {"matrix": nn.Parameter(0.5 * torch.randn(4, 9)), "shift": nn.Parameter(torch.randn(9))}
    model = Forward(lambda m, x: m.head(torch.sin(x @ m.matrix + m.shift)), **parts, head=nn.Linear(9, c))
    return Case(model, "head", *_inputs(4))


@case
def frozen_first_layer(c: int) -> Case:
    model = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, c))
    model[0].requires_grad_(False)
    return Case(model, "4", *_inputs(4))


@case
def weight_norm(c: int) -> Case:
    hidden = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 9))
    return Case(nn.Sequential(hidden, nn.Tanh(), nn.Linear(9, c)), "2", *_inputs(4))


@case
def control_flow_on_data(c: int) -> Case:
    """torch.func cannot follow a branch on values; squeeze() changes meaning for a batch of one."""

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        h = m.hidden(x.unsqueeze(1)).squeeze()
        h = torch.tanh(h) if bool((x.abs() < 1e6).all()) else h
        return m.head(h)

    return Case(Forward(forward, hidden=nn.Linear(4, 9), head=nn.Linear(9, c)), "head", *_inputs(4))


def make(name: str, num_outputs: int, dtype: torch.dtype, seed: int = 0) -> Case:
    """A case with fixed weights, the same for every dtype."""
    torch.manual_seed(seed)
    return CASES[name](num_outputs).to(torch.float64 if dtype == torch.float64 else torch.float32).to(dtype)
