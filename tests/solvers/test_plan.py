"""The plan: what it promises is what the fit does, and what does not fit is said before any work."""

import pytest
import torch
from torch import nn

from richbll import RichBLL
from richbll.errors import DataError, MemoryBudgetError, OptionError, RichBLLWarning
from richbll.network.records import SiteShape
from richbll.solvers import choice, exact
from richbll.solvers.plan import Plan, Size, cheapest_routes, cost, exact_plan
from richbll.solvers.sketch import Sketched
from tests.cases import Forward, make


def wide_mlp(width: int = 256) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def routes(plan) -> dict[str, str]:
    return {step.shape.site[0]: step.route for step in plan.steps}


def test_the_table_names_every_parameter_in_the_models_order_with_its_route() -> None:
    model = wide_mlp()
    plan = RichBLL(model).plan(torch.randn(600, 8))
    assert [step.shape.site[0] for step in plan.steps] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert sum(step.shape.size for step in plan.steps) == 8 * 256 + 256 + 256 * 256 + 256
    text = str(plan)
    assert text.startswith("exact: 600 rows, gradients kept from one pass")
    for word in ("2.weight", "hadamard", "multiply-adds", "bytes", "one forward and backward pass"):
        assert word in text
    assert plan.yard == 3 * 600 * (8 * 256 + 256 + 256 * 256 + 256)


def test_wide_layers_at_one_position_take_the_hadamard_route_and_convolutions_the_explicit_one() -> None:
    assert routes(RichBLL(wide_mlp()).plan(torch.randn(600, 8)))["2.weight"] == "hadamard"
    body = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()]
    convolutions = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1))
    assert set(routes(RichBLL(convolutions).plan(torch.randn(600, 3, 16, 16))).values()) == {"explicit"}


def test_formed_gradients_are_multiplied_with_each_other_where_there_are_fewer_rows_than_directions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 200, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(200, 1))
    assert routes(RichBLL(model).plan(torch.randn(80, 3, 16, 16)))["0.weight"] == "gram"


@pytest.mark.parametrize("rows", [50, 400, 3000])
@pytest.mark.parametrize("width", [16, 64, 256])
def test_the_chosen_routes_are_the_cheapest_of_all(width: int, rows: int) -> None:
    """Against every combination of routes, with the price of UᵀKU where any needs it."""
    from itertools import product

    shapes = RichBLL(wide_mlp(width)).plan(torch.randn(8, 8)).steps
    weights = [step.shape for step in shapes if step.shape.site[0].endswith("weight")]
    size = Size(rows, width + 1, 1, 2**40)

    def price(chosen: tuple[str, ...]) -> float:
        total = sum(cost(shape, route, size) for shape, route in zip(weights, chosen, strict=True))
        shared = rows**2 * size.rank / 2 + rows * size.rank**2
        return total + (shared if set(chosen) != {"explicit"} else 0)

    found = cheapest_routes(weights, size, 2**40)
    best = min(product(["explicit", "hadamard", "gram"], repeat=len(weights)), key=price)
    # the greedy choice may keep K for one layer too many, never at more than the price of UᵀKU
    assert price(tuple(found[shape.site] for shape in weights)) <= 1.2 * price(best)


def test_a_small_layer_joins_a_route_that_is_there_anyway() -> None:
    """8 × 50 weights beside 50 × 50 ones; a large layer whose own route is cheaper stays with it."""
    small = [step.shape for step in RichBLL(wide_mlp(50)).plan(torch.randn(8, 8)).steps]
    assert set(cheapest_routes(small, Size(1000, 51, 1, 2**40), 2**40).values()) == {"hadamard"}
    large = [step.shape for step in RichBLL(wide_mlp(256)).plan(torch.randn(8, 8)).steps]
    found = cheapest_routes(large, Size(10_000, 257, 1, 2**40), 2**40)
    assert (found["0.weight", 0], found["2.weight", 0]) == ("explicit", "hadamard")


def test_gradients_are_formed_for_all_rows_only_where_they_fit() -> None:
    """With fewer than two rows per direction K of formed gradients is the cheapest, but takes N m numbers, twice."""
    conv = SiteShape(("w", 0), 10_000, "convolution", positions=64, widths=(10, 1000), row_bytes=1000, output_bytes=100)
    N, rank = 300, 290
    for memory, route in ((16 * N * conv.size, "gram"), (16 * N * conv.size - 1, "explicit")):
        plan = exact_plan([conv], Size(N, rank, 1, memory), may_cache=True)
        assert plan.cached
        assert routes(plan) == {"w": route}
        assert plan.num_bytes <= memory


def test_gradients_are_not_formed_for_a_small_gain() -> None:
    """To put them into memory costs as much as a hundred multiply-adds for each number."""
    conv = SiteShape(("w", 0), 10_000, "convolution", positions=64, widths=(10, 1000), row_bytes=1000, output_bytes=100)
    for N, route in ((100, "explicit"), (300, "gram")):
        assert routes(exact_plan([conv], Size(N, N - 10, 1, 2**40), may_cache=True)) == {"w": route}


