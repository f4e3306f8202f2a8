"""One contract for every solver: whatever lies in solvers/ gives the dense truth, within its memory."""

import importlib

import numpy as np
import pytest
import torch
from torch import nn

from richbll import RichBLL
from richbll.errors import DataChangedError, MemoryBudgetError, OptionError
from richbll.sketches import sketch_names
from richbll.solvers import exact, plan, solver_names
from richbll.solvers.routes import gram
from richbll.solvers.sketch import Sketched
from tests.cases import CASES, make
from tests.reference import dense

SIGMA2 = 0.2


def truth(case, ridge: float, weight: float = 1.0, rows=slice(None)) -> np.ndarray:
    train = dense.jacobians(case.model, case.last_layer, (case.train[rows],))
    test = dense.jacobians(case.model, case.last_layer, (case.test,))
    return np.stack(
        [
            dense.rich_covariance(r, m, t, SIGMA2, 1.0, ridge, weight).diagonal()
            for r, m, t in zip(train.phi_r, train.phi_m, test.phi_r, strict=True)
        ],
        axis=1,
    )


EXACT = sorted(set(solver_names()) - {"sketch", "trak"})


def read_twice(monkeypatch) -> None:
    """Make the exact solver read the data again instead of keeping gradients."""
    monkeypatch.setattr(exact, "can_be_kept", lambda shapes, size: False)
    monkeypatch.setattr(exact, "_read_once", None)


def test_solvers_are_found_by_their_file_names() -> None:
    assert solver_names() == ("cross", "exact", "sketch", "trak")
    for name in solver_names():
        assert importlib.import_module(f"richbll.solvers.{name}").solve.__doc__


@pytest.mark.parametrize("ridge", [0.0, 0.5])
@pytest.mark.parametrize("name", ["mlp", "gru", "layernorm_head", "dead_relus", "duplicated_features"])
@pytest.mark.parametrize("solver", EXACT)
def test_contract(solver: str, name: str, ridge: float) -> None:
    case = make(name, 2, torch.float64)
    uq = RichBLL(case.model, noise_variance=SIGMA2, ridge=ridge, solver=solver).fit(list(case.train.split(13)))
    np.testing.assert_allclose(uq.predict(case.test).epistemic_variance.numpy(), truth(case, ridge), rtol=1e-8)


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("solver", ["exact, read twice", "cross"])
def test_every_architecture_by_the_other_routes(solver: str, name: str, monkeypatch) -> None:
    """The zoo's own test keeps the gradients in memory; here they are read again, or once and added up."""
    case = make(name, 2, torch.float64)
    read_twice(monkeypatch)
    uq = RichBLL(case.model, noise_variance=SIGMA2, ridge=0.3, solver=solver.split(",")[0])
    uq.fit(list(case.train.split(13)))
    np.testing.assert_allclose(uq.predict(case.test).epistemic_variance.numpy(), truth(case, 0.3), rtol=1e-7)


@pytest.mark.parametrize("rows", [1, 14, 1000])
@pytest.mark.parametrize("name", ["mlp", "cnn_batchnorm_groups"])
def test_sums_in_float32_are_taken_into_float64(name: str, rows: int, monkeypatch) -> None:
    """After every batch, after some, or at the end."""
    case, fine = make(name, 2, torch.float32), make(name, 2, torch.float64)
    read_twice(monkeypatch)
    monkeypatch.setattr(plan, "cheapest_routes", lambda shapes, *_: {shape.site: "explicit" for shape in shapes})
    monkeypatch.setattr(exact, "_RECENT", rows)
    batches = list(case.train.split(13))
    uq = RichBLL(case.model, noise_variance=SIGMA2, ridge=0.3).fit(batches)
    np.testing.assert_allclose(uq.predict(case.test).epistemic_variance.numpy(), truth(fine, 0.3), rtol=1e-4)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "read twice"])
