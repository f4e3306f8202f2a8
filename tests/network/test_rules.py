"""Every feature of every rule: read by rule, and equal to plain autograd in every form that solvers ask for."""

import copy

import pytest
import torch
from torch import nn

from richbll.network.batches import unpack
from richbll.network.rows import Rows
from richbll.network.structure import Gradient, Outer, Windows
from richbll.solvers.routes.gram import Rowwise
from tests.network.features import FEATURES, C, D, N, T
from tests.network.ruled import ChosenOutput, assert_equals_truth, by_rule, chosen, read, reader_of, truth

# remarks of torch on what it does inside of these models
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:Sparse"),
]


@pytest.mark.parametrize("name", list(FEATURES))
def test_read_by_rule_and_equal_to_autograd(name: str) -> None:
    feature = FEATURES[name]()
    model, x, names = feature.model, feature.x, feature.names
    reader = reader_of(model, x, counts=feature.counts)
    assert set(names) - by_rule(reader) == set(feature.general)
    want = truth(model, x, names)
    records = read(reader, x)
    assert_equals_truth(reader, records, want, 1e-10)
    for gradients in records[0].gradients.values():
        for gradient in gradients:
            check_forms(gradient)

    # other numbers of rows, also as many as positions or features; and in pieces of a few rows
    for n in (1, 2, D, T):
        assert_equals_truth(reader, read(reader, x[:n]), {key: value[:, :n] for key, value in want.items()}, 1e-10)
    few = 3 * max(reader._trial.activation_bytes, 1)
    in_parts = read(reader, x, room=few)
    assert_equals_truth(reader, in_parts, want, 1e-10)
    assert reader._rules_hold == bool(by_rule(reader))

    # one chosen output of each example
    one = reader_of(model, x, ChosenOutput(), counts=feature.counts)
    assert by_rule(one) == by_rule(reader)
    of_one = {key: value[chosen(N, C), torch.arange(N)].unsqueeze(0) for key, value in want.items()}
    assert_equals_truth(one, read(one, x), of_one, 1e-10)


