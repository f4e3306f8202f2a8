"""Models that a trial run on two examples could be fooled by: each with its batches, the first of which is tried."""

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn import functional

from tests.cases import Forward

N, D, C = 14, 4, 2
Hard = tuple[nn.Module, list[Any]]
HARD: dict[str, Callable[[], Hard]] = {}


def hard(make: Callable[[], Hard]) -> Callable[[], Hard]:
    HARD[make.__name__] = make
    return make


def x(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model(
    forward: Callable[..., Tensor], width: int = 6, num_outputs: int = C, **parts: nn.Module | nn.Parameter
) -> nn.Module:
    """What `forward` gives, through a last layer."""
    head = nn.Linear(width, num_outputs)
    return Forward(lambda m, *a, **k: m.head(forward(m, *a, **k)), **parts, head=head).double().eval()


def gated(first: Tensor) -> Tensor:
    """1 for some examples and 0 for others; `closed` makes inputs for which it is 0 at both ends."""
    return (first > 0).to(torch.float64)


def closed(*shape: int) -> Tensor:
    values = x(N, *shape)
    values.view(N, -1)[[0, -1], 0] = -1.0
    return values


def time_first(layer: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """A layer on rows (T · n) instead of (n · T): a layout that rules do not know."""
    n, T = values.shape[:2]
    return layer(values.transpose(0, 1).reshape(T * n, -1)).view(T, n, -1).transpose(0, 1)


# ---------------------------------------------------------------------- nothing to see at the two examples


@hard
def dead_at_both_ends() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        gate = gated(v[:, 0, 0]).view(-1, 1, 1)
        return torch.tanh(m.b(v[:, 0])) + (torch.tanh(time_first(m.a, v)) * gate).sum(dim=1)

    return model(forward, a=nn.Linear(D, 6), b=nn.Linear(D, 6)), [closed(3, D), x(N, 3, D, seed=3)]


@hard
def one_of_two_uses_dead_at_both_ends() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        gate = gated(v[:, 0, 0]).view(-1, 1, 1)
        second = time_first(lambda rows: functional.linear(rows, m.a.weight), v)
        return torch.tanh(m.a(v[:, 0])) + (torch.tanh(second) * gate).sum(dim=1)

    return model(forward, a=nn.Linear(D, 6)), [closed(3, D), x(N, 3, D, seed=3)]


@hard
def relus_dead_at_both_ends() -> Hard:
    made = nn.Sequential(nn.Linear(D, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, C)).double()
    with torch.no_grad():
        made[0].bias -= 2.0
    values = 2 * x(40, D)
    values[[0, -1]] = 0.0
    return made, [values]


@hard
def inputs_zero_at_both_ends() -> Hard:
    values = x(N, 3, D)
    values[[0, -1]] = 0.0
    made = model(lambda m, v: torch.tanh(time_first(m.a, v)).sum(dim=1), a=nn.Linear(D, 6, bias=False))
    return made, [values, x(N, 3, D, seed=2)]


@hard
def the_same_example_at_both_ends() -> Hard:
    values = x(N, 3, D)
    values[-1] = values[0]
    return model(lambda m, v: torch.tanh(time_first(m.a, v)).sum(dim=1), a=nn.Linear(D, 6)), [values]


@hard
def the_same_token_everywhere_at_both_ends() -> Hard:
    values = x(N, 3, D)
    values[[0, -1]] = values[0, 0].clone()
    made = model(lambda m, v: torch.tanh(time_first(m.a, v)).sum(dim=1), a=nn.Linear(D, 6))
    return made, [values, x(N, 3, D, seed=2)]


# ---------------------------------------------------------------------- later batches unlike the first


@hard
def another_branch() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        return torch.tanh(m.a(v) if float(v[0, 0]) > -50 else m.b(v))

    other = x(N, D, seed=1)
    other[:, 0] -= 100
    return model(forward, a=nn.Linear(D, 6), b=nn.Linear(D, 6)), [x(N, D), other]


@hard
def another_use_in_a_branch() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        h = m.a(v)
        return torch.tanh(h if float(v[0, 0]) > -50 else h + torch.einsum("nd,ed->ne", v, m.a.weight))

    made = model(forward, a=nn.Linear(D, 6))
    other = x(N, D, seed=1)
    other[:, 0] = -51 - other[:, 0].abs()
    with torch.no_grad():
        made.a.weight *= 0.05
    return made, [x(N, D), other]


@hard
def another_number_of_calls() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        for _ in range(v.shape[1]):
            v = torch.tanh(m.a(v))
        return v.mean(dim=1)

    return model(forward, D, a=nn.Linear(D, D)), [x(N, 2, D), x(N, 3, D, seed=1)]


@hard
def an_input_more() -> Hard:
    def forward(m: nn.Module, v: Tensor, extra: Tensor | None = None) -> Tensor:
        return torch.tanh(m.a(v) if extra is None else m.a(v) + m.b(extra))

    made = model(forward, a=nn.Linear(D, 6), b=nn.Linear(3, 6))
    return made, [{"v": x(N, D)}, {"v": x(N, D, seed=1), "extra": x(N, 3)}]


@hard
def sequences_of_other_lengths() -> Hard:
    made = model(lambda m, v: torch.tanh(m.a(v)).mean(dim=1), a=nn.Linear(D, 6))
    return made, [x(N, 5, D), x(N, 1, D, seed=1), x(N, N, D, seed=2), x(2, 2, D, seed=3), x(1, 3, D, seed=4)]


@hard
def the_shortest_sequences_first() -> Hard:
    made = model(lambda m, v: torch.tanh(m.a(v) + m.p).mean(dim=1), a=nn.Linear(D, 6), p=nn.Parameter(x(6)))
    return made, [x(N, 1, D), x(N, 3, D, seed=1), x(3, 3, D, seed=2)]


@hard
def shared_rows_cut_by_number() -> Hard:
    """Spread over two examples, a cut to two rows changes nothing; spread over more, it does."""

    def forward(m: nn.Module, v: Tensor) -> Tensor:
        at = m.at(torch.arange(v.shape[1]))[: v.shape[1]]
        return torch.tanh(m.a(v) + at).mean(dim=1)

    made = model(forward, D, at=nn.Embedding(30, D), a=nn.Linear(D, D))
    return made, [x(N, 2, D), x(N, N, D, seed=1), x(N, 5, D, seed=2)]


@hard
def positions_of_a_single_token_later() -> Hard:
    """(T, d) with T = 1 is not a row for all examples, although it looks like one."""
    made = model(lambda m, v: torch.tanh(v * m.at(torch.arange(v.shape[1]))).mean(dim=1), D, at=nn.Embedding(5, D))
    return made, [x(N, 2, D), x(N, 1, D, seed=1), x(1, 1, D, seed=2)]


@hard
def positions_of_a_single_token_first() -> Hard:
    made = model(lambda m, v: torch.tanh(v * m.at(torch.arange(v.shape[1]))).mean(dim=1), D, at=nn.Embedding(5, D))
    return made, [x(1, 1, D), x(N, 1, D, seed=1), x(N, 3, D, seed=2)]


@hard
def a_shared_factor_dead_at_both_ends() -> Hard:
    """Spread over examples, it would meet the tokens instead; and nothing shows that it does."""

    def forward(m: nn.Module, v: Tensor) -> Tensor:
        return torch.tanh(v * (m.s * 2.0) * gated(v[:, :1, :1])).mean(dim=1)

    return model(forward, D, s=nn.Parameter(x(1))), [closed(1, D), x(N, 1, D, seed=1)]


@hard
def a_scalar_beside_as_many_features_as_examples() -> Hard:
    made = model(lambda m, v: torch.tanh(m.a(v) * (m.s * 2.0)), 2, a=nn.Linear(3, 2), s=nn.Parameter(x(1)[0]))
    return made, [x(N, 3), x(2, 3, seed=1)]


# ---------------------------------------------------------------------- rows that are not the examples


@hard
def sequences_without_their_padding() -> Hard:
    """As many rows as if all were of the same length, which they are at both ends."""

    def forward(m: nn.Module, v: Tensor) -> Tensor:
        keep = v.abs().sum(dim=-1) > 0
        rows = torch.tanh(m.a(v[keep]))
        return v.new_zeros(*v.shape[:2], 6).masked_scatter(keep.unsqueeze(-1).expand(-1, -1, 6), rows).sum(dim=1)

    values = x(N, 5, D)
    for i in range(N):
        values[i, 3 if i in (0, N - 1) else 2 + 2 * (i % 2) :] = 0
    return model(forward, a=nn.Linear(D, 6)), [values, values.flip(0)]


@hard
def sorted_by_length() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        order = torch.argsort((v[:, 0] > 0).long(), descending=True, stable=True)
        return torch.tanh(m.a(v[order]))[torch.argsort(order)]

    values = x(N, D)
    values[[0, -1], 0] = 1.0
    return model(forward, a=nn.Linear(D, 6)), [values, x(N, D, seed=5)]


@hard
def sorted_behind_a_large_constant() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        order = torch.argsort(v[:, 0])
        return torch.tanh(m.a(v[order]) - 1e5)[torch.argsort(order)]

    made = model(forward, a=nn.Linear(D, 6))
    with torch.no_grad():
        made.a.bias += 1e5
    values = x(N, D)
    values[[0, -1], 0] = torch.tensor([-3.0, 3.0], dtype=torch.float64)
    return made, [values]


@hard
def in_reverse() -> Hard:
    return model(lambda m, v: torch.tanh(m.a(v.flip(0))).flip(0), a=nn.Linear(D, 6)), [x(N, D)]


@hard
def in_reverse_after_a_single_example() -> Hard:
    made = model(lambda m, v: torch.tanh(m.a(v.flip(0))).flip(0), a=nn.Linear(D, 6))
    return made, [x(1, D), *(x(n, D, seed=n) for n in (2, 3, 4, 5, N))]


@hard
def in_reverse_behind_a_gate() -> Hard:
    """Where the gate is closed all rows are the same, so these show no order; they are most of them."""

    def forward(m: nn.Module, v: Tensor) -> Tensor:
        open_ = (v[:, :1] > 1).to(v)
        return torch.tanh(m.a((v * open_).flip(0))).flip(0) * (0.1 + open_)

    values = x(40, D)
    values[[0, -1], 0] = -1.0
    return model(forward, a=nn.Linear(D, 6)), [values, x(N, D, seed=1)]


@hard
def sorted_in_small_batches() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        order = torch.argsort(v[:, 0])
        return torch.tanh(m.a(v[order]))[torch.argsort(order)]

    first = x(1, D)
    return model(forward, a=nn.Linear(D, 6)), [first, *(x(n, D, seed=n) for n in (2, 3, 4, 5, 6))]


@hard
def experts() -> Hard:
    """Every token goes to one of two layers; in the first batch two tokens of each example to each."""

    def forward(m: nn.Module, v: Tensor) -> Tensor:
        rows = v.reshape(-1, D)
        out = v.new_zeros(len(rows), 6)
        for number, expert in enumerate((m.a, m.b)):
            mine = ((rows[:, 0] > 0).long() == number).nonzero().flatten()
            out = out.index_copy(0, mine, torch.tanh(expert(rows[mine])))
        return out.view(len(v), -1, 6).sum(dim=1)

    even = x(N, 4, D)
    even[:, :2, 0] = even[:, :2, 0].abs()
    even[:, 2:, 0] = -even[:, 2:, 0].abs()
    odd = even.clone()
    odd[5, 0, 0] *= -1
    odd[6, 2, 0] *= -1
    return model(forward, a=nn.Linear(D, 6), b=nn.Linear(D, 6)), [even, odd]


# ---------------------------------------------------------------------- derivatives inside of the model


def derivative_in_some_examples(derivative: Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]]) -> Hard:
    """A derivative by the input, which depends on the weight in another way than the output; gated."""

    def forward(m: nn.Module, v: Tensor) -> Tensor:
        h, slope = derivative(m, v)
        return h + gated(v[:, :1]) * slope

    return model(forward, a=nn.Linear(D, 6)), [closed(D), x(N, D, seed=2)]


