"""A table of small models, one for each feature of a rule, and for what takes the general route beside rules."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.cases import Forward

N, T, D, C = 7, 5, 4, 2  # rows, positions, width, outputs


@dataclass
class Feature:
    """A model, its inputs, and the parameters that take the general route."""

    model: nn.Module
    x: Tensor
    general: tuple[str, ...] = ()
    counts: Callable[[str], bool] | None = None

    @property
    def names(self) -> list[str]:
        """The parameters that count."""
        counts = self.counts or (lambda name: self.model.get_parameter(name).requires_grad)
        return [name for name, _ in self.model.named_parameters() if counts(name) and not name.startswith("head.")]


FEATURES: dict[str, Callable[[], Feature]] = {}


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.7 * torch.randn(shape, dtype=torch.float64))


def feature(
    name: str,
    forward: Callable[[nn.Module, Tensor], Tensor] | nn.Module,
    shape: tuple[int, ...] | Callable[[], Tensor] = (D,),
    general: tuple[str, ...] = (),
    counts: Callable[[str], bool] | None = None,
    **parts: Callable[[], nn.Module | nn.Parameter],
) -> None:
    """Takes down how to make a model: what `forward` gives, through tanh and a last layer."""

    def make() -> Feature:
        torch.manual_seed(0)
        x = shape() if callable(shape) else randn(N, *shape)
        made = {part: build() for part, build in parts.items()}
        body = Forward(forward, **made).double().eval()
        _shake(body)
        with torch.no_grad():
            width = body(x).flatten(1).shape[1]
        model = Forward(lambda m, x: m.head(torch.tanh(m.body(x)).flatten(1)), body=body, head=nn.Linear(width, C))
        return Feature(model.double().eval(), x, tuple(f"body.{each}" for each in general), counts)

    assert name not in FEATURES
    FEATURES[name] = make


def _shake(model: nn.Module) -> None:
    """Scales, shifts and running statistics that are not the initial ones."""
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.LayerNorm | nn.GroupNorm | nn.RMSNorm | nn.modules.batchnorm._NormBase):
                for p in part.parameters():
                    p += 0.3 * torch.randn_like(p)
            if getattr(part, "running_mean", None) is not None:
                part.running_mean += 0.3 * torch.randn_like(part.running_mean)
                part.running_var *= 1 + torch.rand_like(part.running_var)


def layer(name: str, build: Callable[[], nn.Module], *shape: int, general: tuple[str, ...] = ()) -> None:
    """One layer."""
    feature(name, lambda m, x: m.layer(x), shape, tuple(f"layer.{each}" for each in general), layer=build)


# ---------------------------------------------------------------------- linear

layer("linear", lambda: nn.Linear(D, 6), D)
layer("linear without bias", lambda: nn.Linear(D, 6, bias=False), D)
layer("linear at positions", lambda: nn.Linear(D, 6), T, D)
layer("linear at positions in two dimensions", lambda: nn.Linear(D, 6), 2, 3, D)
layer("linear with one input and one output", lambda: nn.Linear(1, 1), 1)
feature(
    "linear, sequence first", lambda m, x: m.a(x.transpose(0, 1)).transpose(0, 1), (T, D), a=lambda: nn.Linear(D, 6)
)
feature(
    "linear, flattened rows",
    lambda m, x: m.b(torch.tanh(m.a(x.reshape(-1, D)))).view(len(x), -1),
    (T, D),
    a=lambda: nn.Linear(D, 6),
    b=lambda: nn.Linear(6, 3, bias=False),
)
feature(
    "linear, windows of rows",
    lambda m, x: m.a(x.reshape(len(x) * 2, 3, D)).reshape(len(x), -1),
    (6, D),
    a=lambda: nn.Linear(D, 6),
)
feature("linear used twice", lambda m, x: m.a(torch.tanh(m.a(x))), a=lambda: nn.Linear(D, D))
feature("linear used twice at positions", lambda m, x: m.a(torch.tanh(m.a(x))), (T, D), a=lambda: nn.Linear(D, D))
feature(
    "linear used at positions and without",
    lambda m, x: m.a(torch.tanh(m.a(x)).mean(dim=1)),
    (T, D),
    a=lambda: nn.Linear(D, D),
)


def tied() -> nn.Module:
    first, second = nn.Linear(D, D), nn.Linear(D, D)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


layer("weights tied between two layers", tied, D)
feature(
    "an embedding tied to a linear layer",
    lambda m, x: functional.linear(torch.tanh(m.words(x).mean(dim=1)), m.words.weight),
    lambda: torch.randint(9, (N, T)),
    words=lambda: nn.Embedding(9, 3),
)
feature(
    "linear by keywords",
    lambda m, x: functional.linear(input=x, weight=m.w, bias=m.b),
    w=lambda: parameter(6, D),
    b=lambda: parameter(6),
)
feature("x @ P", lambda m, x: x @ m.p, p=lambda: parameter(D, 6))
feature("x @ P at positions", lambda m, x: x @ m.p, (T, D), p=lambda: parameter(D, 6))
feature("torch.matmul", lambda m, x: torch.matmul(x, m.p), (T, D), p=lambda: parameter(D, 6))
feature("torch.mm", lambda m, x: torch.mm(x, m.p), p=lambda: parameter(D, 6))
feature("addmm", lambda m, x: torch.addmm(m.b, x, m.p), p=lambda: parameter(D, 6), b=lambda: parameter(6))
feature(
    "addmm on flattened rows, as Hugging Face's Conv1D",
    lambda m, x: torch.addmm(m.b, x.view(-1, D), m.p).view(*x.shape[:2], 6),
    (T, D),
    p=lambda: parameter(D, 6),
    b=lambda: parameter(6),
)
feature(
    "a low-rank adapter beside a frozen layer",
    lambda m, x: m.base(x) + 0.5 * functional.linear(functional.linear(x, m.A), m.B),
    (T, D),
    base=lambda: nn.Linear(D, 6).requires_grad_(False),
    A=lambda: parameter(2, D),
    B=lambda: parameter(6, 2),
)
feature(
    "frozen parameters that count",
    lambda m, x: m.b(torch.tanh(m.a(x))),
    counts=lambda name: True,
    a=lambda: nn.Linear(D, 6).requires_grad_(False),
    b=lambda: nn.Linear(6, 3),
)
feature(
    "a layer that does not count between two that do",
    lambda m, x: m.c(torch.tanh(m.b(torch.tanh(m.a(x))))),
    counts=lambda name: ".b." not in name,
    a=lambda: nn.Linear(D, 6),
    b=lambda: nn.Linear(6, 5),
    c=lambda: nn.Linear(5, 3),
)
feature(
    "parts of one output, and a layer onto the whole of it",
    lambda m, x: m.c(x) + torch.cat([m.a(x), m.b(x)], dim=1),
    a=lambda: nn.Linear(D, 3),
    b=lambda: nn.Linear(D, 3),
    c=lambda: nn.Linear(D, 6),
)
feature(
    "x @ P of a part of x", lambda m, x: x @ m.p + x[:, :2] @ m.q, p=lambda: parameter(D, 6), q=lambda: parameter(2, 6)
)

# ---------------------------------------------------------------------- convolutions

layer("conv1d", lambda: nn.Conv1d(2, 3, 3), 2, 9)
layer("conv1d, stride and dilation", lambda: nn.Conv1d(2, 3, 3, stride=2, dilation=2, padding=1), 2, 10)
layer("conv1d of kernel 1", lambda: nn.Conv1d(D, 3, 1), D, T)
layer("conv2d", lambda: nn.Conv2d(2, 3, 3), 2, 5, 5)
layer("conv2d without bias", lambda: nn.Conv2d(2, 3, 3, bias=False), 2, 5, 5)
layer("conv2d, stride", lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), 2, 6, 6)
layer("conv2d, unused border", lambda: nn.Conv2d(2, 3, 2, stride=3), 2, 7, 6)
layer("conv2d, dilation", lambda: nn.Conv2d(2, 3, 2, dilation=(2, 3)), 2, 6, 7)
layer("conv2d, kernel not square", lambda: nn.Conv2d(2, 3, (1, 4), padding=(0, 2), stride=(2, 1)), 2, 5, 6)
layer("conv2d, groups", lambda: nn.Conv2d(4, 6, 3, groups=2), 4, 5, 4)
layer("conv2d, depthwise", lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), 4, 4, 4)
layer("conv2d, padding same", lambda: nn.Conv2d(2, 3, 3, padding="same"), 2, 4, 5)
layer(
    "conv2d, padding same of an even kernel", lambda: nn.Conv2d(2, 3, (2, 4), padding="same", dilation=(1, 2)), 2, 5, 6
)
layer("conv2d, padding valid", lambda: nn.Conv2d(2, 3, 3, padding="valid"), 2, 4, 5)
layer("conv2d, circular padding", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), 2, 4, 5)
layer("conv2d, reflected padding", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), 2, 4, 5)
layer("conv2d, replicated padding", lambda: nn.Conv2d(2, 3, (2, 3), padding="same", padding_mode="replicate"), 2, 4, 5)
layer("conv2d at 255 positions", lambda: nn.Conv2d(1, 2, 2, stride=(1, 1)), 1, 16, 18)
layer("conv2d at 256 positions", lambda: nn.Conv2d(1, 2, 2, padding=1, dilation=2), 1, 16, 16)
layer("conv2d at 272 positions, groups and unused border", lambda: nn.Conv2d(2, 4, 3, stride=2, groups=2), 2, 36, 34)
layer("conv3d", lambda: nn.Conv3d(2, 3, (1, 2, 3), stride=(1, 2, 1), padding=(0, 1, 1)), 2, 3, 4, 4)
layer("conv3d, groups and dilation", lambda: nn.Conv3d(2, 4, 2, dilation=(2, 1, 1), groups=2), 2, 4, 3, 3)
layer("transposed conv1d", lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), 2, 4)
layer(
    "transposed conv1d, more than a stride left over",
    lambda: nn.ConvTranspose1d(2, 3, 3, dilation=2, output_padding=1),
    2,
    4,
)
layer("transposed conv2d", lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), 2, 3, 4)
layer(
    "transposed conv2d, padding",
    lambda: nn.ConvTranspose2d(2, 3, (3, 4), stride=(2, 3), padding=(1, 2), output_padding=(1, 2)),
    2,
    3,
    4,
)
layer("transposed conv2d, groups and dilation", lambda: nn.ConvTranspose2d(4, 6, 2, groups=2, dilation=3), 4, 3, 3)
layer(
    "transposed conv2d, many positions",
    lambda: nn.ConvTranspose2d(2, 1, 2, stride=1, output_padding=1, dilation=2),
    2,
    17,
    16,
)
layer("transposed conv3d", lambda: nn.ConvTranspose3d(2, 2, 2, stride=(1, 2, 1), output_padding=(0, 1, 0)), 2, 2, 2, 3)
feature(
    "a convolution and its transpose with one weight",
    lambda m, x: functional.conv_transpose2d(torch.tanh(functional.conv2d(x, m.w)), m.w, m.b),
    (2, 5, 5),
    w=lambda: parameter(3, 2, 3, 3),
    b=lambda: parameter(2),
)
feature(
    "conv2d on frames",
    lambda m, x: m.norm(m.conv(x.flatten(0, 1))).view(len(x), -1),
    (3, 2, 4, 4),
    conv=lambda: nn.Conv2d(2, 3, 3, padding=1),
    norm=lambda: nn.BatchNorm2d(3),
)
feature(
    "transposed conv1d on frames",
    lambda m, x: m.conv(x.flatten(0, 1)).view(len(x), -1),
    (3, 2, 4),
    conv=lambda: nn.ConvTranspose1d(2, 4, 3, stride=2, groups=2),
)
feature("conv2d used twice", lambda m, x: m.a(torch.tanh(m.a(x))), (2, 4, 4), a=lambda: nn.Conv2d(2, 2, 3, padding=1))

# ---------------------------------------------------------------------- tables


def tokens() -> Tensor:
    return torch.randint(9, (N, T))


feature("embedding", lambda m, x: m.e(x), tokens, e=lambda: nn.Embedding(9, 3))
feature("embedding of one token each", lambda m, x: m.e(x[:, 0]), tokens, e=lambda: nn.Embedding(9, 3))
feature("embedding, padding", lambda m, x: m.e(x), tokens, e=lambda: nn.Embedding(9, 3, padding_idx=2))
feature("embedding, padding from the end", lambda m, x: m.e(x), tokens, e=lambda: nn.Embedding(9, 3, padding_idx=-2))
feature(
    "embedding by function, padding from the end",
    lambda m, x: functional.embedding(x, m.w, padding_idx=-3),
    tokens,
    w=lambda: parameter(9, 3),
)
feature("embedding, repeated tokens", lambda m, x: m.e(x % 2), tokens, e=lambda: nn.Embedding(9, 3))
feature("embedding, many rows", lambda m, x: m.e(97 * x), tokens, e=lambda: nn.Embedding(900, 3))
feature(
    "embedding, flattened rows", lambda m, x: m.e(x.flatten()).view(len(x), -1), tokens, e=lambda: nn.Embedding(9, 3)
)
feature("embedding, sequence first", lambda m, x: m.e(x.T).transpose(0, 1), tokens, e=lambda: nn.Embedding(9, 3))
feature("embedding, sparse gradients", lambda m, x: m.e(x), tokens, e=lambda: nn.Embedding(9, 3, sparse=True))
feature(
    "embedding of positions",
    lambda m, x: torch.tanh(m.words(x) + m.positions(torch.arange(x.shape[1]))),
    tokens,
    words=lambda: nn.Embedding(9, 3),
    positions=lambda: nn.Embedding(12, 3),
)
feature(
    "embedding of positions with one row",
    lambda m, x: torch.tanh(m.words(x) * m.positions(torch.arange(x.shape[1])[None])),
    tokens,
    words=lambda: nn.Embedding(9, 3),
    positions=lambda: nn.Embedding(12, 3),
)

# ---------------------------------------------------------------------- normalisation

layer("layer norm", lambda: nn.LayerNorm(D), D)
layer("layer norm at positions", lambda: nn.LayerNorm(D), T, D)
layer("layer norm over two dimensions", lambda: nn.LayerNorm((T, D)), T, D)
layer("layer norm without shift", lambda: nn.LayerNorm(D, bias=False), T, D)
layer("batch norm of vectors", lambda: nn.BatchNorm1d(D), D)
layer("batch norm of sequences", lambda: nn.BatchNorm1d(D), D, T)
layer("batch norm of images", lambda: nn.BatchNorm2d(2), 2, 3, 4)
layer("batch norm of volumes", lambda: nn.BatchNorm3d(2), 2, 2, 3, 2)
feature(
    "batch norms behind layers",
    lambda m, x: torch.tanh_(m.last(m.c(m.bare(m.b(functional.relu_(m.fixed(m.a(x)))))))),
    (2, 4, 4),
    counts=lambda name: "fixed" not in name,
    a=lambda: nn.Conv2d(2, 3, 3),
    fixed=lambda: nn.BatchNorm2d(3),
    b=lambda: nn.Conv2d(3, 3, 1),
    bare=lambda: nn.BatchNorm2d(3, affine=False),
    c=lambda: nn.Conv2d(3, 2, 1),
    last=lambda: nn.BatchNorm2d(2, eps=0.1),
)
feature(
    "batch norm before units that are dead for the examples that are tried, the first and the last",
    lambda m, x: functional.relu_(m.norm(m.a(x).sum(1, keepdim=True))) * (x[:, :1] > 0),
    lambda: randn(N, D).abs() * torch.tensor([-1, 1, 1, -1, 1, 1, -1])[:, None],
    a=lambda: nn.Linear(D, 3),
    norm=lambda: nn.BatchNorm1d(1),
)
feature(
    "batch norm with a scale that is made from another parameter",
    lambda m, x: functional.batch_norm(m.a(x), m.mean, m.var, m.scale(m.one), m.shift),
    general=("scale.weight",),
    mean=lambda: nn.Buffer(torch.randn(3)),
    var=lambda: nn.Buffer(torch.rand(3) + 0.5),
    one=lambda: nn.Buffer(torch.ones(1)),
    a=lambda: nn.Linear(D, 3),
    scale=lambda: nn.Linear(1, 3, bias=False),
    shift=lambda: parameter(3),
)
feature(
    "batch norm and pooling under a checkpoint",
    lambda m, x: checkpoint(lambda h: m.c(functional.max_pool2d(m.norm(h), 2)), m.a(x), use_reentrant=False),
    (2, 66, 66),
    a=lambda: nn.Conv2d(2, 4, 3),
    norm=lambda: nn.BatchNorm2d(4),
    c=lambda: nn.Conv2d(4, 1, 3, stride=15),
)
feature(
    "batch norm with a scale and no shift",
    lambda m, x: functional.batch_norm(m.a(x), m.mean, m.var, weight=m.w),
    a=lambda: nn.Linear(D, 3),
    mean=lambda: nn.Buffer(torch.randn(3)),
    var=lambda: nn.Buffer(torch.rand(3) + 0.5),
    w=lambda: parameter(3),
)
layer("group norm", lambda: nn.GroupNorm(2, 4), 4, 3, 3)
layer("instance norm of sequences", lambda: nn.InstanceNorm1d(2, affine=True), 2, T)
layer("instance norm of images", lambda: nn.InstanceNorm2d(2, affine=True), 2, 3, 3)
layer(
    "instance norm with running statistics",
    lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True),
    2,
    3,
    3,
)
layer("RMS norm", lambda: nn.RMSNorm(D), T, D)
feature(
    "norms of flattened rows",
    lambda m, x: m.batch(torch.tanh(m.rms(m.norm(x.reshape(-1, D))))).view(len(x), -1),
    (T, D),
    norm=lambda: nn.LayerNorm(D),
    rms=lambda: nn.RMSNorm(D),
    batch=lambda: nn.BatchNorm1d(D),
)
feature(
    "layer norm, sequence first",
    lambda m, x: m.norm(x.transpose(0, 1)).transpose(0, 1),
    (T, D),
    norm=lambda: nn.LayerNorm(D),
)
feature(
    "general: layer norm of learned positions",
    lambda m, x: x * m.norm(m.at(torch.arange(T))) + m.p,
    (T, D),
    ("norm.weight", "norm.bias", "at.weight"),
    p=lambda: parameter(T, D),
    norm=lambda: nn.LayerNorm(D),
    at=lambda: nn.Embedding(T, D),
)

# ---------------------------------------------------------------------- parameters by themselves

for name, forward in {
    "x + p": lambda m, x: x + m.p,
    "p + x": lambda m, x: m.p + x,
    "x - p": lambda m, x: x - m.p,
    "p - x": lambda m, x: m.p - x,
    "x * p": lambda m, x: x * m.p,
    "p * x": lambda m, x: m.p * x,
    "torch.add": lambda m, x: torch.add(x, m.p),
    "torch.sub": lambda m, x: torch.sub(m.p, x),
    "torch.mul": lambda m, x: torch.mul(m.p, x),
}.items():
    feature(name, forward, (T, D), p=lambda: parameter(D))
for size in [(), (1,), (T, D), (1, T, D), (T, 1), (1, 1, 1)]:
    feature(f"x + p of shape {size}", lambda m, x: x + m.p, (T, D), p=lambda size=size: parameter(*size))
    feature(f"x * p of shape {size}", lambda m, x: x * m.p, (T, D), p=lambda size=size: parameter(*size))
feature(
    "x * p of flattened rows",
    lambda m, x: ((x.reshape(-1, D) + m.q) * m.p).view(len(x), -1),
    (T, D),
    p=lambda: parameter(D),
    q=lambda: parameter(1, D),
)
feature(
    "x + p, sequence first",
    lambda m, x: (x.transpose(0, 1) + m.p).transpose(0, 1),
    (T, D),
    p=lambda: parameter(T, 1, D),
)
feature("x * p before the batch", lambda m, x: (x * m.p).sum(dim=0), p=lambda: parameter(3, 1, D))
feature("x * p * p", lambda m, x: x * m.p * m.p, p=lambda: parameter(D))
feature("x * (p * p)", lambda m, x: x * (m.p * m.p), p=lambda: parameter(D))
feature("x + p + p - p", lambda m, x: x + (m.p + m.p) - m.p, p=lambda: parameter(D))
feature("whole numbers times p", lambda m, x: x * m.p, lambda: torch.randint(9, (N, D)), p=lambda: parameter(D))
feature(
    "a class token, expanded and joined",
    lambda m, x: torch.cat([m.token.expand(len(x), -1, -1), x], dim=1) + m.at,
    (T, D),
    token=lambda: parameter(1, 1, D),
    at=lambda: parameter(1, T + 1, D),
)
feature("expand_as", lambda m, x: x * m.p.expand_as(x), (T, D), p=lambda: parameter(D))
feature("positions with a row put before", lambda m, x: x + m.p[None], (T, D), p=lambda: parameter(T, D))
feature("positions cut to a length", lambda m, x: x * m.p[:, : x.shape[1]], (T, D), p=lambda: parameter(1, T + 3, D))
feature("positions, unsqueezed", lambda m, x: x * m.p.unsqueeze(0), (T, D), p=lambda: parameter(T, D))
feature(
    "positions, reshaped",
    lambda m, x: x * m.p.view(1, T, D) + m.q.reshape(1, 1, -1),
    (T, D),
    p=lambda: parameter(T * D),
    q=lambda: parameter(2, 2),
)
feature(
    "layer scale",
    lambda m, x: x + m.scale * m.a(x),
    (T, D),
    a=lambda: nn.Linear(D, D),
    scale=lambda: parameter(D),
)
feature("a temperature", lambda m, x: m.a(x) * m.t, a=lambda: nn.Linear(D, 6), t=lambda: parameter())
feature(
    "a parameter broadcast for bmm",
    lambda m, x: torch.bmm(x, m.p.expand(len(x), D, 6)),
    (T, D),
    p=lambda: parameter(D, 6),
)
feature("a weight made for every example", lambda m, x: (m.p * x.unsqueeze(1)).sum(dim=2), p=lambda: parameter(6, D))

# ---------------------------------------------------------------------- attention

E = 8


def attention(**options) -> Callable[[], nn.Module]:
    return lambda: nn.MultiheadAttention(E, 2, **options)


def causal() -> Tensor:
    return torch.ones(T, T, dtype=torch.bool).triu(1)


def float_mask() -> Tensor:
    return torch.randn(T, T, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


for name, forward in {
    "with weights": lambda m, x: m.a(x, x, x)[0],
    "without weights": lambda m, x: m.a(x, x, x, need_weights=False)[0],
    "its weights": lambda m, x: m.a(x, x, x)[1],
    "its weights by head": lambda m, x: m.a(x, x, x, average_attn_weights=False)[1],
    "boolean mask": lambda m, x: m.a(x, x, x, attn_mask=causal())[0],
    "boolean mask without weights": lambda m, x: m.a(x, x, x, attn_mask=causal(), need_weights=False)[0],
    "causal hint": lambda m, x: m.a(x, x, x, attn_mask=causal(), is_causal=True, need_weights=False)[0],
    "float mask": lambda m, x: m.a(x, x, x, attn_mask=float_mask().to(x.dtype))[0],
    "a mask for every example": lambda m, x: m.a(x, x, x, attn_mask=causal().expand(2 * len(x), T, T))[0],
    "padding": lambda m, x: m.a(x, x, x, key_padding_mask=padding(x))[0],
    "padding and mask": lambda m, x: m.a(x, x, x, key_padding_mask=padding(x), attn_mask=causal(), need_weights=False)[
        0
    ],
    "two inputs": lambda m, x: m.a(x, x.flip(1), x.flip(1))[0],
    "three inputs": lambda m, x: m.a(x, x.flip(1), x.roll(1, 1))[0],
    "longer keys": lambda m, x: m.a(x[:, :2], x, x)[0],
    "used twice": lambda m, x: m.a(*[torch.tanh(m.a(x, x, x)[0])] * 3)[0],
}.items():
    feature(f"attention, {name}", forward, (T, E), a=attention(batch_first=True))
feature(
    "attention, sequence first", lambda m, x: m.a(*[x.transpose(0, 1)] * 3)[0].transpose(0, 1), (T, E), a=attention()
)
feature("attention without bias", lambda m, x: m.a(x, x, x)[0], (T, E), a=attention(batch_first=True, bias=False))
feature(
    "attention to keys and values of other widths",
    lambda m, x: m.a(x, x[..., :3], x[..., :5])[0],
    (T, E),
    a=attention(batch_first=True, kdim=3, vdim=5),
)
for option in ("add_bias_kv", "add_zero_attn"):
    options = {"batch_first": True, option: True}
    names = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    extra = ("bias_k", "bias_v") if option == "add_bias_kv" else ()
    feature(
        f"attention, {option}",
        lambda m, x: m.a(x, x, x)[0],
        (T, E),
        tuple(f"a.{n}" for n in (*names, *extra)),
        a=attention(**options),
    )
for norm_first in (False, True):
    layer(
        f"transformer encoder layer, norm {'first' if norm_first else 'last'}",
        lambda norm_first=norm_first: nn.TransformerEncoderLayer(E, 2, 12, batch_first=True, norm_first=norm_first),
        T,
        E,
    )
feature(
    "transformer encoder, padding",
    lambda m, x: m.layers(x, src_key_padding_mask=padding(x))[:, 0],
    (T, E),
    layers=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(E, 2, 6, batch_first=True), 2),
)
feature(
    "transformer decoder layer",
    lambda m, x: m.layer(x[:, :3], x, tgt_mask=causal()[:3, :3]),
    (T, E),
    layer=lambda: nn.TransformerDecoderLayer(E, 2, 12, batch_first=True, activation="gelu"),
)
feature(
    "attention with learned queries",
    lambda m, x: m.a(m.q.expand(len(x), -1, -1), x, x)[0],
    (T, E),
    q=lambda: parameter(1, 3, E),
    a=attention(batch_first=True),
)


def padding(x: Tensor) -> Tensor:
    """Every example's last positions, another number of them for each."""
    keep = 1 + (x[:, 0, 0].abs() * 10).long() % T
    return torch.arange(T) >= keep.unsqueeze(1)