def check_forms(gradient: Gradient) -> None:
    """Ranges, pieces, what is kept, Gram matrices: against all of it at once."""
    whole = gradient.dense(0, gradient.size)
    c, n, p = whole.shape
    close = {"rtol": 1e-10, "atol": 1e-10 * float(whole.abs().max())}
    for start, stop in {(0, p), (p // 3, p), (0, p - p // 4), (p // 3, p // 3 + 1)}:
        torch.testing.assert_close(gradient.dense(start, stop), whole[:, :, start:stop], **close)
        made = torch.zeros(c, n, stop - start, dtype=whole.dtype)
        for rows, elements, J in gradient.pieces(start, stop):
            made[:, rows, elements] += J
        torch.testing.assert_close(made, whole[:, :, start:stop], **close)
    kept = gradient.kept()
    torch.testing.assert_close(kept.dense(0, p), whole, **close)
    assert not any(tensor.requires_grad for tensor in kept.tensors)
    gram = {"rtol": 1e-10, "atol": 1e-10 * float(whole.abs().max()) ** 2 * p}
    outer = gradient.unfolded() if isinstance(gradient, Windows) else gradient
    if isinstance(outer, Outer):
        everyone = slice(0, n)
        K = Rowwise({("w", 0): [outer]}, {}).blocks(whole.dtype).block(everyone, everyone)
        torch.testing.assert_close(K.expand(c, n, n), whole @ whole.mT, **gram)
    if isinstance(gradient, Rows):
        torch.testing.assert_close(gradient.squared_norms(), whole.square().sum(dim=2), **gram)
        U = torch.randn(n, 3, dtype=whole.dtype)
        torch.testing.assert_close(gradient.product(U, 0, p), whole.mT @ U, **gram)


@pytest.mark.parametrize("name", list(FEATURES))
def test_in_float32(name: str) -> None:
    feature = FEATURES[name]()
    is_float, model = feature.x.is_floating_point(), copy.deepcopy(feature.model).float()
    x = feature.x.float() if is_float else feature.x
    want = truth(copy.deepcopy(model).double(), x.double() if is_float else x, feature.names)
    reader = reader_of(model, x, counts=feature.counts)
    assert set(feature.names) - by_rule(reader) == set(feature.general)
    assert_equals_truth(reader, read(reader, x), want, 1e-4)


def test_each_kind_is_there() -> None:
    """The table reaches every form of gradient, and every rule."""
    made = [FEATURES[name]() for name in ("linear", "conv2d", "embedding", "layer norm", "bilinear")]
    kinds = {shape.kind for feature in made for shape in reader_of(feature.model, feature.x).shapes}
    assert kinds == {"linear", "convolution", "embedding", "vector", "general"}


def test_a_weight_and_its_bias_share_a_factor() -> None:
    made = FEATURES["linear"]()
    reader = reader_of(made.model, made.x)
    record = read(reader, made.x)[0]
    lefts = [record.gradients[(f"body.layer.{p}", 0)][0].left for p in ("weight", "bias")]
    assert lefts[0].data_ptr() == lefts[1].data_ptr()
    assert len({shape.group for shape in reader.shapes}) == 1


@pytest.mark.parametrize("name", ["parts of one output, and a layer onto the whole of it", "x @ P of a part of x"])
def test_factors_that_differ_begin_at_different_addresses(name: str) -> None:
    """A view of a part of a factor begins where the whole does; whoever compares addresses must not be misled."""
    made = FEATURES[name]()
    made.model.head = nn.Linear(6, 1).double()
    reader = reader_of(made.model, made.x)
    record = read(reader, made.x)[0]
    outers = [use for uses in record.gradients.values() for use in uses if isinstance(use, Outer)]
    by_address: dict[int, set[tuple]] = {}
    for outer in outers:
        by_address.setdefault(outer.left.data_ptr(), set()).add((outer.left.shape, outer.left.stride()))
    assert all(len(shapes) == 1 for shapes in by_address.values())
    assert_equals_truth(reader, [record], truth(made.model, made.x, made.names), 1e-10)


def test_bfloat16() -> None:
    """By rule too, and no further from the truth than the rounding of its features."""
    made = FEATURES["transformer encoder layer, norm first"]()
    want = truth(made.model, made.x, made.names)
    reader = reader_of(made.model.to(torch.bfloat16), made.x.to(torch.bfloat16))
    assert by_rule(reader) == set(made.names)
    assert_equals_truth(reader, read(reader, made.x.to(torch.bfloat16)), want, 8 * 2**-7)


def test_records_do_not_hold_the_memory_of_the_inputs() -> None:
    """A loader may fill it again before the gradients are used."""
    made = FEATURES["linear"]()
    reader, x = reader_of(made.model, made.x), made.x.clone()
    (record,) = read(reader, unpack(x))
    x.fill_(torch.nan)
    assert_equals_truth(reader, [record], truth(made.model, made.x, made.names), 1e-10)


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 4), (6, 3, 4, 2), (6, 3, 2, 2, 2)], ids=len)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_batch_norm_by_running_statistics_against_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """By its input and by its parameters, whatever precision the statistics have."""
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    torch.manual_seed(0)
    norm, x = kind(3, eps=0.1).eval(), torch.randn(shape)
    norm.running_mean.copy_(torch.randn(3))
    norm.running_var.copy_(torch.rand(3))
    model = nn.Sequential(nn.Conv1d(3, 3, 1), nn.Unflatten(2, shape[2:])) if len(shape) > 2 else nn.Linear(3, 3)
    model = nn.Sequential(nn.Flatten(2), model, norm) if len(shape) > 2 else nn.Sequential(model, norm)
    model = nn.Sequential(*model, nn.Tanh(), nn.Flatten(), nn.Linear(x[0].numel(), C)).eval()
    rough = 8 * 2**-7 if dtype == torch.bfloat16 else 1e-10 if dtype == torch.float64 else 2e-5
    model, x = (model.double(), x.double()) if dtype == torch.float64 else (model, x)
    names = [name for name, _ in model.named_parameters()][:-2]
    want = truth(copy.deepcopy(model).double(), x.double(), names)
    model, x = model.to(dtype), x.to(dtype)
    if dtype == torch.bfloat16:
        norm.float()  # as mixed models have it
    reader = reader_of(model, x)
    assert by_rule(reader) == set(names)
    assert_equals_truth(reader, read(reader, x), want, rough)
