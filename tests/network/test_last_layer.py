"""Finding the last layer, and refusing what is not one, with a reason."""

import pytest
import torch
from torch import nn

from richbll import RichBLL
from richbll.errors import LastLayerError, ModelError, NonFiniteError
from richbll.network.batches import unpack
from richbll.network.last_layer import find_last_layer
from tests.cases import CASES, Forward, make

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))


def two_layers(forward, c: int = 2, **more) -> nn.Module:
    torch.manual_seed(0)
    return Forward(forward, hidden=nn.Linear(4, 6), head=nn.Linear(6, c), **more)


@pytest.mark.parametrize("name", list(CASES))
def test_found_by_running(name: str) -> None:
    case = make(name, 2, torch.float64)
    case.model.eval()
    assert find_last_layer(case.model, unpack(case.train)).name == case.last_layer


def test_found_by_execution_not_by_registration() -> None:
    model = Forward(lambda m, x: m.head(torch.tanh(m.hidden(x))), head=nn.Linear(6, 2), hidden=nn.Linear(4, 6))
    assert find_last_layer(model, unpack(X)).name == "head"


def test_an_auxiliary_head_that_runs_later_is_passed_over() -> None:
    def forward(m, x):
        h = torch.tanh(m.hidden(x))
        out = m.head(h)
        m.auxiliary(h.detach())
        return out

    assert find_last_layer(two_layers(forward, auxiliary=nn.Linear(6, 2)), unpack(X)).name == "head"


def test_factors_of_a_read_out() -> None:
    found = find_last_layer(make("mup_readout", 2, torch.float64).model, unpack(X.double()))
    assert found.weight_factor == pytest.approx(10**-0.5, rel=1e-12)
    assert found.bias_factor == 1.0
    found = find_last_layer(make("scaled_and_shifted_output", 2, torch.float64).model, unpack(X.double()))
    assert found.weight_factor == pytest.approx(0.2, rel=1e-12)
    assert found.bias_factor == pytest.approx(0.2, rel=1e-12)


@pytest.mark.parametrize("requested", ["head", "module"])
def test_requested(requested: str) -> None:
    model = two_layers(lambda m, x: m.head(torch.tanh(m.hidden(x))))
    wanted = model.head if requested == "module" else "head"
    assert find_last_layer(model, unpack(X), wanted).name == "head"


def test_called_by_keyword() -> None:
    model = two_layers(lambda m, x: m.head(input=torch.tanh(m.hidden(x))))
    uq = RichBLL(model, noise_variance=1.0).fit(X)
    assert uq.predict(X).std.shape == (40, 2)


def tie(model: nn.Module) -> nn.Module:
    model.head.weight = model.words.weight
    return model


REFUSED = {
    "softmax after it": (
        lambda: two_layers(lambda m, x: m.head(m.hidden(x)).softmax(-1)),
        "not 'head' up to a constant",
    ),
    "tanh after it": (lambda: two_layers(lambda m, x: torch.tanh(m.head(m.hidden(x)))), "not 'head' up to a constant"),
    "a factor per output": (
        lambda: two_layers(lambda m, x: m.head(m.hidden(x)) * torch.tensor([1.0, 2.0])),
        "not 'head' up to a constant",
    ),
    "outputs permuted": (lambda: two_layers(lambda m, x: m.head(m.hidden(x)).flip(-1)), "not 'head' up to a constant"),
    "a skip around it": (lambda: two_layers(lambda m, x: m.head(m.hidden(x)) + x[:, :2]), "by-passes that layer"),
    "used twice": (
        lambda: two_layers(lambda m, x: m.head(m.hidden(x)) + m.head(torch.sin(m.hidden(x)))),
        "run 2 times",
    ),
    "weight used elsewhere": (
        lambda: two_layers(lambda m, x: m.head(m.hidden(x) + torch.sin(m.hidden(x) @ m.head.weight.T @ m.head.weight))),
        "not 'head' up to a constant",
    ),
    "several positions": (
        lambda: two_layers(lambda m, x: m.head(m.hidden(x).unsqueeze(1).repeat(1, 3, 1)).mean(1)),
        "several positions",
    ),
    "no linear layer": (lambda: nn.Sequential(nn.Conv1d(4, 2, 1), nn.Flatten()), "no nn.Linear at all"),
    "part of its outputs": (
        lambda: two_layers(lambda m, x: m.head(m.hidden(x))[:, :1]),
        "has 2 outputs but the model returns 1",
    ),
    "parametrised": (
        lambda: nn.Sequential(nn.Linear(4, 3), torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))),
        "remove parametrisations",
    ),
}


@pytest.mark.parametrize("why", list(REFUSED))
def test_refused_with_the_reason(why: str) -> None:
    make_model, reason = REFUSED[why]
    torch.manual_seed(0)
    x = X.unsqueeze(-1) if why == "no linear layer" else X
    with pytest.raises(LastLayerError, match=reason):
        RichBLL(make_model(), noise_variance=1.0).fit(x)