@pytest.mark.parametrize("name", ["mlp", "transformer_layer", "cnn_batchnorm_groups", "tied_weights", "lstm"])
@pytest.mark.parametrize("route", ["explicit", "hadamard", "gram"])
def test_every_route_of_the_exact_solver(route: str, name: str, kept: bool, monkeypatch) -> None:
    case = make(name, 2, torch.float64)
    taken = set()

    def forced(shapes, size, most_kept):
        chosen = {s.site: route if route in plan.allowed_routes(s) else "explicit" for s in shapes}
        taken.update(chosen.values())
        return chosen

    monkeypatch.setattr(plan, "cheapest_routes", forced)
    monkeypatch.setattr(gram, "_BLOCK", 7)
    monkeypatch.setattr(gram, "_SIDE", 5)
    if not kept:
        read_twice(monkeypatch)
    uq = RichBLL(case.model, noise_variance=SIGMA2, ridge=0.3).fit(list(case.train.split(13)))
    assert route in taken or name == "lstm" or (route, name) == ("hadamard", "cnn_batchnorm_groups")
    np.testing.assert_allclose(uq.predict(case.test).epistemic_variance.numpy(), truth(case, 0.3), rtol=1e-7)
    plain = RichBLL(case.model, noise_variance=SIGMA2, ridge=0.3, solver="cross").fit(list(case.train.split(13)))
    traces = [u._state.projections[0].trace_m for u in (uq, plain)]
    torch.testing.assert_close(*traces, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["mlp", "transformer_layer", "cnn_batchnorm_groups", "lstm"])
@pytest.mark.parametrize("solver", ["sketch", "trak", *sketch_names()])
def test_sketches_err_as_their_law_says(solver: str, name: str) -> None:
    """‖error of AᵀA‖ / ‖AᵀA‖ ≈ √((1 + sr)/q) for a dense sketch, sr = tr² / ‖·‖²_F; Kronecker's is that of √q."""
    case = make(name, 2, torch.float64)
    q = 2048
    given = solver if solver in ("sketch", "trak") else Sketched(solver, q, seed=3)
    uq, sure = (
        RichBLL(case.model, noise_variance=SIGMA2, ridge=0.3, solver=s).fit(list(case.train.split(13)))
        for s in (given, "exact")
    )
    (got, want) = (u._state.projections[0].AtA(0.3) for u in (uq, sure))
    for k in range(2):
        stable_rank = float(want[k].trace() ** 2 / want[k].norm() ** 2)
        expected = ((1 + stable_rank) / (q**0.5 / 4 if solver == "kronecker" else q)) ** 0.5
        error = float((got[k] - want[k]).norm() / want[k].norm())
        assert error < 4 * expected
        if solver in ("trak", "gaussian", "rademacher"):
            assert error > expected / 10  # it is a sketch, and not the exact route under another name
    assert float((uq._state.projections[0].trace_m / sure._state.projections[0].trace_m - 1).abs().max()) < 0.5


def test_the_ridge_by_cross_validation_after_the_fit() -> None:
    case = make("mlp", 1, torch.float64)
    before = RichBLL(case.model, noise_variance=SIGMA2, ridge="gcv").fit(case.train)
    after = RichBLL(case.model, noise_variance=SIGMA2).fit(case.train)
    assert after.ridge == 0
    after.ridge = "gcv"
    assert after.ridge == before.ridge > 0
    with pytest.raises(OptionError, match="'gcv'"):
        after.ridge = "best"


@pytest.mark.parametrize("solver", solver_names())
def test_order_and_batch_size_do_not_matter(solver: str) -> None:
    case = make("mlp", 1, torch.float64)
    shuffled = case.train[torch.randperm(len(case.train))]
    a = RichBLL(case.model, noise_variance=SIGMA2, solver=solver).fit(list(case.train.split(7))).predict(case.test)
    b = RichBLL(case.model, noise_variance=SIGMA2, solver=solver).fit(list(shuffled.split(25))).predict(case.test)
    torch.testing.assert_close(a.epistemic_variance, b.epistemic_variance, rtol=1e-9, atol=0)


@pytest.mark.parametrize("solver", solver_names())
def test_changing_the_ridge_later_equals_fitting_with_it(solver: str) -> None:
    case = make("mlp", 1, torch.float64)
    later = RichBLL(case.model, noise_variance=SIGMA2, solver=solver).fit(case.train)
    later.ridge = 0.7
    at_once = RichBLL(case.model, noise_variance=SIGMA2, solver=solver, ridge=0.7).fit(case.train)
    a, b = later.predict(case.test).epistemic_variance, at_once.predict(case.test).epistemic_variance
    assert torch.equal(a, b)