@pytest.mark.parametrize("budget", ["1GiB", "10MB"])
def test_k_of_long_sequences_is_not_between_positions(budget: str, monkeypatch) -> None:
    """A linear layer at many positions with few rows: its gradients are formed, as the plan says."""
    model = Forward(
        lambda m, x: m.head(torch.tanh(m.hidden(x)).mean(dim=1)), hidden=nn.Linear(6, 200), head=nn.Linear(200, 1)
    )
    x = torch.randn(200, 64, 6)
    met = []
    original = exact.gram_energy
    monkeypatch.setattr(exact, "gram_energy", lambda rows, *rest: met.append(rows) or original(rows, *rest))
    uq = RichBLL(model, noise_variance=0.1, ridge=1e-3, memory_budget=budget, solver="exact")
    promised = routes(uq.plan(list(x.split(50))))
    assert promised["hidden.weight"] == "gram"
    got = uq.fit(list(x.split(50))).predict(x).epistemic_variance
    assert ("hidden.weight", 0) in met[0].dense
    monkeypatch.setattr(exact.Plan, "by_route", lambda plan, *routes: _explicit(plan, routes))
    want = RichBLL(model, noise_variance=0.1, ridge=1e-3, solver="exact").fit(x).predict(x).epistemic_variance
    torch.testing.assert_close(got, want, rtol=1e-4, atol=0)
    assert len(met) == 1


def _explicit(plan: Plan, routes: tuple[str, ...]) -> list[SiteShape]:
    return [step.shape for step in plan.steps] if "explicit" in routes else []


def test_less_memory_means_reading_twice_then_in_blocks() -> None:
    case = make("cnn_batchnorm_groups", 1, torch.float32)
    data = list(case.train.split(16))
    kept, twice, blocks = (RichBLL(case.model, memory_budget=m).plan(data) for m in ("1GiB", "150kB", "40kB"))
    assert kept.cached
    assert not twice.cached
    assert "a pass for features" in str(twice)
    assert twice.num_passes < blocks.num_passes
    assert blocks.num_bytes <= 40_000 / 4 * 1.1


def test_what_the_plan_says_is_what_the_fit_does(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(exact, "exact_plan", lambda *a, **k: made.append(exact_plan(*a, **k)) or made[-1])
    model, data = wide_mlp(), list(torch.randn(600, 8).split(200))
    uq = RichBLL(model, noise_variance=1.0)
    promised = uq.plan(data)
    uq.fit(data)
    (made_of_known_rank,) = made
    assert routes(made_of_known_rank) == routes(promised)
    assert (made_of_known_rank.cached, made_of_known_rank.num_rows) == (promised.cached, promised.num_rows)


def test_a_stream_is_added_up_exactly_where_that_fits_and_sketched_where_not() -> None:
    model, batches = wide_mlp(64), list(torch.randn(200, 8).split(50))
    sure = RichBLL(model, noise_variance=1.0, ridge=1.0).fit(batches)
    uq = RichBLL(model, noise_variance=1.0, ridge=1.0).fit(iter(batches))
    a, b = (u.predict(batches[0]).epistemic_variance for u in (sure, uq))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=0)
    with pytest.warns(
        RichBLLWarning, match=r"4,736 parameters takes 2\.349 MiB.*memory_budget \(2\.5\d* MiB\).*sketched"
    ):
        uq = RichBLL(model, noise_variance=1.0, ridge=1.0, memory_budget=2_700_000).fit(iter(batches))
    b = uq.predict(batches[0]).epistemic_variance
    assert not torch.allclose(a, b, rtol=1e-4)
    torch.testing.assert_close(a, b, rtol=0.1, atol=0)


def test_so_little_memory_that_exact_would_read_the_data_for_ever_means_a_sketch() -> None:
    model, batches = wide_mlp(256), list(torch.randn(5000, 8).split(500))
    plan = RichBLL(model, memory_budget="9MB").plan(batches)
    assert plan.solver == "sketch"
    assert "not exact" in str(plan)
    # where not even a sketch fits, reading the data often is still exact
    assert RichBLL(model, memory_budget="1MB").plan(batches).num_passes > 16
    with pytest.raises(MemoryBudgetError, match=r"sketch of 2048 numbers.*takes 4\.016 MiB, .*leaves 488\.3 KiB"):
        RichBLL(model, memory_budget="1MB", solver="sketch").plan(batches)
    with pytest.raises(
        MemoryBudgetError, match=r"One parameter with 1 output\(s\) and 257 directions takes 2\.0\d* KiB"
    ):
        RichBLL(model, memory_budget="8kB").plan(batches)


def test_nothing_is_read_but_one_batch_and_iterators_are_refused() -> None:
    taken = []

    class Loader:
        def __len__(self):
            return 10

        def __iter__(self):
            for _ in range(10):
                taken.append(1)
                yield torch.randn(20, 8)

    plan = RichBLL(wide_mlp(16)).plan(Loader())
    assert plan.num_rows == 200
    assert len(taken) == 1
    with pytest.raises(DataError, match="iterator would then have lost it"):
        RichBLL(wide_mlp(16)).plan(iter([torch.randn(20, 8)]))


def test_a_subsample_is_planned_for() -> None:
    model, x = wide_mlp(16), torch.randn(512, 8)
    assert RichBLL(model, subsample=100).plan(x).num_rows == 100
    assert RichBLL(model, subsample=0.25).plan(x).num_rows == 128
    assert RichBLL(model, subsample=3).plan(x).num_rows == 17  # never below r


def test_other_solvers() -> None:
    model, x = wide_mlp(16), torch.randn(512, 8)
    assert RichBLL(model, solver="cross").plan(x).num_bytes == 8 * 17 * (8 * 16 + 16 + 16 * 16 + 16)
    assert RichBLL(model, solver=Sketched(size=128)).plan(x).num_bytes <= 8 * 17 * 128
    with pytest.raises(OptionError, match="no plan for a solver of your own"):
        RichBLL(model, solver=lambda network, stream, memory: None).plan(x)
    assert choice._MOST_PASSES > 1
