"""What is kept of data and of files while they change: copies, within the budget."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from richbll import load
from richbll.network.batches import Stream
from richbll.solvers import exact
from tests.small import WANT, X, fitted, mlp


class Refills:
    """Every batch in the same memory."""

    def __iter__(self):
        memory = torch.empty(10, 4)
        for rows in X.split(10):
            yield memory.copy_(rows)

    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize("options", [{}, {"solver": "cross"}, {"subsample": 30}, {"memory_budget": "64KiB"}])
def test_a_loader_that_fills_the_same_memory_again(options: dict) -> None:
    want = fitted(mlp(), list(X.split(10)), **options)
    found = fitted(mlp(), Refills(), **options)
    torch.testing.assert_close(found.predict(X).std, want.predict(X).std)
    assert str(found.diagnose(Refills())) == str(want.diagnose(list(X.split(10))))
    if options == {"solver": "cross"}:
        want.update(list(X.split(10)), refit=True)
        torch.testing.assert_close(found.update(Refills(), refit=True).predict(X).std, want.predict(X).std)


def test_a_file_that_is_written_over_after_it_was_loaded(tmp_path) -> None:
    model = mlp()
    fitted(model).save(tmp_path / "one")
    fitted(model, 10 * X, noise_variance=7.0).save(tmp_path / "two")
    uq = load(tmp_path / "one", model)
    (tmp_path / "one").write_bytes((tmp_path / "two").read_bytes())
    torch.testing.assert_close(uq.predict(X).epistemic_variance, WANT)
    assert float(uq.noise_variance) == pytest.approx(0.3)


class Uneven:
    """The first batch is small, and no length but that of the loader is known."""

    def __iter__(self):
        yield X[:2]
        yield from X[2:].split(24)

    def __len__(self) -> int:
        return 3


def test_a_small_first_batch_does_not_break_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Stream([X[:2], X[2:]], torch.device("cpu")).num_rows == 50
    assert Stream(DataLoader(TensorDataset(X), batch_size=20), torch.device("cpu")).num_rows == 60
    twice = []
    read_twice = exact._read_twice
    monkeypatch.setattr(exact, "_read_twice", lambda *given: twice.append(given) or read_twice(*given))
    enough = fitted(mlp(), Uneven(), memory_budget="1MiB")
    assert not twice
    found = fitted(mlp(), Uneven(), memory_budget="3KiB")
    assert len(twice) == 1  # six rows of gradients would have fitted
    torch.testing.assert_close(found.predict(X).std, enough.predict(X).std)
