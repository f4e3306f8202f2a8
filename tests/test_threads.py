"""Several threads with one model, or with one posterior."""

import threading

import pytest
import torch
from torch import nn

from richbll import RichBLL, estimator
from richbll.network.taps import recorded_inputs
from tests.small import WANT, X, fitted, mlp


@pytest.mark.parametrize("how", ["predict", "predict in train mode", "predict with gradient", "as_module"])
def test_two_threads_get_their_own_answers(how: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    model.train(how == "predict in train mode")
    uq = RichBLL(model, noise_variance=0.3, ridge=1.0).fit(torch.randn(200, 4))
    module = uq.as_module()
    inputs = [torch.randn(64, 4), 5 * torch.randn(64, 4)]
    wanted = [uq.predict(x).epistemic_variance for x in inputs]
    wrong: list[object] = []

    def work(x: torch.Tensor, want: torch.Tensor) -> None:
        try:
            for _ in range(60):
                z = x.clone().requires_grad_(how == "predict with gradient")
                got = module(z)[1] if how == "as_module" else uq.predict(z).epistemic_variance
                if not torch.allclose(got, want, rtol=1e-4):
                    wrong.append("other answer")
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Waits(nn.Module):
    """Its forward pass waits, where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 1)
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.body(x))
        self.begun.set()
        self.go_on.wait()
        return self.head(h)


def test_a_fit_that_begins_during_another_threads_predict_leaves_no_hook() -> None:
    model = Waits()
    uq = fitted(model)
    model.begun.clear()
    model.go_on.clear()
    other = threading.Thread(target=lambda: uq.predict(X))
    other.start()
    model.begun.wait()
    second = threading.Thread(target=lambda: fitted(model))
    second.start()
    second.join(timeout=0.2)  # it waits for the first
    model.go_on.set()
    other.join()
    second.join()
    assert [len(module._forward_pre_hooks) for module in model.modules()] == [0, 0, 0]


def test_a_head_is_not_kept_for_another_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    uq, want = fitted(mlp()), fitted(mlp(), prior_variance=100.0).predict(X).epistemic_variance
    made = estimator.head_for

    def meanwhile(*arguments: object) -> object:
        head = made(*arguments)
        monkeypatch.setattr(estimator, "head_for", made)
        uq.prior_variance = 100.0  # by another thread
        return head

    monkeypatch.setattr(estimator, "head_for", meanwhile)
    torch.testing.assert_close(uq.predict(X).epistemic_variance, WANT)
    torch.testing.assert_close(uq.predict(X).epistemic_variance, want)


def test_a_hook_that_is_being_removed_meets_another_threads_call() -> None:
    """torch has listed the hook already, but forgotten that it takes names."""
    layer = nn.Linear(2, 2)
    with recorded_inputs([layer]) as inputs:
        (record,) = layer._forward_pre_hooks.values()
    other = threading.Thread(target=lambda: record(layer, (X,)))
    other.start()
    other.join()
    assert inputs == [[]]
