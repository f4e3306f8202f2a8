"""Rough use: contexts, odd modules, odd data. Each of these was wrong or raw once."""

import copy
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from richbll import RichBLL, Sketched, load
from richbll.bandits import Replay
from richbll.errors import (
    DataChangedError,
    DataError,
    LastLayerError,
    MemoryBudgetError,
    ModelError,
    NonFiniteError,
    OptionError,
    RichBLLWarning,
)
from richbll.network import outputs
from tests.cases import Forward, make
from tests.reference import dense
from tests.small import WANT, X, fitted, mlp

# ---------------------------------------------------------------------- contexts


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_fit_and_predict_under_no_grad_and_inference_mode(context) -> None:
    model = mlp()
    with context():
        uq = fitted(model)
        torch.testing.assert_close(uq.predict(X).epistemic_variance, WANT)
        module = uq.as_module()
    x = X.clone().requires_grad_()
    uq.predict(x).std.sum().backward()
    assert x.grad is not None
    module(x)[1].sum().backward()


def test_data_and_buffers_made_under_inference_mode() -> None:
    model = mlp()
    with torch.inference_mode():
        x = X.clone()
        model.register_buffer("extra", torch.ones(2))
    torch.testing.assert_close(fitted(model, x).predict(X).epistemic_variance, WANT)


@pytest.mark.parametrize(
    "options", [{}, {"solver": "cross"}, {"solver": "sketch"}, {"subsample": 20}, {"enrich": False}]
)
def test_inputs_and_targets_that_require_gradients(options) -> None:
    """With a rule for every parameter, and with none: what is fitted has no graph, and no gradient is left behind."""
    torch.manual_seed(0)
    product = Forward(
        lambda m, x: m.head(torch.tanh(torch.einsum("ni,nj,ijk->nk", x, x, m.table))),
        table=nn.Parameter(torch.randn(X.shape[1], X.shape[1], 6)),
        head=nn.Linear(6, 1),
    )
    x, y = X.clone().requires_grad_(), X[:, :1].clone().requires_grad_()
    for model in (mlp(), product):
        model = model.to(x.dtype)
        found = [
            RichBLL(model, noise_variance=0.1, ridge=0.1, **options).fit(list(zip(*data, strict=True)))
            for data in ((x.split(15), y.split(15)), (X.split(15), X[:, :1].split(15)))
        ]
        mine, want = (uq.predict(X).epistemic_variance for uq in found)
        assert torch.equal(mine, want)
        assert not mine.requires_grad
    assert x.grad is None


def test_an_autocast_around_predict_does_not_coarsen_the_variance() -> None:
    uq = RichBLL(mlp(), noise_variance=1.0, prior_variance=1e6, ridge=0.1).fit(X[:20])
    with torch.autocast("cpu", dtype=torch.float16):
        pred = uq.predict(100 * X)
    assert pred.std.dtype == torch.float32
    assert bool(torch.isfinite(pred.std).all())


# ---------------------------------------------------------------------- odd modules


def against_dense(model: nn.Module, last_layer: str, x: torch.Tensor = X) -> None:
    model = model.double()
    x = x.double() if x.is_floating_point() else x
    got = RichBLL(model, noise_variance=0.3, ridge=0.1).fit(x).predict(x).epistemic_variance[:, 0]
    jacobians = dense.jacobians(model, last_layer, (x,))
    want = dense.rich_covariance(jacobians.phi_r[0], jacobians.phi_m[0], jacobians.phi_r[0], 0.3, ridge=0.1)
    np.testing.assert_allclose(got.numpy(), want.diagonal(), rtol=1e-6)


def test_scalar_parameters() -> None:
    parts = {"scale": nn.Parameter(torch.tensor(1.3)), "body": mlp()}
    against_dense(Forward(lambda m, x: m.body(m.scale * x), **parts), "body.2")


def test_a_head_under_two_names() -> None:
    head = nn.Linear(6, 1)
    layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), head)
    against_dense(Forward(lambda m, x: m.layers(x), head=head, layers=layers), "head")


def test_sparse_gradients() -> None:
    parts = {"words": nn.Embedding(9, 5, sparse=True), "head": nn.Linear(5, 1)}
    against_dense(
        Forward(lambda m, x: m.head(torch.tanh(m.words(x).mean(1))), **parts), "head", torch.randint(9, (50, 4))
    )


def test_data_parallel_is_looked_into() -> None:
    torch.testing.assert_close(fitted(nn.DataParallel(mlp())).predict(X).epistemic_variance, WANT)