# ---------------------------------------------------------------------- in place, in parts, in other hands


def pre_activation(m: nn.Module, x: Tensor) -> Tensor:
    h = m.norm(functional.relu_(m.conv(x)))
    h += m.skip(x)
    return m.last(functional.relu_(h)).mul_(2)


feature(
    "operations in place",
    pre_activation,
    (2, 4, 4),
    conv=lambda: nn.Conv2d(2, 3, 3, padding=1),
    norm=lambda: nn.BatchNorm2d(3),
    skip=lambda: nn.Conv2d(2, 3, 1),
    last=lambda: nn.Conv2d(3, 2, 3),
)


def written_over(m: nn.Module, x: Tensor) -> Tensor:
    h = m.a(x)
    h[:, :2] = 0
    h[:, 3].mul_(2)
    h.view(-1).tanh_()
    g = m.b(h)
    g += x[:, :1]
    return g.relu_()


feature("views of outputs in place", written_over, a=lambda: nn.Linear(D, 6), b=lambda: nn.Linear(6, 6))
feature(
    "dropout",
    lambda m, x: m.b(m.drop(torch.tanh(m.a(x)))),
    a=lambda: nn.Linear(D, 6),
    drop=lambda: nn.Dropout(0.5),
    b=lambda: nn.Linear(6, 6),
)
feature(
    "activation checkpointing",
    lambda m, x: checkpoint(lambda h: m.b(torch.tanh(m.norm(m.a(h)))), x, use_reentrant=False),
    a=lambda: nn.Linear(D, 6),
    norm=lambda: nn.LayerNorm(6),
    b=lambda: nn.Linear(6, 6),
)
feature(
    "a layer inside functional_call",
    lambda m, x: torch.func.functional_call(m.a, {"weight": m.w}, (x,)),
    general=("a.weight",),
    a=lambda: nn.Linear(D, 6),
    w=lambda: parameter(6, D),
)
feature(
    "a gated pair",
    lambda m, x: torch.sigmoid(m.a(x)) * m.b(x) + m.c(x).chunk(2, dim=-1)[0],
    (T, D),
    a=lambda: nn.Linear(D, 6),
    b=lambda: nn.Linear(D, 6, bias=False),
    c=lambda: nn.Linear(D, 12),
)
feature(
    "squeeze and excite",
    lambda m, x: (h := torch.relu(m.conv(x))) * torch.sigmoid(m.b(torch.relu(m.a(h.mean((2, 3))))))[:, :, None, None],
    (2, 4, 4),
    conv=lambda: nn.Conv2d(2, 4, 3, padding=1),
    a=lambda: nn.Linear(4, 2),
    b=lambda: nn.Linear(2, 4),
)
feature(
    "part of the model without gradients",
    lambda m, x: m.b(without_gradients(m.a, x)),
    general=("a.weight", "a.bias"),
    a=lambda: nn.Linear(D, 6),
    b=lambda: nn.Linear(6, 6),
)
feature(
    "a detached layer",
    lambda m, x: m.b(torch.tanh(m.a(x)).detach()),
    a=lambda: nn.Linear(D, 6),
    b=lambda: nn.Linear(6, 6),
)