def test_a_tied_head_is_refused() -> None:
    def forward(m, x):
        return m.head(m.words(x).mean(1))

    model = tie(Forward(forward, words=nn.Embedding(7, 5), head=nn.Linear(5, 7)))
    with pytest.raises(LastLayerError, match=r"shares its weights with 'words.weight'"):
        RichBLL(model, noise_variance=1.0).fit(torch.randint(7, (20, 3)))


def test_a_relu_that_only_later_examples_reach_is_noticed() -> None:
    model = two_layers(lambda m, x: torch.relu(m.head(m.hidden(x))), c=1)
    with torch.no_grad():
        model.head.bias.fill_(3.0)
    far = torch.tensor([[-50.0, 50.0, -50.0, 50.0], [50.0, -50.0, 50.0, -50.0]]) * torch.ones(2, 1)
    with pytest.raises(LastLayerError, match="On batch 1"):
        RichBLL(model, noise_variance=1.0).fit([0.1 * X, far])


def test_unknown_name_lists_the_linear_layers() -> None:
    with pytest.raises(LastLayerError, match=r"no module 'top'. Its linear layers: hidden, head"):
        RichBLL(two_layers(lambda m, x: m.head(m.hidden(x))), noise_variance=1.0, last_layer="top").fit(X)
    with pytest.raises(LastLayerError, match="not part of the model"):
        RichBLL(two_layers(lambda m, x: m.head(m.hidden(x))), noise_variance=1.0, last_layer=nn.Linear(2, 2)).fit(X)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda m, x: (m.head(m.hidden(x)), x), "returned tuple"),
        (lambda m, x: m.head(m.hidden(x)).mean(), "returned shape \\(\\) for a batch"),
        (lambda m, x: m.head(m.hidden(x)).argmax(1), "floating-point"),
    ],
)
def test_outputs_that_are_not_one_row_per_example(forward, reason) -> None:
    with pytest.raises(ModelError, match=reason):
        RichBLL(two_layers(forward), noise_variance=1.0).fit(X)


def test_nan_weights_are_named_as_such() -> None:
    model = two_layers(lambda m, x: m.head(m.hidden(x)))
    with torch.no_grad():
        model.hidden.weight[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"Parameter 'hidden.weight' holds NaN or Inf in 1 of 24"):
        RichBLL(model, noise_variance=1.0).fit(X)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ending", ["linear", "identity"])
def test_the_end_of_a_plain_sequence_is_what_looking_finds(bias: bool, ending: str, monkeypatch) -> None:
    """Known from its type, or checked by running: the same name, factors and constant."""
    layers = [nn.Linear(4, 6), nn.Sequential(nn.ReLU(), nn.Linear(6, 3, bias=bias))]
    model = nn.Sequential(*layers, *([nn.Identity()] if ending == "identity" else [])).double().eval()
    known = find_last_layer(model, unpack(X.double()))
    monkeypatch.setattr("richbll.network.last_layer.is_plain", lambda *_: False)
    looked = find_last_layer(model, unpack(X.double()))
    torch.testing.assert_close(known.constant, looked.constant, rtol=1e-12, atol=1e-12)
    assert known.name == looked.name == "1.1"
    for what in ("num_inputs", "num_outputs", "has_bias", "weight_factor", "bias_factor"):
        assert getattr(known, what) == getattr(looked, what)


def test_a_plain_sequence_that_does_not_run_is_named() -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))
    with pytest.raises(ModelError, match=r"does not run on the first rows of batch 0 .*cannot be multiplied"):
        RichBLL(model, noise_variance=0.1).fit(X)


def test_a_plain_sequence_with_more_than_its_layers_is_looked_at() -> None:
    """A head that has another name, another parameter, or a bias that is none; a leaf with a layer that never runs."""

    def model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

    alias = model()
    alias.head_weight = alias[2].weight
    with pytest.raises(LastLayerError, match="shares its weights with 'head_weight'"):
        find_last_layer(alias, unpack(X))
    wider = model()
    wider[2].register_parameter("lora", nn.Parameter(torch.zeros(1)))
    with pytest.raises(LastLayerError, match="has the parameters"):
        find_last_layer(wider, unpack(X))
    fixed = model()
    bias = fixed[2].bias.detach()
    del fixed[2].bias
    fixed[2].register_buffer("bias", bias)
    assert not find_last_layer(fixed, unpack(X)).has_bias
    spare = nn.Sequential(*model(), nn.Identity())
    spare[3].spare = nn.Linear(2, 2)
    assert find_last_layer(spare, unpack(X)).name == "2"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bias_that_changes_after_the_fit_is_noticed(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).to(dtype)
    x = X.to(dtype)
    uq = RichBLL(model, noise_variance=0.1).fit((x, x[:, :1]))
    with torch.no_grad():
        model[2].bias += 100
    with pytest.raises(LastLayerError, match="differs from its last layer"):
        uq.update((x, x[:, :1]))