@hard
def a_gradient_inside() -> Hard:
    def derivative(m: nn.Module, v: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            v = v.detach().requires_grad_()
            h = torch.tanh(m.a(v))
            (slope,) = torch.autograd.grad(h.sum(), v, create_graph=True)
        return h, slope[:, :1]

    return derivative_in_some_examples(derivative)


@hard
def a_functional_gradient_inside() -> Hard:
    def derivative(m: nn.Module, v: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(m.a(v)), torch.func.grad(lambda u: torch.tanh(m.a(u)).sum())(v)[:, :1]

    return derivative_in_some_examples(derivative)


@hard
def a_forward_derivative_inside() -> Hard:
    def derivative(m: nn.Module, v: Tensor) -> tuple[Tensor, Tensor]:
        with forward_ad.dual_level():
            h, slope = forward_ad.unpack_dual(torch.tanh(m.a(forward_ad.make_dual(v, torch.ones_like(v)))))
        return h, slope

    return derivative_in_some_examples(derivative)


class Scaled(torch.autograd.Function):
    """A function of the user's own, which no mode sees."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(values, weight)
        return values * weight

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        values, weight = ctx.saved_tensors
        return g * weight, (g * values).sum(dim=0)


@hard
def a_function_of_the_users_own() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        return torch.tanh(Scaled.apply(m.a(v), m.w) * gated(v[:, :1]) + m.w)

    return model(forward, D, a=nn.Linear(D, D), w=nn.Parameter(x(D))), [closed(D), x(N, D, seed=1)]


# ---------------------------------------------------------------------- factors that look alike, memory that is reused


@hard
def parts_of_one_output() -> Hard:
    """One output's gradient is the first half of another's, at the same address."""
    parts = {name: nn.Linear(40, width, bias=False) for name, width in (("a", 20), ("b", 20), ("c", 40))}
    made = model(lambda m, v: torch.tanh(m.c(v) + torch.cat([m.a(v), m.b(v)], dim=1)), 40, 1, **parts)
    return made, [x(20, 40)]


@hard
def one_output_in_two_shapes() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        halves = v.view(len(v), 2, 20)
        return torch.tanh(m.c(halves) + m.a(v).view(len(v), 2, 20)).flatten(1)

    parts = {"a": nn.Linear(40, 40, bias=False), "c": nn.Linear(20, 20, bias=False)}
    return model(forward, 40, 1, **parts), [x(20, 40)]


@hard
def parts_of_one_input() -> Hard:
    parts = {"p": nn.Parameter(x(40, 30) / 6), "q": nn.Parameter(x(20, 30, seed=1) / 5)}
    return model(lambda m, v: torch.tanh(v @ m.p + v[:, :20] @ m.q), 30, 1, **parts), [x(20, 40)]


@hard
def a_model_that_changes_its_input() -> Hard:
    return model(lambda m, v: torch.tanh(m.a(v.clamp_(-1, 1))), a=nn.Linear(D, 6)), [x(N, D), x(N, D, seed=1)]


@hard
def an_input_changed_after_its_use() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        h = 2 * m.a(v)
        z = h + m.p
        h.mul_(3)
        return torch.tanh(z + h)

    return model(forward, a=nn.Linear(D, 6), p=nn.Parameter(x(6))), [x(N, D)]


@hard
def a_model_that_catches_errors() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        try:
            return torch.tanh(m.a(v.squeeze(1)))
        except Exception:
            return v.new_zeros(len(v), 6)

    return model(forward, a=nn.Linear(D, 6)), [x(N, 1, D), x(N, 1, D, seed=1)]


@hard
def one_attention_in_two_ways() -> Hard:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        return torch.tanh(m.a(v, v.flip(1), v.flip(1))[0] + m.a(v, v, v)[0]).mean(dim=1)

    return model(forward, 8, a=nn.MultiheadAttention(8, 2, batch_first=True)), [x(N, 3, 8)]


@hard
def hooks() -> Hard:
    made = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, C)).double()
    made[0].register_forward_hook(lambda module, inputs, output: output * 2)
    made[2].register_full_backward_hook(lambda module, inner, outer: (inner[0] * 3,))
    return made, [x(N, D)]
