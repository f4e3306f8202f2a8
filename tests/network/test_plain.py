"""Sequences of torch's own layers are not tried: every layer that they may hold, and all that makes them otherwise."""

import pytest
import torch
from torch import nn

from richbll import RichBLL
from richbll.errors import LastLayerError
from richbll.network import plain
from richbll.network.batches import unpack
from richbll.network.plain import ends_with, is_plain
from richbll.network.records import RecordReader
from tests.network.ruled import assert_equals_truth, by_rule, read, reader_of, truth

X = {n: torch.randn(6, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n, shape in
     {2: (8,), 3: (4, 8), 4: (4, 6, 6), 5: (2, 4, 4, 4)}.items()}  # fmt: skip


def sequence(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    for layer in layers:
        for buffer in layer.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 1.5)
    return nn.Sequential(*layers).double().eval()


def around(kind: type[nn.Module], dims: int) -> nn.Sequential:
    """A network with a layer of this kind, for inputs of so many dimensions."""
    channels = X[dims].shape[1]
    if "Conv" in kind.__name__:
        layer = kind(channels, 4, 3, padding=1)
    elif "Batch" in kind.__name__:
        layer = kind(channels)
    elif "Pool" in kind.__name__:
        layer = kind(2)
    else:
        layer = kind()
    first = nn.Identity() if dims == 2 else {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[dims](channels, channels, 1)
    width = layer.eval().double()(X[dims]).flatten(1).shape[1]
    return sequence(
        first, layer, nn.Sequential(nn.Tanh(), nn.Flatten()), nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, 2)
    )


KINDS = [(kind, min(dims)) for kind, dims in (plain._DIMENSIONS | plain._NORMS).items()]
KINDS += [(nn.BatchNorm1d, 3), *((kind, 2) for kind in plain._ANYWHERE)]


@pytest.mark.parametrize(("kind", "dims"), KINDS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_every_layer_that_is_believed_is_right(kind: type[nn.Module], dims: int, monkeypatch) -> None:
    """Without a trial and without a look, the gradients of every example are autograd's."""
    network, x = around(kind, dims), X[dims]
    assert is_plain(network, unpack(x))
    monkeypatch.setattr(RecordReader, "_same_alone", lambda *_: pytest.fail("a plain model was looked at"))
    reader = reader_of(network, x)
    names = [name for name, _ in network.named_parameters() if not name.startswith("5.")]
    assert by_rule(reader) == set(names)
    assert_equals_truth(reader, read(reader, x), truth(network, x, names), 1e-10)


class Shifted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + x.mean()


def hooked() -> nn.Sequential:
    network = sequence(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 2))
    network[1].register_forward_hook(lambda module, args, output: output + output.mean(dim=0))
    return network


def patched() -> nn.Sequential:
    network = sequence(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 2))
    network[1].forward = lambda x: x.cumsum(dim=0)
    return network


def tied() -> nn.Sequential:
    network = sequence(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2))
    network[2].weight = network[0].weight
    return network


SHARED = nn.Linear(8, 8)
OTHERWISE = {
    "a subclass": sequence(Shifted(8, 5), nn.Tanh(), nn.Linear(5, 2)),
    "a hook": hooked(),
    "a forward of its own": patched(),
    "a tied weight": tied(),
    "a layer twice": sequence(SHARED, nn.Tanh(), SHARED, nn.Linear(8, 2)),
    "batch statistics": sequence(nn.Linear(8, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 2)),
    "a parametrisation": sequence(nn.utils.parametrizations.weight_norm(nn.Linear(8, 5)), nn.Tanh(), nn.Linear(5, 2)),
    "softmax over the batch": sequence(nn.Linear(8, 5), nn.Softmax(dim=0), nn.Linear(5, 2)),
    "flat from the first dimension": sequence(nn.Flatten(0), nn.Linear(48, 2)),
    "training": sequence(nn.Linear(8, 5), nn.Dropout(), nn.Linear(5, 2)).train(),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_like_any_other_model(name: str) -> None:
    assert not is_plain(OTHERWISE[name], unpack(X[2]))


def test_inputs_that_are_like_any_other() -> None:
    convolution = sequence(nn.Conv2d(6, 3, 3), nn.Flatten(), nn.Linear(24, 2))
    assert not is_plain(convolution, unpack(X[3]))  # one image without a batch
    dense = sequence(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 2))
    assert is_plain(dense, unpack(X[2]))
    assert not is_plain(dense, unpack({"input": X[2]}))
    assert not is_plain(dense, unpack(X[3]))  # several positions up to the end
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_plain(dense, unpack(X[2]))
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    try:
        assert not is_plain(dense, unpack(X[2]))
    finally:
        handle.remove()


def test_a_plain_model_and_the_same_one_that_is_looked_at(monkeypatch) -> None:
    network, x = around(nn.Conv2d, 4), X[4]
    found = []
    for believed in (True, False):
        if not believed:
            monkeypatch.setattr("richbll.network.trial.is_plain", lambda *_: False)
        found.append(RichBLL(network, noise_variance=0.1, ridge=0.1).fit(x).predict(x).epistemic_variance)
    torch.testing.assert_close(*found, rtol=1e-12, atol=0)


def test_a_plain_model_needs_no_backward_pass_before_it_is_read(monkeypatch) -> None:
    """What is known of its gradients without one, their shapes, is what a trial finds out."""
    network, x = around(nn.Conv2d, 4), X[4]
    monkeypatch.setattr("richbll.network.trial.is_plain", lambda *_: False)
    tried = reader_of(network, x).shapes
    monkeypatch.undo()
    monkeypatch.setattr(torch.autograd, "grad", lambda *_, **__: pytest.fail("a backward pass"))
    believed = reader_of(network, x).shapes
    assert believed == tried
    assert believed[0].kind == "convolution"
    assert believed[-1].kind == "linear"


@pytest.mark.parametrize("solver", ["exact", "cross", "sketch"])
def test_what_follows_the_last_layer_is_noticed_in_every_batch(solver: str) -> None:
    """A ReLU that is open for the examples that are tried first, of a model that is plain otherwise."""
    network = sequence(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 1), nn.ReLU())
    x = X[2].repeat(30, 1) + 0.1 * torch.randn(180, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = network[:3](x).squeeze(1)
        network[2].bias -= output.median()
    x = x[output.argsort(descending=True)]
    assert is_plain(network, unpack(x))
    assert not ends_with(network, "2")
    with pytest.raises(LastLayerError, match="depends on the input"):
        RichBLL(network, noise_variance=0.1, solver=solver).fit(x)


def test_an_attempt_that_fails_is_followed_by_the_next(monkeypatch) -> None:
    network, x = around(nn.Conv2d, 4), X[4]
    monkeypatch.setattr("richbll.network.capture.Capture.gradients_of_zeros", lambda *_: 1 / 0)
    assert by_rule(reader_of(network, x)) == {name for name, _ in network.named_parameters() if name[0] != "5"}