def test_auto_is_exact_where_data_can_be_read_twice_and_cross_where_not(monkeypatch) -> None:
    used = []
    for name in ("exact", "cross"):
        module = importlib.import_module(f"richbll.solvers.{name}")

        def spy(*args, _name=name, _solve=module.solve):
            used.append(_name)
            return _solve(*args)

        monkeypatch.setattr(module, "solve", spy)
    case = make("mlp", 1, torch.float64)
    RichBLL(case.model, noise_variance=SIGMA2).fit(case.train)
    RichBLL(case.model, noise_variance=SIGMA2).fit(iter(case.train.split(9)))
    RichBLL(case.model, noise_variance=SIGMA2, subsample=30).fit(iter(case.train.split(9)))
    assert used == ["exact", "cross", "exact"]


def test_a_solver_of_ones_own() -> None:
    calls = []

    def mine(network, stream, memory):
        calls.append(memory)
        return exact.solve(network, stream, memory)

    case = make("mlp", 1, torch.float64)
    RichBLL(case.model, noise_variance=SIGMA2, solver=mine, memory_budget="1MiB").fit(case.train)
    assert calls == [2**20]


def test_a_smooth_network_whose_spectrum_decays_through_the_cutoff() -> None:
    """Singular values of Φ^r fall through 1e-7 without a gap: the Gram matrix alone is wrong by 1e-3 here."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1)).double()
    x = 4 * torch.rand(150, 1, dtype=torch.float64) - 2
    test = torch.linspace(-3, 3, 20, dtype=torch.float64)[:, None]
    uq = RichBLL(model, noise_variance=SIGMA2, solver="exact").fit(x)
    train, at = dense.jacobians(model, "4", (x,)), dense.jacobians(model, "4", (test,))
    assert uq.ridge == 0
    s = np.linalg.svd(train.phi_r[0], compute_uv=False)
    assert ((s / s[0] > 1e-9) & (s / s[0] < 1e-5)).sum() >= 4
    want = dense.rich_covariance(train.phi_r[0], train.phi_m[0], at.phi_r[0], SIGMA2).diagonal()
    np.testing.assert_allclose(uq.predict(test).epistemic_variance[:, 0].numpy(), want, rtol=2e-6)


def test_parameters_in_blocks_when_memory_is_short() -> None:
    case = make("mlp", 2, torch.float64)
    reads = []

    class Counting(list):
        def __iter__(self):
            reads.append(1)
            return super().__iter__()

    loader = Counting(case.train.split(20))
    roomy = RichBLL(case.model, noise_variance=SIGMA2).fit(loader)
    in_roomy = len(reads)
    short = RichBLL(case.model, noise_variance=SIGMA2, memory_budget=8 * 2 * 9 * 4 * 40).fit(loader)  # 40 at a time
    assert in_roomy == 1  # gradients are kept
    assert len(reads) - in_roomy >= 1 + 4  # features, and 138 parameters in blocks of at most 40
    torch.testing.assert_close(
        short.predict(case.test).epistemic_variance, roomy.predict(case.test).epistemic_variance, rtol=1e-9, atol=0
    )


@pytest.mark.parametrize(("solver", "budget"), [("exact", 200), ("cross", 10_000)])
def test_a_budget_that_nothing_fits_is_refused_with_numbers(solver: str, budget: int) -> None:
    case = make("mlp", 2, torch.float64)
    with pytest.raises(MemoryBudgetError, match=r"takes? [\d.]+ (B|KiB).*(leaves|is) [\d.]+ (B|KiB)"):
        RichBLL(case.model, noise_variance=SIGMA2, solver=solver, memory_budget=budget).fit(case.train)


def test_data_that_changes_between_the_passes_is_noticed() -> None:
    case = make("mlp", 1, torch.float32)

    class Augmenting:
        def __iter__(self):
            return (x + 0.05 * torch.randn_like(x) for x in case.train.split(20))

    with pytest.raises(DataChangedError, match='solver="cross"'):
        RichBLL(case.model, noise_variance=SIGMA2).fit(Augmenting())
    assert RichBLL(case.model, noise_variance=SIGMA2, solver="cross").fit(Augmenting()).num_data == 60


def test_a_model_that_is_random_in_eval_mode_is_noticed() -> None:
    class Noisy(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.3, training=True)

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Noisy(), nn.Linear(8, 1))
    with pytest.raises(Exception, match="random"):
        RichBLL(model, noise_variance=SIGMA2).fit(torch.randn(60, 4))


def test_unknown_solver() -> None:
    with pytest.raises(OptionError, match="'auto', 'cross', 'exact'"):
        RichBLL(nn.Linear(2, 1), noise_variance=1.0, solver="magic").fit(torch.randn(9, 2))


@pytest.mark.parametrize("size", [32, 0.5])
def test_subsample_equals_the_dense_truth_on_the_rows_it_drew(size) -> None:
    from richbll.core.subsample import smallest
    from richbll.rng import row_keys

    case = make("mlp", 2, torch.float64)
    uq = RichBLL(case.model, noise_variance=SIGMA2, subsample=size, seed=5).fit(list(case.train.split(7)))
    k = 32 if size == 32 else 30
    assert (uq.subsample_size, uq.num_data) == (k, 60)
    rows = smallest(row_keys(5, 0, 60), k)
    want = truth(case, 0.0, weight=60 / k, rows=torch.from_numpy(rows))
    np.testing.assert_allclose(uq.predict(case.test).epistemic_variance.numpy(), want, rtol=1e-8)


def test_subsample_of_a_stream_equals_that_of_a_list_and_of_all_equals_all() -> None:
    case = make("mlp", 1, torch.float64)
    batches = list(case.train.split(7))

    def answer(data, **options):
        return RichBLL(case.model, noise_variance=SIGMA2, **options).fit(data).predict(case.test).epistemic_variance

    torch.testing.assert_close(answer(iter(batches), subsample=25), answer(batches, subsample=25), rtol=1e-9, atol=0)
    torch.testing.assert_close(answer(batches, subsample=1000), answer(batches), rtol=1e-9, atol=0)
    torch.testing.assert_close(answer(batches, subsample=1.0), answer(batches), rtol=1e-9, atol=0)
    assert not torch.allclose(answer(batches, subsample=25, seed=0), answer(batches, subsample=25, seed=1), rtol=1e-3)


def test_subsample_is_never_below_r_and_works_on_shuffled_and_ragged_loaders() -> None:
    case = make("mlp", 1, torch.float64)
    with pytest.warns(UserWarning, match="too few"):
        assert RichBLL(case.model, noise_variance=1.0, subsample=2).fit(case.train).subsample_size == 9
    loader = torch.utils.data.DataLoader(case.train, batch_size=13, shuffle=True)
    assert RichBLL(case.model, noise_variance=1.0, subsample=20).fit(loader).subsample_size == 20
    tokens = [torch.randint(11, (8, length)) for length in (3, 5, 5, 4, 6, 3)]
    words = make("embeddings", 1, torch.float64)
    assert RichBLL(words.model, noise_variance=1.0, subsample=24).fit(tokens).subsample_size == 24


def test_a_subsample_that_does_not_fit_is_refused() -> None:
    case = make("resnet_block", 1, torch.float64)  # 600 bytes an example
    with pytest.raises(MemoryBudgetError, match="subsample of 40 rows takes"):
        RichBLL(case.model, noise_variance=1.0, subsample=40, memory_budget=20_000).fit(list(case.train.split(10)))


@pytest.mark.parametrize("kind", ["auto", "tensor_sketch", "kronecker", "fold"])
def test_a_parameter_has_one_sketch_also_when_rules_stop_holding_half_way(kind: str) -> None:
    """One batch takes another branch: from then on gradients come without factors, and must go through the same map."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(20, 60), nn.Linear(60, 40)
            self.other, self.head = nn.Linear(20, 60), nn.Linear(40, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.a(x))
            h = h + 0 * self.other(x) if len(x) == 20 else h
            return self.head(torch.tanh(self.b(h)))

    torch.manual_seed(0)
    model, x = Branching().double(), torch.randn(200, 20, dtype=torch.float64)
    found = [
        RichBLL(model, noise_variance=SIGMA2, ridge=1.0, solver=Sketched(kind, 128)).fit(batches)
        for batches in ([x[:90], x[90:]], [x[:90], x[90:110], x[110:]])
    ]
    a, b = (uq._state.projections[0].AtA(1.0) for uq in found)
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