def test_scripted_and_lazy_models_are_refused_with_advice() -> None:
    with pytest.warns(DeprecationWarning, match="script"):
        scripted = torch.jit.script(mlp())
    with pytest.raises(ModelError, match="eager module"):
        RichBLL(scripted)
    lazy = nn.Sequential(nn.LazyLinear(6), nn.Linear(6, 1))
    with pytest.raises(ModelError, match="run one batch"):
        fitted(lazy)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_reentrant_checkpoints_are_told() -> None:
    parts = {"hidden": nn.Linear(4, 6), "head": nn.Linear(6, 1)}
    model = Forward(lambda m, x: m.head(checkpoint(lambda z: torch.tanh(m.hidden(z)), x, use_reentrant=True)), **parts)
    with pytest.warns(RichBLLWarning, match=r"hidden\.weight.*reentrant checkpoint"):
        fitted(model)
    parts = {"stem": nn.Linear(4, 4), "hidden": nn.Linear(4, 6), "head": nn.Linear(6, 1)}
    model = Forward(
        lambda m, x: m.head(checkpoint(lambda z: torch.tanh(m.hidden(z)), m.stem(x), use_reentrant=True)), **parts
    )
    with pytest.raises(ModelError, match="use_reentrant=False"):
        fitted(model)


def test_whatever_a_forward_pass_leaves_behind_is_taken_away() -> None:
    def forward(m, x):
        m.ema = 0.9 * m.ema + 0.1 * x.mean(0)  # a buffer that is assigned anew
        m.cache["x"] = x
        m.seen.append(x)
        m.previous = (x,)
        return m.body(x)

    model = Forward(forward, body=mlp())
    model.register_buffer("ema", torch.zeros(4))
    model.cache, model.seen, model.previous = {}, [], None
    ema = model.ema
    fitted(model, solver="cross")
    assert model.ema is ema
    assert bool((ema == 0).all())
    assert (model.cache, model.seen, model.previous) == ({}, [], None)


def test_embeddings_that_renormalise_themselves_keep_their_weights() -> None:
    parts = {"words": nn.Embedding(9, 5, max_norm=0.5), "head": nn.Linear(5, 1)}
    model = Forward(lambda m, x: m.head(torch.tanh(m.words(x).mean(1))), **parts)
    before = model.words.weight.detach().clone()
    fitted(model, torch.randint(9, (50, 4)), ridge=0.1)
    assert torch.equal(model.words.weight, before)


def test_old_weight_norm_can_be_exported() -> None:
    with pytest.warns(FutureWarning):
        hidden = nn.utils.weight_norm(nn.Linear(4, 6))
    model = nn.Sequential(hidden, nn.Tanh(), nn.Linear(6, 1))
    model(X).sum().backward()
    uq = fitted(model)
    torch.testing.assert_close(uq.as_module()(X)[1], uq.predict(X).epistemic_variance)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e4])
def test_a_large_constant_in_the_output_hides_nothing(offset: float) -> None:
    good = Forward(lambda m, x: offset + m.body(x), body=mlp())
    torch.testing.assert_close(fitted(good).predict(X).epistemic_variance, WANT, rtol=1e-3, atol=1e-6)
    depends_on_batch = Forward(lambda m, x: offset + m.body(x - x.mean(0)), body=mlp())
    skips = Forward(lambda m, x: offset + m.body(x) + 0.3 * x[:, :1], body=mlp())
    for bad in (depends_on_batch, skips):
        with pytest.raises(ModelError, match=r"other examples of its batch|by-passes that layer"):
            fitted(bad)


def test_a_coarse_network_with_a_fine_output_is_accepted() -> None:
    model = Forward(lambda m, x: m.body(x.bfloat16()).float(), body=mlp().bfloat16())
    pred = fitted(model, ridge=0.1).predict(X)
    assert pred.std.dtype == torch.float32


# ---------------------------------------------------------------------- odd data


class UsedUp:
    """Looks like something that can be read again, and is not."""

    def __init__(self) -> None:
        self._iterator = iter(list(X.split(16)))

    def __iter__(self):
        return self._iterator


def test_an_iterable_that_is_used_up_loses_nothing_or_says_so() -> None:
    assert fitted(mlp(), UsedUp(), enrich=False).num_data == 50
    assert fitted(mlp(), UsedUp(), solver="cross").num_data == 50
    assert fitted(mlp(), UsedUp(), subsample=20).num_data == 50
    with pytest.raises(DataChangedError, match='solver="cross"'):
        fitted(mlp(), UsedUp())


