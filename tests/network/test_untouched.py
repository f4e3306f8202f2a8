"""The user's model comes back as it was, also when something raises half-way."""

import copy

import pytest
import torch
from torch import nn

from richbll import RichBLL
from tests.cases import Forward, make

X = torch.randn(40, 2, 6, 6)


def snapshot(model: nn.Module) -> dict:
    return {
        "flags": [module.training for module in model.modules()],
        "hooks": [len(m._forward_pre_hooks) + len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()],
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "grads": [parameter.grad for parameter in model.parameters()],
        "requires": [parameter.requires_grad for parameter in model.parameters()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
    }


def same(before: dict, after: dict) -> None:
    for key in ("flags", "hooks", "grads", "requires", "attributes"):
        assert before[key] == after[key], key
    for name, tensor in before["weights"].items():
        assert torch.equal(tensor, after["weights"][name]), name


def mixed_flags() -> nn.Module:
    model = make("cnn_batchnorm_groups", 1, torch.float32).model
    model.train()
    model[1].eval()
    model[4].training = False
    return model


def use(uq: RichBLL) -> None:
    uq.fit(X)
    x = X[:3].clone().requires_grad_()
    uq.predict(x).std.sum().backward()
    assert x.grad is not None
    uq.joint(X[:3])
    uq.sample_functions(2)(X[:3])
    uq.as_module()(X[:3])


def test_everything_is_as_before() -> None:
    model = mixed_flags()
    before = snapshot(model)
    use(RichBLL(model, noise_variance=1.0))
    same(before, snapshot(model))


@pytest.mark.parametrize("when", [0, 3, 9])
def test_also_after_an_error_half_way(when: int) -> None:
    model = mixed_flags()
    before = snapshot(model)

    def failing():
        yield from X.split(10)[: when % 4]
        raise KeyboardInterrupt if when == 9 else OSError("disk")

    uq = RichBLL(model, noise_variance=1.0).fit(X)
    answer = uq.predict(X[:3]).std
    with pytest.raises((OSError, KeyboardInterrupt)):
        uq.fit(failing())
    same(before, snapshot(model))
    assert torch.equal(uq.predict(X[:3]).std, answer)  # the earlier fit is still there


def test_dropout_and_batchnorm_are_in_eval_mode_during_the_fit() -> None:
    training, evaluated = mixed_flags(), mixed_flags().eval()
    evaluated.load_state_dict(training.state_dict())
    a = RichBLL(training.train(), noise_variance=1.0).fit(X).predict(X)
    b = RichBLL(evaluated, noise_variance=1.0).fit(X).predict(X)
    assert torch.equal(a.epistemic_variance, b.epistemic_variance)
    assert torch.equal(a.mean, b.mean)


def test_tensors_that_a_forward_pass_leaves_behind() -> None:
    """Modules that count calls in a buffer, cache activations, or recompute a weight, as old weight_norm does."""

    def forward(m, x):
        m.calls += 1
        m.cache = torch.tanh(m.hidden(x))
        return m.head(m.cache)

    with pytest.warns(FutureWarning, match="weight_norm"):
        hidden = nn.utils.weight_norm(nn.Linear(4, 6))
    model = Forward(forward, hidden=hidden, head=nn.Linear(6, 1))
    model.register_buffer("calls", torch.zeros(1))
    x = torch.randn(40, 4)
    with torch.no_grad():
        model(x)
    weight, cache = model.hidden.weight, model.cache
    RichBLL(model, noise_variance=1.0).fit(x)
    assert model.calls.item() == 1
    assert model.hidden.weight is weight
    assert model.cache is cache
    copy.deepcopy(model)


def test_predictions_carry_no_graph() -> None:
    model = make("mlp", 2, torch.float32)
    uq = RichBLL(model.model, noise_variance=1.0).fit(model.train)
    pred = uq.predict(model.test)
    assert not pred.mean.requires_grad
    assert not pred.std.requires_grad
    assert not any(tensor.requires_grad for tensor in uq._fitted.tensors().values())