@torch.no_grad()
def without_gradients(a: nn.Module, x: Tensor) -> Tensor:
    return torch.tanh(a(x))


# ---------------------------------------------------------------------- the general route, beside rules

layer(
    "bilinear",
    lambda: Forward(lambda m, x: m.a(m.b(x, x)), a=nn.Linear(3, 6), b=nn.Bilinear(D, D, 3)),
    D,
    general=("b.weight", "b.bias"),
)
feature(
    "lstm and linear",
    lambda m, x: m.b(m.rnn(torch.tanh(m.a(x)))[0][:, -1]),
    (T, D),
    ("rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.bias_ih_l0", "rnn.bias_hh_l0"),
    a=lambda: nn.Linear(D, 3),
    rnn=lambda: nn.LSTM(3, 4, batch_first=True),
    b=lambda: nn.Linear(4, 5),
)
for name, forward in {
    "x / p": lambda m, x: m.a(x) / m.p,
    "x ** p": lambda m, x: m.a(x).abs() ** m.p,
    "1 - p": lambda m, x: m.a(x) * (1 - m.p),
    "exp(p)": lambda m, x: m.a(x) * m.p.exp(),
    "x += p": lambda m, x: m.a(x).add_(m.p),
    "einsum": lambda m, x: torch.einsum("nd,d->nd", m.a(x), m.p),
    "a part of a bias": lambda m, x: functional.linear(m.a(x), torch.eye(D).to(x), m.p[:]),
    "prelu": lambda m, x: functional.prelu(m.a(x), m.p),
}.items():
    feature(f"general: {name}", forward, (D,), ("p",), a=lambda: nn.Linear(D, D), p=lambda: parameter(D))