def test_constants_are_told_from_examples_also_in_a_subsample() -> None:
    def forward(m, x, w):
        return m.head(torch.tanh(m.hidden(x)) * w)

    model = Forward(forward, hidden=nn.Linear(4, 6), head=nn.Linear(6, 1))
    w = torch.rand(6)
    for seed in range(6):
        uq = fitted(model, [((a, w), None) for a in X[:48].split(12)], subsample=30, seed=seed)
        assert uq.subsample_size == 30
    twelve = Forward(
        forward, hidden=nn.Linear(4, 12), head=nn.Linear(12, 1)
    )  # of 12 rows and 12 weights nobody can tell
    with pytest.raises(ModelError, match="but not on its first 8 rows"):
        fitted(twelve, [((a, torch.rand(12)), None) for a in X[:48].split(12)])


def test_named_tuples_reach_the_model_as_such() -> None:
    Pair = namedtuple("Pair", ["a", "b"])
    model = Forward(lambda m, pair: m.body(pair.a + pair.b), body=mlp())
    uq = fitted(model, [((Pair(X, 0 * X),), None)])
    torch.testing.assert_close(uq.predict((Pair(X, 0 * X),)).epistemic_variance, WANT)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"x": X}, "put it into a list"),
        ([X, X[:, 0]], r"give \(x, y\)"),
        ([(X, X[:, 0].numpy())], "targets of type ndarray"),
        ([{"x": X, "labels": [1.0] * 50}], "targets of type list"),
    ],
)
def test_data_in_the_wrong_wrapping(data, reason) -> None:
    with pytest.raises(DataError if "targets" not in reason else Exception, match=reason):
        fitted(mlp(), data)


def test_one_example_without_its_batch_dimension() -> None:
    with pytest.raises((LastLayerError, ModelError), match="batch"):
        fitted(mlp()).predict(X[0])


def test_noise_of_a_network_that_interpolates_is_finite() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1)).double()
    for n in (1, 3, 5, 20):
        x = X[:n].double()
        y = model(x).detach() + 1e-8 * torch.randn(n, 1).double()
        with pytest.warns(RichBLLWarning):
            noise = RichBLL(model).fit((x, y)).noise_variance
        assert bool(torch.isfinite(noise).all())
        assert bool((noise > 0).all())


def test_bad_scales_are_told_before_all_data_is_read() -> None:
    read = []

    class Counting(list):
        def __iter__(self):
            for batch in super().__iter__():
                read.append(1)
                yield batch

    for options in (
        {"noise_variance": "loud"},
        {"prior_variance": -1},
        {"noise_variance": [1.0, 2.0]},
        {"noise_variance": None},
    ):
        read.clear()
        with pytest.raises((OptionError, DataError, ValueError)):
            RichBLL(mlp(), **({"noise_variance": 1.0} | options)).fit(Counting(X.split(5)))
        assert len(read) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"enrich": "no"},
        {"enrich": None},
        {"seed": None},
        {"seed": 1.5},
        {"progress": "x"},
        {"solver": 3},
        {"parameters": "0.weight"},
        {"memory_budget": "5iB"},
        {"memory_budget": float("nan")},
        {"prior_variance": True},
        {"subsample": True},
    ],
)
def test_options_of_the_wrong_kind(options) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(options))}="):
        fitted(mlp(), **options)


def test_numbers_of_numpy_are_numbers() -> None:
    options = {"subsample": np.int64(30), "ridge": np.float32(0.1), "memory_budget": 2e9, "seed": np.int64(3)}
    assert fitted(mlp(), **options).subsample_size == 30
    assert fitted(mlp(), subsample=np.float32(0.5)).subsample_size == 25
    assert fitted(mlp()).sample_functions(np.int64(3))(X).shape == (3, 50, 1)


def test_draws_at_nan_raise_like_predictions() -> None:
    with pytest.raises(DataError, match="NaN or Inf"):
        fitted(mlp()).sample_functions(2)(X * float("nan"))


def test_what_is_too_large_is_told_before_it_is_made() -> None:
    uq = fitted(mlp(), memory_budget="1MB")
    with pytest.raises(MemoryBudgetError, match=r"500 points takes 1.907 MiB"):
        uq.joint(torch.randn(500, 4))
    wide = nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 50))
    with pytest.raises(MemoryBudgetError, match="50 posteriors over 41 features take"):
        fitted(wide, torch.randn(200, 4), memory_budget="1MB")


def test_a_model_that_has_changed_since_the_fit() -> None:
    model = mlp()
    uq = fitted(model)
    model[2] = nn.Linear(6, 2)
    with pytest.raises(ModelError, match="2 outputs instead of 1"):
        uq.predict(X)


# ---------------------------------------------------------------------- files


