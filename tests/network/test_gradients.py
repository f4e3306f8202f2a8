"""Gradients by both routes, in blocks, and for models that torch.func refuses."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from richbll import RichBLL
from richbll.errors import ModelError, NonFiniteError, RichBLLWarning
from richbll.network.batches import unpack
from richbll.network.gradients import ExampleGradients, Piece, blocks_of
from tests.cases import CASES, Forward, make
from tests.reference import dense

ROOM = 2**30


def read(reader: ExampleGradients, model, x, sizes, room=ROOM, largest=10**9) -> torch.Tensor:
    batch = unpack(x)
    f = model(x).detach()
    f = f.reshape(len(x), -1)
    parts = []
    for block in blocks_of(sizes, largest):
        rows = [phi_m for _, phi_m in reader.micro_batches(batch, f, block, room)]
        parts.append(torch.cat(rows))
    return torch.cat(parts, dim=2)  # (n, c, m)


@pytest.mark.parametrize("route", ["vectorised", "one by one"])
@pytest.mark.parametrize("name", list(CASES))
def test_both_routes_equal_autograd(name: str, route: str) -> None:
    case = make(name, 2, torch.float64)
    case.model.eval()
    x = case.train[:7]
    own = (f"{case.last_layer}.weight", f"{case.last_layer}.bias")
    sizes = {n: p.numel() for n, p in case.model.named_parameters() if n not in own and p.requires_grad}
    reader = ExampleGradients(case.model, list(sizes))
    if route == "one by one":
        reader.vectorised = False
    want = torch.from_numpy(dense.jacobians(case.model, case.last_layer, (x,)).phi_m).transpose(0, 1)
    torch.testing.assert_close(read(reader, case.model, x, sizes), want, rtol=1e-10, atol=1e-12)
    if name in ("mlp", "cnn_batchnorm_groups", "transformer_layer"):
        assert reader.vectorised == (route == "vectorised")
    if name in ("gru", "control_flow_on_data"):
        assert not reader.vectorised


def test_blocks_and_micro_batches_change_nothing() -> None:
    case = make("mlp", 3, torch.float64)
    sizes = {n: p.numel() for n, p in case.model.named_parameters() if not n.startswith("4.")}
    reader = ExampleGradients(case.model, list(sizes))
    whole = read(reader, case.model, case.train, sizes)
    for largest, room in [(1, ROOM), (7, ROOM), (50, 1), (10**9, 1), (33, 10_000)]:
        torch.testing.assert_close(read(reader, case.model, case.train, sizes, room, largest), whole)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5])
def test_a_fault_in_torchs_vectorising_is_noticed(num_rows: int) -> None:
    """Of the one weight of a PReLU: an error, except for as many examples as outputs, and then the wrong numbers."""
    model = nn.Sequential(nn.Linear(4, 6), nn.PReLU(), nn.Linear(6, 2)).double()
    x = torch.randn(num_rows, 4, dtype=torch.float64)
    sizes = {n: p.numel() for n, p in model.named_parameters() if not n.startswith("2.")}
    want = torch.from_numpy(dense.jacobians(model, "2", (x,)).phi_m).transpose(0, 1)
    torch.testing.assert_close(
        read(ExampleGradients(model, list(sizes)), model, x, sizes), want, rtol=1e-10, atol=1e-12
    )


def test_blocks_cover_every_element_once() -> None:
    blocks = blocks_of({"a": 5, "b": 3, "c": 4}, 4)
    assert blocks == [
        (Piece("a", 0, 4),),
        (Piece("a", 4, 5), Piece("b", 0, 3)),
        (Piece("c", 0, 4),),
    ]


def test_an_unused_parameter_has_gradient_zero_and_is_counted() -> None:
    model = Forward(
        lambda m, x: m.head(torch.tanh(m.hidden(x))),
        hidden=nn.Linear(4, 6),
        unused=nn.Linear(2, 2),
        head=nn.Linear(6, 1),
    )
    sizes = {n: p.numel() for n, p in model.named_parameters() if not n.startswith("head")}
    for vectorised in (True, False):
        reader = ExampleGradients(model, list(sizes))
        reader.vectorised = vectorised
        with nullcontext() if vectorised else pytest.warns(RichBLLWarning, match="does not depend on 2 parameter"):
            phi_m = read(reader, model, torch.randn(5, 4), sizes)
        assert phi_m.shape == (5, 1, 36)
        assert bool((phi_m[..., 30:] == 0).all())


def test_outputs_that_depend_on_the_rest_of_the_batch_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 1))
    with pytest.raises(ModelError, match="depends on the other examples of its batch"):
        RichBLL(model, noise_variance=1.0).fit(torch.randn(40, 4))


def test_infinite_gradients_are_named() -> None:
    model = Forward(lambda m, x: m.head(torch.sqrt(m.hidden(x).abs())), hidden=nn.Linear(4, 6), head=nn.Linear(6, 1))
    x = torch.randn(40, 4)
    with torch.no_grad():
        model.hidden.weight.zero_()
        model.hidden.bias.zero_()
    with pytest.raises(NonFiniteError, match=r"gradients of batch 0"):
        RichBLL(model, noise_variance=1.0).fit(x)
