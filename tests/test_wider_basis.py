"""basis="all_layers": gradients projected onto the activations of every layer, against the dense truth."""

import numpy as np
import pytest
import torch
from torch import nn

from richbll import RichBLL, load
from richbll.errors import ModelError, OptionError, RichBLLWarning
from tests.cases import Forward, make
from tests.reference import dense

SIGMA2, TAU2, RIDGE = 0.3, 0.7, 0.01


def activations(model: nn.Module, x: torch.Tensor, taps: dict[str, int]) -> np.ndarray:
    """Inputs of the named layers, by running the model, averaged over all axes but the batch and the given one."""
    found = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda _m, args, _o, name=name: found.update({name: args[0]}))
        for name in taps
    ]
    with torch.no_grad():
        model.eval()(x)
    for hook in hooks:
        hook.remove()
    parts = []
    for name, axis in taps.items():
        given = found[name].double().movedim(axis, -1)
        parts.append(given.reshape(len(x), -1, given.shape[-1]).mean(1))
    return torch.cat(parts, 1).numpy()


CASES = {
    "mlp": {"0": -1, "2": -1},
    "cnn_batchnorm_groups": {"0": 1, "3": 1},
    "resnet_block": {"stem": 1, "conv1": 1, "conv2": 1},
    "transformer_layer": {"layer.linear1": -1, "layer.linear2": -1},
}


def prior_and_features(name: str, c: int, k: int):
    case = make(name, c, torch.float64)
    train, test = (dense.jacobians(case.model, case.last_layer, (x,)) for x in (case.train, case.test))
    wide = [
        np.hstack([j.phi_r[k], activations(case.model, x, CASES[name])])
        for j, x in ((train, case.train), (test, case.test))
    ]
    A = dense.projection(wide[0], train.phi_m[k], RIDGE)
    own = np.diag((np.arange(wide[0].shape[1]) < train.phi_r.shape[2]).astype(float))
    return case, wide, A.T @ A + own, own


def covariance(P: np.ndarray, wide) -> np.ndarray:
    train, test = wide
    return dense.gp_covariance(TAU2 * train @ P @ train.T, TAU2 * test @ P @ train.T, TAU2 * test @ P @ test.T, SIGMA2)


@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("name", list(CASES))
def test_equals_dense_truth(name: str, num_outputs: int) -> None:
    options = {"noise_variance": SIGMA2, "prior_variance": TAU2, "ridge": RIDGE, "basis": "all_layers"}
    for k in range(num_outputs):
        case, wide, P, own = prior_and_features(name, num_outputs, k)
        uq = RichBLL(case.model, **options).fit(list(case.train.split(17)))
        want = covariance(P, wide)
        np.testing.assert_allclose(uq.joint(case.test).covariance[k].numpy(), want, rtol=1e-6, atol=1e-8 * want.max())
        np.testing.assert_allclose(uq.predict(case.test).epistemic_variance[:, k].numpy(), want.diagonal(), rtol=1e-6)
        plain = RichBLL(case.model, **options, enrich=False).fit(case.train).joint(case.test).covariance[k]
        np.testing.assert_allclose(plain.numpy(), covariance(own, wide), rtol=1e-6, atol=1e-8 * want.max())
        difference = uq.joint(case.test).covariance[k] - plain
        assert torch.linalg.eigvalsh(difference).min() >= -1e-9 * want.max()  # rich is never below plain


def test_plain_is_the_plain_last_layer_whatever_the_basis() -> None:
    case = make("mlp", 1, torch.float64)
    a, b = (
        RichBLL(case.model, noise_variance=SIGMA2, enrich=False, basis=basis).fit(case.train).predict(case.test)
        for basis in ("last_layer", "all_layers")
    )
    torch.testing.assert_close(a.epistemic_variance, b.epistemic_variance)


def test_a_wider_basis_leaves_a_smaller_residual() -> None:
    case = make("mlp", 1, torch.float64)
    residual = {
        basis: RichBLL(case.model, noise_variance=SIGMA2, basis=basis, ridge=0.0)
        .fit(case.train)
        .diagnose(case.train)
        .residual
        for basis in ("last_layer", "all_layers")
    }
    assert residual["all_layers"] < 0.95 * residual["last_layer"]


