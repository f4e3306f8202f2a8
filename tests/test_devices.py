"""On any device: CPU tensors that pretend to be elsewhere find every place where two devices would meet."""

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from richbll import ClassPredictive, RegressionPredictive, RichBLL, load
from richbll.errors import RichBLLWarning
from richbll.fitted import head_for
from richbll.precision import float64_device, in_float64
from richbll.solvers import exact
from richbll.solvers.routes.gram import Rowwise
from tests import pretend
from tests.cases import CASES, make

SETTINGS = {
    "regression": ("regression", {}),
    "in one pass": ("regression", {"solver": "cross"}),
    "sketched": ("regression", {"solver": "sketch"}),
    "subsample": ("regression", {"subsample": 20}),
    "subsample of a size that is found": ("regression", {"subsample": "auto"}),
    "wider basis": ("regression", {"basis": "all_layers", "ridge": 0.1}),
    "classes": ("classification", {}),
    "one posterior for all classes": ("classification", {"class_posterior": "shared", "subsample": 0.5}),
    "a transform for each class": ("classification", {"transform": "per_class", "subsample": 5}),
    "weighted classes": ("classification", {"curvature": "ggn"}),
    "labels": ("multilabel", {"curvature": "ggn"}),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RichBLLWarning)
        warnings.filterwarnings("ignore", message=".*CUDA is not available")
        yield