def test_a_loaded_estimator_fits_again_as_the_first_did(tmp_path) -> None:
    model = mlp()
    uq = fitted(model, ridge=0.2, subsample=30, seed=7, solver="cross")
    uq.save(tmp_path / "uq.safetensors")
    again = load(tmp_path / "uq.safetensors", model).fit(X)
    assert (again.ridge, again.subsample_size) == (0.2, 30)
    assert torch.equal(again.predict(X).std, uq.predict(X).std)


def test_files_are_readable_by_others_and_extra_state_does_not_matter(tmp_path) -> None:
    class WithExtra(nn.Linear):
        def get_extra_state(self):
            return {"note": 1}

        def set_extra_state(self, state):
            pass

    model = nn.Sequential(WithExtra(4, 6), nn.Tanh(), nn.Linear(6, 1))
    uq = fitted(model)
    uq.save(tmp_path / "uq.safetensors")
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "uq.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert torch.equal(load(tmp_path / "uq.safetensors", model).predict(X).std, uq.predict(X).std)


@pytest.mark.parametrize(
    "field",
    [
        {"ridge": -1.0}, {"ridge": float("nan")}, {"num_rows": 0}, {"num_data": -5}, {"num_alive": [-5]},
        {"ranks": [99]}, {"num_rows": float("inf")}, {"num_added": -1},
    ],
)  # fmt: skip
def test_numbers_that_no_fit_leaves_behind(tmp_path, field) -> None:
    from richbll.errors import ArtifactError
    from tests.test_artifact import rewrite

    case = make("mlp", 1, torch.float64)
    RichBLL(case.model, noise_variance=1.0).fit(case.train).save(tmp_path / "uq.safetensors")
    rewrite(tmp_path / "uq.safetensors", **field)
    with pytest.raises(ArtifactError, match=r"malformed|shape"):
        load(tmp_path / "uq.safetensors", case.model)


def test_memory_stays_near_the_budget() -> None:
    """Peak memory of a fit in a process of its own, above what the same process takes without fitting."""
    import subprocess
    import sys

    script = """
import resource, sys, torch
from torch import nn
from richbll import RichBLL
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(100, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 1))
x = torch.randn(400, 100)
model(x).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
RichBLL(model, noise_variance=1.0, ridge=1.0, memory_budget="256MiB").fit(x)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 256 * 1.3  # C alone, unsplit, would take 560 MiB


@pytest.mark.parametrize("enrich", [True, False])
def test_one_row_with_an_output_near_zero_is_no_reason_to_refuse(enrich: bool) -> None:
    """A sum of terms that cancel has their rounding, and one row alone shows no variation to compare it with."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 1)), torch.randn(30, 4)
    for row in x.split(1):
        with torch.no_grad():
            model[2].bias -= model(row)[0]
        uq = RichBLL(model, noise_variance=0.1, enrich=enrich, ridge=0.1).fit([x, row])
        assert uq.update((row, torch.zeros(1))).num_data == 32


def test_numbers_of_numpy_can_be_saved(tmp_path) -> None:
    for subsample in (np.int64(30), np.float32(0.5)):
        uq = RichBLL(mlp(), noise_variance=1.0, subsample=subsample).fit(X)
        uq.save(tmp_path / "uq.safetensors")
    with pytest.raises(OptionError, match="a fraction must lie"):
        RichBLL(mlp(), subsample=1.5)


def test_rows_of_a_subsample_are_named_by_their_batches() -> None:
    batches = [torch.randn(10, 3) for _ in range(9)]
    batches[7][4] = torch.nan
    with pytest.raises(NonFiniteError, match=r"rows drawn from batch \d+ to \d+"):
        RichBLL(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), noise_variance=1.0, subsample=89).fit(
            batches
        )


def test_a_calibration_that_fails_names_the_batch_and_loses_nothing() -> None:
    x = torch.randn(60, 3)
    uq = RichBLL(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), noise_variance=1.0).fit(x)
    uq.conformalize((x, torch.randn(60)))
    before = uq.predict(x).interval(0.9)
    bad = x[:10].clone()
    bad[7] = torch.nan
    with pytest.raises(NonFiniteError, match="batch 1"):
        uq.conformalize([(x[:10], torch.randn(10)), (bad, torch.randn(10))])
    assert all(map(torch.equal, uq.predict(x).interval(0.9), before))


def test_no_module_is_no_model(tmp_path) -> None:
    with pytest.raises(ModelError, match="not str"):
        load(tmp_path / "none.safetensors", "model")


