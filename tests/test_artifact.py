"""Saving and loading: bit-equal, safe against bad files, whole after an interruption."""

import json
import struct

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from richbll import RichBLL, load
from richbll.errors import ArtifactError, RichBLLWarning
from tests.cases import CASES, make


@pytest.fixture
def case():
    return make("mlp", 2, torch.float32)


@pytest.fixture
def uq(case) -> RichBLL:
    return RichBLL(case.model, noise_variance=[0.1, 0.2], prior_variance=3.0, subsample=40).fit(
        (case.train, torch.zeros(60, 2))
    )


@pytest.fixture
def path(uq, tmp_path):
    uq.save(tmp_path / "uq.safetensors")
    return tmp_path / "uq.safetensors"


def rewrite(path, change=None, drop=(), **header) -> None:
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if name not in drop}  # noqa: SIM118
        saved = json.loads(file.metadata()["richbll"])
    saved |= header
    if change:
        change(tensors, saved)
    save_file(tensors, path, metadata={"richbll": json.dumps(saved)})


@pytest.mark.parametrize("name", list(CASES))
def test_load_is_bit_equal(name: str, tmp_path) -> None:
    case = make(name, 2, torch.float32)
    uq = RichBLL(case.model, noise_variance=0.1, ridge=0.1).fit(case.train)
    uq.save(tmp_path / "uq.safetensors")
    again = load(tmp_path / "uq.safetensors", case.model)
    assert torch.equal(again.predict(case.test).std, uq.predict(case.test).std)
    assert torch.equal(again.joint(case.test).covariance, uq.joint(case.test).covariance)
    assert torch.equal(again.sample_functions(3)(case.test), uq.sample_functions(3)(case.test))


def test_all_that_was_fitted_comes_back(case, uq, path) -> None:
    again = load(path, case.model, device="cpu")
    assert torch.equal(again.noise_variance, uq.noise_variance)
    assert torch.equal(again.prior_variance, uq.prior_variance)
    assert (again.num_data, again.subsample_size, again.ridge) == (60, 40, 0.0)
    again.ridge = uq.ridge = 0.5  # what belongs to later changes is there too
    again.noise_variance = uq.noise_variance = 0.7
    assert torch.equal(again.predict(case.test).std, uq.predict(case.test).std)
    # fitting again takes the same last layer and parameters
    refit = again.fit((case.train, torch.zeros(60, 2)))
    assert refit._fitted.parameter_names == uq._fitted.parameter_names


def test_no_training_data_and_no_weights_inside(case, path) -> None:
    with safe_open(path, "pt") as file:
        shapes = {name: tuple(file.get_tensor(name).shape) for name in file.keys()}  # noqa: SIM118
    assert all(60 not in shape and 40 not in shape for shape in shapes.values())
    assert set(shapes).isdisjoint(case.model.state_dict())


def test_a_compiled_model_loads_too(case, uq, path) -> None:
    compiled = torch.compile(case.model, backend="eager")
    assert torch.equal(load(path, compiled).predict(case.test).std, uq.predict(case.test).std)


@pytest.mark.parametrize("keep", [0, 4, 100, -1000, -1])
def test_truncated(case, path, keep: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:keep])
    with pytest.raises(ArtifactError, match="cannot be read: truncated"):
        load(path, case.model)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04\x95pickle",
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 8) + b"not json",
        struct.pack("<Q", 2) + b"{}",
        b"PK\x03\x04" + b"0" * 100,
    ],
)
def test_hostile(case, path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ArtifactError):
        load(path, case.model)


def test_hostile_headers(case, path) -> None:
    save_file({"W": torch.zeros(1)}, path)
    with pytest.raises(ArtifactError, match="not one that richbll wrote"):
        load(path, case.model)
    save_file({"W": torch.zeros(1)}, path, metadata={"richbll": "[1, 2]"})
    with pytest.raises(ArtifactError, match="format 'list'"):
        load(path, case.model)
    save_file({"W": torch.zeros(1)}, path, metadata={"richbll": '{"format": 2}'})
    with pytest.raises(ArtifactError, match="missing or malformed"):
        load(path, case.model)


def test_another_format_version(case, path) -> None:
    rewrite(path, format=99)
    with pytest.raises(ArtifactError, match="has format 99; this version of richbll reads format 2"):
        load(path, case.model)


@pytest.mark.parametrize("name", ["W", "H.0", "noise_variance", "Q.0", "constant", "root"])
def test_a_missing_or_wrong_tensor_is_named(case, uq, path, name: str) -> None:
    rewrite(path, drop=(name,))
    with pytest.raises(ArtifactError, match=f"missing or malformed.*{name}"):
        load(path, case.model)
    for bad in (torch.zeros(2, 2, 2), torch.full(uq._fitted.tensors()[name].shape, float("nan"), dtype=torch.float64)):
        uq.save(path)
        rewrite(path, lambda tensors, _, bad=bad: tensors.update({name: bad}))
        with pytest.raises(ArtifactError, match=f"'{name}' (has shape|holds NaN)"):
            load(path, case.model)


def _scores(change):
    return lambda tensors, _: tensors.update(calibration=change(tensors["calibration"]))


@pytest.mark.parametrize(
    "change",
    [
        _scores(lambda scores: scores * torch.nan),
        _scores(lambda scores: -scores),
        _scores(lambda scores: scores.flip(0)),
        _scores(lambda scores: scores.long()),
        _scores(lambda scores: scores[:0]),
        _scores(lambda scores: scores[:, 0].contiguous()),
        lambda _, header: header.update(calibration=["lac", ""]),
        lambda _, header: header["options"].update(likelihood="classification"),
        lambda _, header: header["options"].update(subsample={"a": 1}),
        lambda _, header: header["last_layer"].update(name="1"),
        lambda _, header: header["last_layer"].update(has_bias=False),
        lambda _, header: header.update(parameter_names=["zzz"]),
    ],
)
def test_what_no_estimator_writes(case, uq, path, change) -> None:
    uq.conformalize((case.train, torch.randn(60, 2))).save(path)
    assert load(path, case.model)._calibration is not None
    rewrite(path, change)
    with pytest.raises(ArtifactError):
        load(path, case.model)


@pytest.mark.parametrize("field", ["last_layer", "num_rows", "ridge", "options", "architecture"])
def test_malformed_header_fields(case, path, field: str) -> None:
    rewrite(path, **{field: None})
    with pytest.raises(ArtifactError):
        load(path, case.model)


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 2)), "module 1"),
        (lambda: nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 2)), "0.weight"),
        (lambda: nn.Linear(4, 2), "and .* more"),
    ],
)
def test_another_architecture_names_what_differs(path, other, names: str) -> None:
    with pytest.raises(ArtifactError, match=f"another architecture.*{names}"):
        load(path, other())


def test_other_weights_warn(case, path) -> None:
    with torch.no_grad():
        case.model[0].weight[0, 0] += 0.1
    with pytest.warns(RichBLLWarning, match="fitted to other weights"):
        load(path, case.model)


def test_an_interrupted_save_leaves_the_old_file(case, uq, path, monkeypatch) -> None:
    before = path.read_bytes()

    def interrupted(tensors, filename, metadata):
        with open(filename, "wb") as file:
            file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("richbll.files.save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        uq.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_saving_into_a_folder_that_is_not_there(uq, tmp_path) -> None:
    with pytest.raises(ArtifactError, match="there is no such folder"):
        uq.save(tmp_path / "nowhere" / "uq.safetensors")