def data(likelihood: str, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Batches on the CPU, as a loader gives them."""
    generator = torch.Generator().manual_seed(2)
    if likelihood == "regression":
        y = torch.randn(len(x), 3, generator=generator)
    elif likelihood == "classification":
        y = torch.randint(3, (len(x),), generator=generator)
    else:
        y = torch.randint(2, (len(x), 3), generator=generator).float()
    return list(zip(x.split(16), y.split(16), strict=True))


def answers(uq: RichBLL, likelihood: str, batches: list, test: Tensor, path) -> dict[str, Tensor]:
    """Everything that can be asked, for inputs and targets on the CPU."""
    found = {}

    def ask(when: str) -> None:
        pred = uq.predict(test)
        found[f"variance {when}"] = pred.epistemic_variance if likelihood == "regression" else pred.logit_variance
        y = batches[0][1][:9]
        found[f"log_prob {when}"] = pred.log_prob(y)
        if likelihood != "regression":
            found[f"information {when}"] = pred.mutual_information
        if likelihood == "classification":
            found[f"variance of labels {when}"] = pred.variance_of(y)

    ask("fitted")
    uq.tune(batches)
    ask("tuned")
    if likelihood != "multilabel":
        uq.conformalize(batches)
        pred = uq.predict(test)
        found["calibrated"] = pred.interval(0.8)[0] if likelihood == "regression" else pred.prediction_set(0.8)
    found["covariance"] = uq.joint(test).covariance
    found["functions"] = uq.sample_functions(2)(test)
    found["spectrum"] = uq.diagnose(batches).spectrum
    uq.save(path)
    uq.noise_variance, uq.ridge = 0.2, 0.3
    ask("with other scales")
    uq.update(batches[:2])
    ask("updated")
    return found


def means(pred: RegressionPredictive | ClassPredictive) -> Tensor:
    return pred.mean if isinstance(pred, RegressionPredictive) else pred.logits


def same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    for name, value in want.items():
        torch.testing.assert_close(got[name].to("cpu"), value, rtol=2e-3, atol=2e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", ["cuda", "mps"])
@pytest.mark.parametrize("setting", list(SETTINGS))
def test_a_model_on_a_device(setting: str, name: str, tmp_path) -> None:
    likelihood, options = SETTINGS[setting]
    case = make("mlp", 3, torch.float32)
    batches = data(likelihood, case.train)
    uq = RichBLL(case.model, likelihood, **options).fit(batches)
    want = answers(uq, likelihood, batches, case.test, tmp_path / "cpu.safetensors")
    with pretend.device(name) as there:
        model = pretend.pretended(make("mlp", 3, torch.float32).model)
        uq = RichBLL(model, likelihood, **options).fit(batches)
        assert all(tensor.device == float64_device(there) for tensor in uq._state.tensors().values())
        same(answers(uq, likelihood, batches, case.test, tmp_path / "there.safetensors"), want)
        assert means(uq.predict(case.test)).device == there
        mean, variance = uq.as_module()(case.test.to(there))
        assert mean.device == variance.device == there


@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("name", list(CASES))
def test_every_architecture_on_a_device(name: str, device: str) -> None:
    here, case = make(name, 2, torch.float32), make(name, 2, torch.float32)
    want = RichBLL(here.model, noise_variance=0.3).fit(list(here.train.split(16))).predict(here.test)
    with pretend.device(device) as there:
        uq = RichBLL(pretend.pretended(case.model), noise_variance=0.3).fit(list(case.train.split(16)))
        got = uq.predict(case.test)
        assert got.mean.device == got.epistemic_variance.device == there
        assert uq._state.root.device == float64_device(there)
    torch.testing.assert_close(got.mean.to("cpu"), want.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.epistemic_variance.to("cpu"), want.epistemic_variance, rtol=1e-3, atol=1e-6)


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 2))


def wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


ROUTES = {"kept_energy": convolutional, "gram_energy": wide}  # C of convolutions, K of wide linear layers


@pytest.mark.parametrize("route", list(ROUTES))
def test_products_are_formed_on_a_device_without_float64(route: str, monkeypatch) -> None:
    """Kept gradients stay where the model is; sums come back in float64, and are those of the CPU."""
    met: list[set[torch.device]] = []
    found: list[tuple[Tensor, ...]] = []
    original = getattr(exact, route)

    def spied(*args: object) -> tuple:
        met.append({tensor.device for tensor in tensors_of(args)})
        found.append(original(*args)[:1])
        return original(*args)

    monkeypatch.setattr(exact, route, spied)
    torch.manual_seed(0)
    model, train = ROUTES[route](), list(torch.randn(90, 1, 4, 4).split(16))
    RichBLL(model, noise_variance=0.3, solver="exact").fit(train)
    with pretend.device("mps") as there:
        RichBLL(pretend.pretended(model), noise_variance=0.3, solver="exact").fit(train)
    assert met[0] == {torch.device("cpu")}
    assert met[1] == {there}
    (want,), (got,) = found
    assert (got.dtype, type(got)) == (torch.float64, Tensor)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6 * float(want.abs().max()))


def tensors_of(value: object) -> Iterator[Tensor]:
    """Gradients and U, among the arguments of a route; singular values and numbers of rows apart."""
    if isinstance(value, Tensor):
        if value.dtype != torch.float64:
            yield value
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_of(one)
    elif isinstance(value, Rowwise):
        yield from tensors_of([value.outers, value.dense])
    elif hasattr(value, "tensors"):
        yield from tensors_of(value.tensors)


@pytest.mark.parametrize("name", ["cuda", "mps"])
@pytest.mark.parametrize("setting", list(SETTINGS))
def test_a_posterior_and_a_model_on_two_devices(setting: str, name: str, tmp_path) -> None:
    """Fitted on the CPU; then the model moves, also to a device without float64, and the posterior does or does not."""
    likelihood, options = SETTINGS[setting]
    case = make("mlp", 3, torch.float32)
    batches = data(likelihood, case.train)
    RichBLL(case.model, likelihood, **options).fit(batches).save(tmp_path / "uq.safetensors")
    uq = load(tmp_path / "uq.safetensors", case.model)
    want = answers(uq, likelihood, batches, case.test, tmp_path / "again.safetensors")
    with pretend.device(name) as there:
        model = pretend.pretended(make("mlp", 3, torch.float32).model)
        for stays in (True, False):
            uq = load(tmp_path / "uq.safetensors", model, device="cpu" if stays else there)
            is_there = not stays and name == "cuda"  # the posterior is float64
            assert uq._state.root.device == (there if is_there else torch.device("cpu"))
            same(answers(uq, likelihood, batches, case.test, tmp_path / "there.safetensors"), want)
            assert uq.to(there)._state.root.device == (there if name == "cuda" else torch.device("cpu"))
            assert means(uq.predict(case.test)).device == there


def test_refitting_after_a_move() -> None:
    case = make("mlp", 3, torch.float32)
    batches = data("classification", case.train)
    uq = RichBLL(case.model, "classification", solver="cross").fit(batches)
    want = uq.update(batches, refit=True).predict(case.test).logit_variance
    with pretend.device("cuda") as there:
        model = pretend.pretended(make("mlp", 3, torch.float32).model)
        uq = RichBLL(model, "classification", solver="cross").fit(batches).to("cpu").update(batches, refit=True)
        assert uq._state.root.device == there
        torch.testing.assert_close(uq.predict(case.test).logit_variance.to("cpu"), want, rtol=1e-3, atol=0)


def test_noise_as_a_function_may_answer_from_the_cpu() -> None:
    case = make("mlp", 2, torch.float32)
    options = {"noise_variance": lambda x: 0.1 + torch.rand(len(x), 2, generator=torch.Generator().manual_seed(0))}
    want = RichBLL(case.model, **options).fit(case.train).predict(case.test).std
    with pretend.device("cuda"):
        model = pretend.pretended(make("mlp", 2, torch.float32).model)
        got = RichBLL(model, **options).fit(case.train).predict(case.test).std
    torch.testing.assert_close(got.to("cpu"), want, rtol=1e-4, atol=0)


def test_float64_is_where_it_can_be() -> None:
    for name, where in (("cuda", "cuda"), ("mps", "cpu")):
        with pretend.device(name) as there:
            moved = in_float64(torch.ones(2).to(there))
            assert (moved.dtype, moved.device.type) == (torch.float64, where)


@pytest.mark.parametrize("shared", [True, False])
def test_shapes_on_the_meta_device(shared: bool) -> None:
    case = make("mlp", 3, torch.float32)
    options = {"class_posterior": "shared" if shared else "per_class"}
    uq = RichBLL(case.model, "classification", **options).fit((case.train, torch.arange(60) % 3))
    for n in (0, 1, 7):
        a, f = torch.empty(n, 8, device="meta"), torch.empty(n, 3, device="meta", dtype=torch.bfloat16)
        head = head_for(uq._state, a)
        assert head.whitened(a).shape == (n, 1 if shared else 3, 9)
        for mean, variance in (head(a, f), head.in_parts(a, f)):
            assert mean.shape == variance.shape == (n, 3)
            assert mean.dtype == variance.dtype == torch.float32
            assert mean.device.type == variance.device.type == "meta"
    module = uq.as_module().to("meta")
    mean, variance = module(torch.empty(5, 4, device="meta"))
    assert mean.shape == variance.shape == (5, 3)


REFUSED = {
    "two devices": lambda x: nn.functional.linear(x, torch.ones(3, 3)),
    "numpy": lambda x: x.numpy(),
    "generator": lambda x: torch.randn(3, generator=torch.Generator(), device=x.device),
    "index": lambda x: torch.ones(3)[x.long()],
    "float64": lambda x: x.to(torch.float64),
}


@pytest.mark.parametrize("wrong", list(REFUSED))
def test_the_pretended_device_refuses_what_a_device_refuses(wrong: str) -> None:
    with pretend.device("mps") as there:
        x = torch.ones(3, device=there)
        with pytest.raises((RuntimeError, TypeError), match=r"mps|numpy|float64"):
            REFUSED[wrong](x)
