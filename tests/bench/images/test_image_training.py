"""The CNN, μP's rates, and a training that can be killed."""

import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from richbll import RichBLL
from richbll_bench.errors import EngineError
from richbll_bench.images import backbones, precision, training
from richbll_bench.images.backbones import Setting, trained
from richbll_bench.images.cnn import BASE_WIDTH, cnn, hidden_weights, parameter_groups
from richbll_bench.images.split import split
from richbll_bench.images.training import Recipe, train

SETTING = Setting("cifar10", width=4, epochs=3, num_images=200, precision="float32")


def test_the_paper_s_size() -> None:
    with torch.device("meta"):
        count = sum(p.numel() for p in cnn(BASE_WIDTH, seed=0).parameters())
    assert 5.16e6 < count < 5.18e6
    shapes = [tuple(p.shape) for p in cnn(4, seed=0).parameters() if p.ndim == 4]
    channels = [3, 4, 4, 8, 8, 8, 16, 16]
    assert shapes == [(o, i, 3, 3) for i, o in pairwise(channels)]


def test_rates_of_mu_p() -> None:
    model = cnn(32, seed=0)
    hidden, other = parameter_groups(model, 1e-3, 0.1, 32)
    assert (hidden["lr"], other["lr"]) == (4e-3, 1e-3)
    assert hidden["lr"] * hidden["weight_decay"] == pytest.approx(other["lr"] * other["weight_decay"])
    names = set(hidden_weights(model))
    assert names == {f"{block}.0.weight" for block in range(1, 7)}
    assert len(hidden["params"]) == 6
    assert len(hidden["params"]) + len(other["params"]) == len(list(model.parameters()))


def test_widths_start_from_features_of_one_scale() -> None:
    """μP: the last layer's own features do not vanish or grow with the width, and outputs shrink like its root."""
    x = torch.randn(64, 3, 32, 32)
    spread = {}
    for width in (8, 32):
        with torch.no_grad():
            outputs = torch.stack([cnn(width, seed).eval()(x).std() for seed in range(3)])
        spread[width] = float(outputs.mean())
    assert spread[8] / spread[32] == pytest.approx(2, rel=0.4)


def test_the_library_finds_the_last_layer_with_its_factor() -> None:
    model = cnn(4, seed=0, num_classes=3).eval()
    x, y = torch.randn(40, 3, 32, 32), torch.arange(40) % 3
    uq = RichBLL(model, "classification", progress=False).fit((x, y))
    assert repr(uq).startswith("RichBLL(Sequential, last_layer='9', r=17, N=40")


@pytest.mark.usefixtures("pretended")
def test_a_killed_training_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, recipe = split("cifar10", 0, num_images=200), Recipe(3, batch_size=64, precision="float32")
    whole = train(cnn(4, 0), data, recipe, 4, 0, progress=False)
    keep, epoch = tmp_path / "kept.part", training._epoch

    def dies(*given: object) -> None:
        if keep.is_file():
            raise KeyboardInterrupt
        epoch(*given)

    monkeypatch.setattr(training, "_epoch", dies)
    with pytest.raises(KeyboardInterrupt):
        train(cnn(4, 0), data, recipe, 4, 0, keep=keep, progress=False)
    monkeypatch.setattr(training, "_epoch", epoch)
    resumed = train(cnn(4, 0), data, recipe, 4, 0, keep=keep, progress=False)
    assert (resumed.epoch, resumed.accuracy) == (whole.epoch, whole.accuracy)
    assert all(torch.equal(resumed.state[name], tensor) for name, tensor in whole.state.items())
    assert [p.name for p in tmp_path.iterdir()] == ["kept.part"]


@pytest.mark.usefixtures("pretended")
def test_it_learns_and_the_best_epoch_is_kept() -> None:
    data = split("cifar10", 0)
    best = train(cnn(8, 0), data, Recipe(8, batch_size=32, precision="float32"), 8, 0, progress=False)
    assert best.accuracy > 0.4  # chance is 0.1
    assert 1 <= best.epoch <= 8
    model = cnn(8, 0)
    model.load_state_dict(best.state)
    assert training.accuracy(model, data.validation, data.scaling) == best.accuracy


def test_a_network_is_trained_once(pretended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RICHBLL_CACHE", str(tmp_path))
    data = split("cifar10", 0, 200)
    first = trained(SETTING, data, seed=0)
    monkeypatch.setattr(backbones, "train", None)
    again = trained(SETTING, data, seed=0)
    assert (again.epoch, again.validation_accuracy, again.seconds) == (
        first.epoch,
        first.validation_accuracy,
        first.seconds,
    )
    assert not again.model.training
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(first.model(x), again.model(x))
    (path,) = tmp_path.rglob("*.safetensors")
    assert set(load_file(path)) == set(first.model.state_dict())
    with pytest.raises(TypeError):  # another seed is another network
        trained(SETTING, data, seed=1)


@pytest.mark.usefixtures("pretended")
def test_bfloat16_changes_the_arithmetic_and_not_the_weights_type() -> None:
    data = split("cifar10", 0, num_images=100)
    found = {p: train(cnn(4, 0), data, Recipe(1, precision=p), 4, 0, progress=False) for p in ("float32", "bfloat16")}
    half, full = found["bfloat16"].state["1.0.weight"], found["float32"].state["1.0.weight"]
    assert half.dtype == full.dtype == torch.float32
    assert torch.isfinite(half).all()


def test_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    assert precision.dtype_of("float32") is None
    assert precision.dtype_of("bfloat16") is torch.bfloat16
    with pytest.raises(EngineError, match="no precision 'half'; there are auto, float32, bfloat16"):
        precision.dtype_of("half")

    def answers(code: str):
        monkeypatch.setattr(precision, "sys", type("Sys", (), {"executable": "/bin/sh"}))
        real = subprocess.run
        monkeypatch.setattr(precision.subprocess, "run", lambda command, **o: real([sys.executable, "-c", code], **o))
        precision.fastest.cache_clear()
        found = precision.fastest()
        monkeypatch.setattr(precision.subprocess, "run", real)
        precision.fastest.cache_clear()
        return found

    assert answers("import os; os.kill(os.getpid(), 4)") == "float32"  # an illegal instruction
    assert answers(f"print({json.dumps(json.dumps({'float32': 1.0, 'bfloat16': 0.5}))})") == "bfloat16"
    assert answers(f"print({json.dumps(json.dumps({'float32': 1.0, 'bfloat16': 0.9}))})") == "float32"


def test_steps_are_timed() -> None:
    assert 0 < precision.step_seconds(None, width=2, batch_size=2, repeats=1) < math.inf