def test_everything_else_works_with_it(tmp_path) -> None:
    case = make("cnn_batchnorm_groups", 2, torch.float64)
    y = torch.randn(60, 2).double()
    uq = RichBLL(case.model, noise_variance=SIGMA2, ridge=RIDGE, basis="all_layers").fit((case.train, y))
    uq.save(tmp_path / "uq.safetensors")
    again = load(tmp_path / "uq.safetensors", case.model)
    assert torch.equal(again.predict(case.test).std, uq.predict(case.test).std)
    _, variance = uq.as_module()(case.test)
    torch.testing.assert_close(variance, uq.predict(case.test).epistemic_variance)
    program = torch.export.export(uq.as_module(), (case.test,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.testing.assert_close(program.module()(case.train)[1], uq.predict(case.train).epistemic_variance)
    assert uq.sample_functions(3)(case.test).shape == (3, 9, 2)
    x = case.test.clone().requires_grad_()
    uq.predict(x).std.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(uq.log_marginal_likelihood()).all()
    before = uq.predict(case.test).std
    assert bool((uq.update((case.test, torch.zeros(9, 2))).predict(case.test).std < before).all())
    assert uq.predict(case.test[:0]).std.shape == (0, 2)


def test_classes_with_it() -> None:
    case = make("mlp", 3, torch.float64)
    labels = torch.randint(3, (60,))
    wide = RichBLL(case.model, "classification", basis="all_layers").fit((case.train, labels)).predict(case.test)
    usual = RichBLL(case.model, "classification").fit((case.train, labels)).predict(case.test)
    assert not torch.allclose(wide.logit_variance, usual.logit_variance, rtol=1e-3)


def test_misuse() -> None:
    with pytest.raises(OptionError, match="basis='both'"):
        RichBLL(nn.Linear(2, 1), basis="both")

    def forward(m, x):
        h = torch.tanh(m.first(x))
        return m.head(m.second(h) if len(x) > 30 else h)

    model = Forward(forward, first=nn.Linear(4, 6), second=nn.Linear(6, 6), head=nn.Linear(6, 1))
    uq = RichBLL(model, noise_variance=1.0, basis="all_layers", parameters=lambda name: "first" in name, enrich=False)
    uq.fit([torch.randn(40, 4)])
    with pytest.raises(ModelError, match="'second' received nothing"):
        uq.predict(torch.randn(5, 4))


def test_padding_does_not_change_an_answer() -> None:
    def forward(m, tokens, mask):
        h = torch.tanh(m.second(torch.tanh(m.first(m.words(tokens)))))
        pooled = (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return m.head(torch.tanh(m.last(pooled)))

    layers = {"first": nn.Linear(5, 6), "second": nn.Linear(6, 6), "last": nn.Linear(6, 6), "head": nn.Linear(6, 1)}
    model = Forward(forward, words=nn.Embedding(9, 5), **layers)
    tokens, mask = torch.randint(9, (60, 4)), torch.ones(60, 4)
    uq = RichBLL(model, noise_variance=1.0, basis="all_layers").fit([{"tokens": tokens, "mask": mask}])
    padded = {"tokens": nn.functional.pad(tokens, (0, 9)), "mask": nn.functional.pad(mask, (0, 9))}
    torch.testing.assert_close(uq.predict(padded).std, uq.predict({"tokens": tokens, "mask": mask}).std)


def test_a_layer_that_sees_positions_first_is_left_out() -> None:
    def forward(m, x):
        return m.head(torch.tanh(m.hidden(x.transpose(0, 1))).mean(0))

    model = Forward(forward, hidden=nn.Linear(4, 6), head=nn.Linear(6, 1))
    x = torch.randn(30, 30, 4)
    with pytest.warns(RichBLLWarning, match="found no earlier"):
        uq = RichBLL(model, noise_variance=1.0, basis="all_layers").fit([x])
    torch.testing.assert_close(uq.predict(x[:3]).std, uq.predict(x).std[:3])


@pytest.mark.parametrize("c", [1e-6, 1e6])
def test_rescaled_outputs_give_rescaled_variances(c: float) -> None:
    case = make("mlp", 1, torch.float64)
    scaled = Forward(lambda m, x: c * m.body(x), body=case.model)
    options = {"basis": "all_layers", "ridge": 0.0}
    want = RichBLL(case.model, noise_variance=0.3, **options).fit(case.train).predict(case.test).epistemic_variance
    got = RichBLL(scaled, noise_variance=0.3 * c**2, **options).fit(case.train).predict(case.test).epistemic_variance
    torch.testing.assert_close(got / c**2, want, rtol=1e-7, atol=0)


def test_nothing_to_tap_is_told() -> None:
    model = Forward(lambda m, x: m.head(torch.tanh(m.words(x).mean(1))), words=nn.Embedding(9, 5), head=nn.Linear(5, 1))
    with pytest.warns(RichBLLWarning, match="found no earlier"):
        RichBLL(model, noise_variance=1.0, basis="all_layers", ridge=0.1).fit(torch.randint(9, (50, 4)))
