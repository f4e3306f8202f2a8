"""Fits of parts of the data, added up from files, equal one fit on all of it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from richbll import RichBLL, load, merge
from richbll.cli.main import main
from richbll.errors import ArtifactError, OptionError, RichBLLWarning
from richbll.solvers.sketch import Sketched
from tests.cases import make
from tests.test_artifact import rewrite

PARTS = [(0, 19), (19, 40), (40, 60)]


@pytest.fixture
def case():
    return make("mlp", 2, torch.float64)


@pytest.fixture
def targets(case):
    generator = torch.Generator().manual_seed(3)
    return case.train @ torch.randn(4, 2, generator=generator, dtype=torch.float64)


def save_part(path: Path, case, batch, **options) -> Path:
    uq = RichBLL(case.model, **{"solver": "cross", "noise_variance": 0.1} | options).fit(batch)
    uq.save(path, moments=True)
    return path


def save_parts(folder: Path, case, targets, parts=PARTS, **options) -> list[Path]:
    return [
        save_part(folder / f"{start}.safetensors", case, (case.train[start:stop], targets[start:stop]), **options)
        for start, stop in parts
    ]


def merged(paths, case, **options) -> RichBLL:
    out = paths[0].with_name("all.safetensors")
    merge(paths, out)
    return load(out, case.model, **options)


def noisy(x):
    return 0.1 + x[:, :1] ** 2


# ---------------------------------------------------------------------- equal to one fit


@pytest.mark.filterwarnings("ignore::richbll.errors.RichBLLWarning")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"noise_variance": None},
        {"ridge": 0.3, "prior_variance": 2.0},
        {"ridge": "gcv"},
        {"basis": "all_layers", "ridge": 0.1},
        {"enrich": False},
        {"noise_variance": noisy},
        {"likelihood": "classification"},
        {"likelihood": "classification", "curvature": "ggn", "class_posterior": "shared"},
        {"likelihood": "multilabel", "curvature": "ggn"},
        {"solver": "sketch", "ridge": 0.1},
        {"solver": Sketched("rademacher", 64, seed=4), "ridge": 0.1},
    ],
    ids=lambda options: ", ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in options.items()) or "defaults",
)
def test_equals_one_fit(case, targets, tmp_path, options) -> None:
    likelihood = options.get("likelihood", "regression")
    if likelihood != "regression":
        targets = (targets > 0).long() if likelihood == "multilabel" else (targets[:, 0] > 0).long()
        options = {"noise_variance": None} | options
    paths = save_parts(tmp_path, case, targets, **options)
    once = RichBLL(case.model, **{"solver": "cross", "noise_variance": 0.1} | options).fit((case.train, targets))
    again = merged(paths, case, **({"noise_variance": noisy} if options.get("noise_variance") is noisy else {}))
    close = {"rtol": 1e-10, "atol": 0}
    variance = "epistemic_variance" if likelihood == "regression" else "logit_variance"
    a, b = again.predict(case.test), once.predict(case.test)
    torch.testing.assert_close(getattr(a, variance), getattr(b, variance), **close)
    torch.testing.assert_close(again.noise_variance, once.noise_variance, **close)
    torch.testing.assert_close(again.prior_variance, once.prior_variance, **close)
    assert (again.num_data, again.ridge) == (60, pytest.approx(once.ridge, rel=1e-10))


def test_in_float32_too(tmp_path, targets) -> None:
    case = make("mlp", 2, torch.float32)
    again = merged(save_parts(tmp_path, case, targets.float(), ridge=0.1), case)
    once = RichBLL(case.model, solver="cross", noise_variance=0.1, ridge=0.1).fit((case.train, targets.float()))
    torch.testing.assert_close(again.predict(case.test).std, once.predict(case.test).std, rtol=1e-5, atol=0)


@pytest.mark.filterwarnings("ignore:12 rows for 9 feature directions")
def test_a_part_with_too_few_rows_for_itself(case, targets, tmp_path) -> None:
    paths = save_parts(tmp_path, case, targets, [(0, 12), (12, 60)])
    assert load(paths[0], case.model).ridge > 0
    once = RichBLL(case.model, solver="cross", noise_variance=0.1).fit((case.train, targets))
    again = merged(paths, case)
    assert again.ridge == once.ridge == 0
    torch.testing.assert_close(again.predict(case.test).std, once.predict(case.test).std, rtol=1e-10, atol=0)


def test_merged_again_and_updated(case, targets, tmp_path) -> None:
    paths = save_parts(tmp_path, case, targets)
    merge(paths[:2], tmp_path / "two.safetensors")
    merge([tmp_path / "two.safetensors", paths[2]], tmp_path / "three.safetensors")
    once = RichBLL(case.model, solver="cross", noise_variance=0.1).fit((case.train, targets))
    torch.testing.assert_close(
        load(tmp_path / "three.safetensors", case.model).predict(case.test).std, once.predict(case.test).std
    )
    grown = load(tmp_path / "two.safetensors", case.model).update(case.train[40:], refit=True)
    torch.testing.assert_close(grown.predict(case.test).std, once.predict(case.test).std)


@pytest.mark.parametrize("solver", ["cross", "sketch"])
def test_moments_in_a_file_are_enough_to_refit(case, targets, tmp_path, solver: str) -> None:
    options = {"solver": solver, "noise_variance": 0.1, "ridge": 0.1}
    uq = RichBLL(case.model, **options).fit((case.train[:40], targets[:40]))
    uq.save(tmp_path / "uq.safetensors", moments=True)
    again = load(tmp_path / "uq.safetensors", case.model)
    again.update(case.train[40:], refit=True)
    once = RichBLL(case.model, **options).fit((case.train, targets))
    torch.testing.assert_close(again.predict(case.test).std, once.predict(case.test).std, rtol=1e-8, atol=0)
    uq.save(tmp_path / "small.safetensors")
    with pytest.raises(OptionError, match=r"save\(moments=True\)"):
        load(tmp_path / "small.safetensors", case.model).update(case.test, refit=True)


def test_moving_keeps_what_refitting_needs() -> None:
    case = make("mlp", 3, torch.float64)
    labels = (case.train[:, 0] > 0).long() + (case.train[:, 1] > 0).long()
    options = {"likelihood": "classification", "solver": "cross"}
    moved = RichBLL(case.model, **options).fit((case.train[:40], labels[:40])).to("cpu")
    moved.update((case.train[40:], labels[40:]), refit=True)
    once = RichBLL(case.model, **options).fit((case.train, labels))
    torch.testing.assert_close(moved.predict(case.test).logit_variance, once.predict(case.test).logit_variance)


def test_what_was_set_by_hand_stays(case, targets, tmp_path) -> None:
    paths = []
    for number, (start, stop) in enumerate(PARTS):
        uq = RichBLL(case.model, solver="cross", noise_variance=0.1).fit(case.train[start:stop])
        uq.ridge, uq.noise_variance, uq.prior_variance = 0.5, 0.7, 3.0
        paths.append(tmp_path / f"{number}.safetensors")
        uq.save(paths[-1], moments=True)
    again = merged(paths, case)
    assert again.ridge == 0.5
    assert again.noise_variance.tolist() == [0.7, 0.7]
    assert again.prior_variance.tolist() == [3.0, 3.0]
    once = RichBLL(case.model, solver="cross", noise_variance=0.7, prior_variance=3.0, ridge=0.5).fit(case.train)
    torch.testing.assert_close(again.predict(case.test).std, once.predict(case.test).std)


# ---------------------------------------------------------------------- what does not add up


def test_no_moments_to_save(case, tmp_path) -> None:
    with pytest.raises(OptionError, match=r'save\(moments=True\) needs moments that add up.*solver="cross"'):
        RichBLL(case.model, noise_variance=0.1, solver="exact").fit(case.train).save(tmp_path / "uq", moments=True)
    assert list(tmp_path.iterdir()) == []


def prepared(path: Path, case, change, **options) -> Path:
    uq = RichBLL(case.model, **{"solver": "cross", "noise_variance": 0.1} | options).fit(case.train)
    change(uq)
    uq.save(path, moments=True)
    return path


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({"subsample": 30}, lambda uq: None, "subsample, 30 rows of 60.*Fit without subsample"),
        ({}, lambda uq: uq.update(torch.zeros(2, 4).double()), "was updated after its fit"),
        (
            {},
            lambda uq: uq.update((torch.zeros(2, 4).double(), torch.zeros(2, 2)), refit=True),
            "was updated after its fit",
        ),
        (
            {},
            lambda uq: uq.conformalize((torch.randn(20, 4).double(), torch.randn(20, 2).double())),
            "calibrated.*merge first",
        ),
        ({"ridge": 0.2}, lambda uq: None, "different options: ridge=None and ridge=0.2|ridge=0.2 and ridge=None"),
        ({"noise_variance": 0.2}, lambda uq: None, r"noise_variance \[0.2, 0.2\] and \[0.1, 0.1\]"),
        ({"prior_variance": 2.0}, lambda uq: None, r"prior_variance \[2.0, 2.0\] and \[1.0, 1.0\]"),
        ({}, lambda uq: setattr(uq, "ridge", 0.3), "ridge 0.3 and 0.0"),
        ({"solver": "sketch"}, lambda uq: None, "different options: solver='sketch' and solver='cross'"),
        ({"enrich": False}, lambda uq: None, "different parameters"),
        (
            {"parameters": lambda name: name == "0.weight"},
            lambda uq: None,
            r"different parameters: \('0.weight',\) and",
        ),
        ({"basis": "all_layers"}, lambda uq: None, "different last layers"),
    ],
)
def test_what_does_not_add_up(case, targets, tmp_path, options, change, message: str) -> None:
    first = save_part(tmp_path / "first", case, case.train)
    second = prepared(tmp_path / "second", case, change, **options)
    with pytest.raises((OptionError, ArtifactError), match=f"second.*(?:{message})"):
        merge([first, second], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_sketches_of_other_seeds(case, tmp_path) -> None:
    paths = [
        save_part(tmp_path / str(seed), case, case.train, solver=Sketched(seed=seed), ridge=0.1) for seed in (0, 1)
    ]
    with pytest.raises(OptionError, match=r"moments of different kinds.*'seed': 1.*'seed': 0"):
        merge(paths, tmp_path / "all")


def test_estimated_and_given_noise(case, targets, tmp_path) -> None:
    with pytest.warns(RichBLLWarning, match="estimated from training residuals"):
        first = save_part(tmp_path / "first", case, (case.train, targets), noise_variance=None)
    second = save_part(tmp_path / "second", case, (case.train, targets))
    with pytest.raises(OptionError, match=r"noise_variance.*tune after merging"):
        merge([first, second], tmp_path / "all")


def test_other_models(case, tmp_path) -> None:
    first = save_part(tmp_path / "first", case, case.train)
    with torch.no_grad():
        case.model[0].weight[0, 0] += 0.1
    with pytest.raises(ArtifactError, match=r"second and .*first were fitted to different weights"):
        merge([first, save_part(tmp_path / "second", case, case.train)], tmp_path / "all")
    case.model[1] = nn.ReLU()
    with pytest.raises(ArtifactError, match="different architectures: module 1 is ReLU in one, Tanh in the other"):
        merge([first, save_part(tmp_path / "second", case, case.train)], tmp_path / "all")


def test_bad_files_and_places(case, tmp_path) -> None:
    good = save_part(tmp_path / "good", case, case.train)
    plain = tmp_path / "plain"
    load(good, case.model).save(plain)
    with pytest.raises(OptionError, match="plain holds no moments"):
        merge([good, plain], tmp_path / "all")
    with pytest.raises(ArtifactError, match="nowhere: no such file"):
        merge([good, tmp_path / "nowhere"], tmp_path / "all")
    with pytest.raises(ArtifactError, match="no such folder"):
        merge([good], tmp_path / "nowhere" / "all")
    with pytest.raises(OptionError, match="given twice"):
        merge([good, tmp_path / ".." / tmp_path.name / "good"], tmp_path / "all")
    with pytest.raises(OptionError, match="one of the files to merge"):
        merge([good, plain], good)
    with pytest.raises(OptionError, match="a list of files"):
        merge(str(good), tmp_path / "all")
    with pytest.raises(OptionError, match="a list of files"):
        merge([], tmp_path / "all")
    for change in (
        lambda tensors, _: tensors.update(cross=torch.zeros(2, 3)),
        lambda tensors, _: tensors.update(cross=tensors["cross"] * float("nan")),
        lambda tensors, _: tensors.pop("cross"),
        lambda _, header: header["options"].pop("ridge"),
        lambda _, header: header.update(additive={"solver": "cross"}),
    ):
        bad = save_part(tmp_path / "bad", case, case.train)
        rewrite(bad, change)
        with pytest.raises(ArtifactError, match="bad"):
            merge([bad, good], tmp_path / "all")
    assert not (tmp_path / "all").exists()


# ---------------------------------------------------------------------- the command


def test_the_command(case, targets, tmp_path, capsys) -> None:
    paths = save_parts(tmp_path, case, targets)
    out = tmp_path / "all.safetensors"
    with pytest.raises(SystemExit) as exit_:
        main(["merge", *map(str, paths), "--out", str(out)])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith(f"{out}: 3 file(s) merged")
    assert load(out, case.model).num_data == 60


def test_the_command_says_what_is_wrong_in_one_line(case, targets, tmp_path, capsys) -> None:
    good = save_parts(tmp_path, case, targets)[0]
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(good.read_bytes()[:100])
    for arguments, message in (
        ([good, broken, "--out", tmp_path / "all"], "broken.safetensors cannot be read: truncated"),
        ([good, tmp_path / "nowhere", "--out", tmp_path / "all"], "nowhere: no such file"),
        ([good, "--out", tmp_path / "nowhere" / "all"], "no such folder"),
        ([good, "--out", tmp_path], "it is a folder"),
        ([good, tmp_path, "--out", tmp_path / "all"], "no such file"),
    ):
        with pytest.raises(SystemExit) as exit_:
            main(["merge", *map(str, arguments)])
        assert exit_.value.code == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("richbll: ")
        assert message in said.err
        assert said.err.count("\n") == 1
    assert not (tmp_path / "all").exists()


def test_the_command_warns_in_one_line_too(case, targets, tmp_path, capsys) -> None:
    with pytest.warns(RichBLLWarning, match="too few"):
        paths = save_parts(tmp_path, case, targets, [(0, 8), (8, 14)])
    with pytest.raises(SystemExit):
        main(["merge", *map(str, paths), "--out", str(tmp_path / "all")])
    assert capsys.readouterr().err.startswith("richbll: warning: 14 rows for 9 feature directions are too few")


def test_the_command_without_its_arguments(capsys) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["merge"])
    assert exit_.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_installed_command(tmp_path) -> None:
    command = Path(sys.executable).with_name("richbll")
    if not command.exists():
        pytest.skip("richbll is not installed as a command")
    done = subprocess.run([command, "merge", "a", "b", "--out", tmp_path / "c"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "richbll: a: no such file.\n"


def test_without_typer(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as exit_:
        main(["merge"])
    assert exit_.value.code == 1
    assert "pip install 'richbll[cli]'" in capsys.readouterr().err


def test_a_command_whose_extra_is_missing_says_so_and_the_others_run(monkeypatch, capsys, tmp_path) -> None:
    for name in [name for name in sys.modules if name.startswith("richbll_bench.report") or name == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "richbll_bench.commands.report", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(SystemExit) as stopped:
        main(["report", "--records", str(tmp_path)])
    assert stopped.value.code == 1
    assert "richbll report needs jinja2: pip install 'richbll[bench]'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["merge", str(tmp_path / "a"), "--out", str(tmp_path / "b")])
    assert "no such file" in capsys.readouterr().err
