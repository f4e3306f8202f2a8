"""Networks trained together are the networks that they would have been alone."""

import copy
import shutil

import pytest
import torch
from torch import nn

from richbll_bench.regression import quick
from richbll_bench.regression.network import backbone, rate
from richbll_bench.regression.together import Recipe, Together, orders, select, squared_error, train_for

SEEDS, ROWS, INPUTS = (0, 1, 2), 160, 4
RECIPE = Recipe(epochs=10, batch_size=32, weight_decay=0.1, clip=0.5, every=2)


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(len(SEEDS), ROWS, INPUTS, generator=generator, dtype=torch.float64)
    scale = torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64).view(-1, 1, 1)  # so that some are clipped, others not
    return x, scale * torch.sin(x.sum(dim=2, keepdim=True))


def networks() -> list[nn.Module]:
    return [backbone(INPUTS, seed, width=20).double() for seed in SEEDS]


def alone(network: nn.Module, seed: int, x: torch.Tensor, y: torch.Tensor, epochs: int) -> tuple[nn.Module, set[bool]]:
    """An ordinary loop; also, whether gradients were clipped."""
    groups = [
        {"params": [p], "lr": RECIPE.learning_rate * rate(name, tuple(p.shape))}
        for name, p in network.named_parameters()
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=RECIPE.weight_decay, foreach=False)
    ways, clipped = orders([seed], len(x)), set()
    for _ in range(epochs):
        for batch in next(ways)[0].split(RECIPE.batch_size):
            optimizer.zero_grad()
            (network(x[batch]) - y[batch]).square().mean().backward()
            norm = nn.utils.clip_grad_norm_(network.parameters(), RECIPE.clip)
            clipped.add(bool(norm > RECIPE.clip))
            optimizer.step()
    return network, clipped


@pytest.mark.parametrize("compiled", [False, True])
def test_together_is_alone(rows, compiled: bool, monkeypatch) -> None:
    if compiled and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    calls = []
    monkeypatch.setattr(quick, "_WORTH_COMPILING", 10 if compiled else 1000)
    monkeypatch.setattr(torch, "compile", lambda function, compile=torch.compile: calls.append(1) or compile(function))
    x, y = rows
    states = train_for(Together(networks(), squared_error, RECIPE, rate), SEEDS, rows, [10, 10, 10])  # 50 steps
    clippings = []
    for number, (seed, network) in enumerate(zip(SEEDS, networks(), strict=True)):
        expected, clipped = alone(network, seed, x[number], y[number], 10)
        clippings.append(clipped)
        for name, parameter in expected.named_parameters():
            torch.testing.assert_close(states[number][name], parameter.detach(), rtol=1e-10, atol=1e-10)
    assert clippings[0] == {False}  # the others' large gradients do not clip this one's
    assert clippings[2] == {True}
    assert len(calls) == compiled


def test_without_a_compiler_training_goes_on(rows, monkeypatch) -> None:
    def refuse(_function) -> None:
        raise RuntimeError("No working C++ compiler found\nmore")

    want = train_for(Together(networks(), squared_error, RECIPE, rate), SEEDS, rows, [3, 3, 3])
    monkeypatch.setattr(quick, "_WORTH_COMPILING", 4)
    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.warns(UserWarning, match="goes on without it: No working C\\+\\+ compiler found$"):
        found = train_for(Together(networks(), squared_error, RECIPE, rate), SEEDS, rows, [3, 3, 3])
    for state, expected in zip(found, want, strict=True):
        assert all(torch.equal(state[name], value) for name, value in expected.items())


def test_a_network_that_is_done_leaves_the_others_as_they_are(rows) -> None:
    states = train_for(Together(networks(), squared_error, RECIPE, rate), SEEDS, rows, [2, 9, 4])
    for number, epochs in enumerate([2, 9, 4]):
        longer = train_for(Together(networks(), squared_error, RECIPE, rate), SEEDS, rows, [epochs] * 3)[number]
        for name, value in longer.items():
            torch.testing.assert_close(states[number][name], value, rtol=1e-10, atol=1e-10)


def test_weight_decay_by_parameter(rows) -> None:
    def no_bias(name: str, shape: tuple[int, ...]) -> float:
        return float(name.endswith("weight"))

    models = networks()
    for model in models:
        for parameter in model.parameters():
            nn.init.ones_(parameter)
    together = Together(models, lambda network, x, y: 0 * network(x).sum(), RECIPE, decay=no_bias)
    state = train_for(together, SEEDS, rows, [1] * 3)[0]
    shrunk = (1 - RECIPE.learning_rate * RECIPE.weight_decay) ** 5
    assert torch.allclose(state["0.weight"], torch.full_like(state["0.weight"], shrunk), atol=1e-10)
    assert torch.equal(state["0.bias"], torch.ones_like(state["0.bias"]))


def test_selection_keeps_the_best_look(rows) -> None:
    looks = []
    together = Together(networks(), squared_error, RECIPE, rate)
    look = together.evaluate

    def watched(function, *on):
        looks.append(look(function, *on))
        return looks[-1]

    together.evaluate = watched
    validation = (rows[0][:, :20], rows[1][:, :20])
    found = select(together, SEEDS, rows, validation, RECIPE)
    seen = torch.stack(looks)  # (5, S)
    assert seen.shape == (5, 3)
    for number, one in enumerate(found):
        assert one.error == seen[:, number].min()
        assert one.epochs == 2 * (int(seen[:, number].argmin()) + 1)
        network = copy.deepcopy(networks()[number])
        network.load_state_dict(one.state)
        error = squared_error(network, *(part[number] for part in validation)).detach()
        assert float(error) == pytest.approx(one.error)