feature(
    "general: a slice of a weight",
    lambda m, x: m.a(x) + functional.linear(x, m.w[:6]),
    (D,),
    ("w",),
    a=lambda: nn.Linear(D, 6),
    w=lambda: parameter(8, D),
)
feature(
    "general: a transposed weight",
    lambda m, x: m.a(x) + functional.linear(x, m.w.T),
    (D,),
    ("w",),
    a=lambda: nn.Linear(D, 6),
    w=lambda: parameter(D, 6),
)
feature(
    "general: p @ p.T",
    lambda m, x: m.a(x) @ (m.p @ m.p.T),
    (D,),
    ("p",),
    a=lambda: nn.Linear(D, 3),
    p=lambda: parameter(3, 3),
)
feature(
    "general: q in x @ (q @ p)",
    lambda m, x: x @ (m.q @ m.p) + x @ m.q,
    (D,),
    ("q", "p"),
    q=lambda: parameter(D, 6),
    p=lambda: parameter(6, 6),
)
feature(
    "general: a weight without rows",
    lambda m, x: m.a(x) + functional.linear(x, m.w).unsqueeze(1),
    (D,),
    ("w",),
    a=lambda: nn.Linear(D, 6),
    w=lambda: parameter(D),
)
feature(
    "general: weight norm",
    lambda m, x: m.a(m.b(x)),
    (D,),
    ("b.parametrizations.weight.original0", "b.parametrizations.weight.original1"),
    a=lambda: nn.Linear(5, 6),
    b=lambda: nn.utils.parametrizations.weight_norm(nn.Linear(D, 5)),
)
feature(
    "general: spectral norm",
    lambda m, x: m.a(m.b(x)),
    (D,),
    ("b.parametrizations.weight.original",),
    a=lambda: nn.Linear(5, 6),
    b=lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(D, 5)),
)
feature(
    "general: bags of embeddings",
    lambda m, x: m.a(m.e(x)),
    tokens,
    ("e.weight",),
    a=lambda: nn.Linear(3, 6),
    e=lambda: nn.EmbeddingBag(9, 3),
)
feature(
    "general: a table by index",
    lambda m, x: m.a(m.w[x]),
    tokens,
    ("w",),
    a=lambda: nn.Linear(3, 6),
    w=lambda: parameter(9, 3),
)
feature(
    "general: an image of its own",
    lambda m, x: m.a(x) + m.conv(m.image).mean((2, 3)),
    (D,),
    ("conv.weight", "image"),
    a=lambda: nn.Linear(D, 3),
    conv=lambda: nn.Conv2d(2, 3, 3),
    image=lambda: parameter(1, 2, 4, 4),
)
feature(
    "general: two rows for each example",
    lambda m, x: sum(m.a(torch.cat([x, x.flip(1)])).chunk(2)),
    (D,),
    ("a.weight", "a.bias"),
    a=lambda: nn.Linear(D, 6),
)
feature(
    "general: vmap",
    lambda m, x: m.b(torch.func.vmap(lambda row: torch.tanh(m.a(row)))(x)),
    (D,),
    ("a.weight", "a.bias"),
    a=lambda: nn.Linear(D, 6),
    b=lambda: nn.Linear(6, 3),
)
feature(
    "general: a product that is sparse",
    lambda m, x: m.a(x) + torch.sparse.mm(x.to_sparse(), m.p),
    (D,),
    ("p",),
    a=lambda: nn.Linear(D, 6),
    p=lambda: parameter(D, 6),
)