# ---------------------------------------------------------------------- odd things again


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("solver", ["exact", "cross", "sketch"])
def test_a_large_table_of_tokens(dtype: torch.dtype, solver: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(1000, 5), nn.Flatten(), nn.Linear(5, 1)).to(dtype)
    tokens = torch.randint(0, 1000, (60, 1))
    found = fitted(model, tokens, solver=solver, ridge=1e-2).predict(tokens)
    rows = dense.jacobians(copy.deepcopy(model).double(), "2", (tokens,))
    want = dense.rich_covariance(rows.phi_r[0], rows.phi_m[0], rows.phi_r[0], 0.3, 1.0, 1e-2).diagonal()
    close = {"rtol": 0.5 if solver == "sketch" else 1e-4}
    np.testing.assert_allclose(found.epistemic_variance.flatten(), want, **close)


def test_a_sparse_buffer() -> None:
    model = mlp()
    model.register_buffer("graph", torch.eye(3).to_sparse())
    torch.testing.assert_close(fitted(model).predict(X).epistemic_variance, WANT)


def test_a_loader_without_a_length() -> None:
    class Unmeasured:
        def __iter__(self):
            yield from X.split(10)

        def __len__(self) -> int:
            raise NotImplementedError

    torch.testing.assert_close(fitted(mlp(), Unmeasured()).predict(X).epistemic_variance, WANT)


def test_weights_that_differ_far_inside_are_other_weights(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 20), nn.Tanh(), nn.Linear(20, 1))
    fitted(model).save(tmp_path / "uq")
    with torch.no_grad():
        model[2].weight[-1, -1] += 1
    with pytest.warns(RichBLLWarning, match="fitted to other weights"):
        load(tmp_path / "uq", model)


@pytest.mark.filterwarnings("ignore::richbll.errors.RichBLLWarning")
def test_a_loaded_posterior_fits_anew_with_the_options_it_had(tmp_path) -> None:
    model = mlp()
    y = model(X).detach() + torch.randn(50, 1)
    RichBLL(model, prior_variance=2.0).fit((X, y)).tune((X, y)).save(tmp_path / "uq")
    want = RichBLL(model, prior_variance=2.0).fit((X, 10 * y))
    again = load(tmp_path / "uq", model).fit((X, 10 * y))
    torch.testing.assert_close(again.noise_variance, want.noise_variance)
    torch.testing.assert_close(again.prior_variance, want.prior_variance)


def test_the_evidence_after_an_update_of_everything() -> None:
    model = mlp()
    y = model(X).detach() + torch.randn(50, 1)
    uq = fitted(model, (X, y), solver="cross").update((X, y), refit=True)
    with pytest.raises(OptionError, match="The evidence is that of the fit"):
        uq.tune(method="evidence")


class Short(nn.Linear):
    """Multiplies numbers of ten bits, as TF32 does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(rounded(x), rounded(self.weight), self.bias)


def rounded(values: torch.Tensor) -> torch.Tensor:
    bits = values.detach().contiguous().view(torch.int32)
    return values + (((bits + 0x1000) & ~0x1FFF).view(torch.float32) - values).detach()


def test_short_products_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert outputs.rounding(torch.float32, gpu) == outputs.rounding(torch.float32, cpu) == 2**-23
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert outputs.rounding(torch.float32, gpu) == 2**-10
        assert outputs.rounding(torch.float32, cpu) == 2**-23
        assert outputs.rounding(torch.float64, gpu) == 2**-52
    finally:
        torch.set_float32_matmul_precision(before)
    monkeypatch.setattr(outputs, "rounding", lambda dtype, device: 2**-10)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), Short(64, 1))
    found = fitted(model, ridge=1e-2).predict(X).epistemic_variance
    plain = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(found, fitted(plain, ridge=1e-2).predict(X).epistemic_variance, rtol=1e-2, atol=0)


def test_sketches_of_different_kinds_are_not_added() -> None:
    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(128, 200, bias=False), nn.Linear(200, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(self.body(x)).mean(dim=1))

    one, three = torch.randn(300, 1, 128), torch.randn(300, 3, 128)
    uq = fitted(Averaged(), one, solver=Sketched("auto", 64), ridge=1.0)
    uq.update(one, refit=True)
    with pytest.raises(OptionError, match="sites"):
        uq.update(three, refit=True)


def test_contexts_of_whole_numbers_and_then_fractions() -> None:
    replay = Replay(2)
    for contexts in (torch.tensor([[1, 2]]), torch.tensor([[0.9, 0.7]])):
        replay.add(contexts, torch.tensor([0]), torch.tensor([1.0]))
    torch.testing.assert_close(replay.contexts, torch.tensor([[1.0, 2.0], [0.9, 0.7]]))
