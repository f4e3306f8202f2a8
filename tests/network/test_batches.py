"""Data in every form that people have it."""

from collections import UserDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, SubsetRandomSampler, TensorDataset

from richbll import RichBLL
from richbll.errors import DataError, ShapeError
from tests.cases import Forward

generator = torch.Generator().manual_seed(0)
X, Y = torch.randn(50, 4, generator=generator), torch.randn(50, generator=generator)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def variance(model: nn.Module, data, **options) -> torch.Tensor:
    uq = RichBLL(model, noise_variance=0.5, **options).fit(data)
    assert uq.num_data == 50
    return uq.predict(X[:7]).epistemic_variance


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


FORMS = {
    "pair of tensors": lambda: (X, Y),
    "inputs alone": lambda: X,
    "loader of pairs": lambda: DataLoader(TensorDataset(X, Y), batch_size=16),
    "loader of inputs in a list": lambda: DataLoader(TensorDataset(X), batch_size=16),
    "shuffled loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True),
    "list of pairs": lambda: list(zip(X.split(16), Y.split(16), strict=True)),
    "list of inputs": lambda: list(X.split(20)),
    "batches of one": lambda: list(zip(X.split(1), Y.split(1), strict=True)),
    "with empty batches": lambda: [(X[:0], Y[:0]), (X[:30], Y[:30]), (X[:0], Y[:0]), (X[30:], Y[30:])],
    "generator": lambda: iter(list(zip(X.split(16), Y.split(16), strict=True))),
    "iterable data set": lambda: DataLoader(Stream(), batch_size=16),
    "targets in a column": lambda: (X, Y[:, None]),
    "targets None": lambda: [(X, None)],
    "inputs in a tuple": lambda: [((X,), Y)],
}


@pytest.mark.parametrize("form", list(FORMS))
def test_every_form_gives_the_same_posterior(form: str, model: nn.Module) -> None:
    want = variance(model, X)
    torch.testing.assert_close(variance(model, FORMS[form]()), want, rtol=1e-4, atol=1e-9)


def test_mappings_go_by_keyword_and_labels_do_not() -> None:
    def forward(m, input_ids, attention_mask=None, **rest):
        assert not rest
        words = m.words(input_ids) * attention_mask.unsqueeze(-1)
        return SimpleNamespace(logits=m.head(torch.tanh(words.sum(1))))

    model = Forward(forward, words=nn.Embedding(9, 5), head=nn.Linear(5, 1))
    ids, mask = torch.randint(9, (40, 6)), (torch.rand(40, 6) < 0.8).float()
    batch = UserDict(input_ids=ids, attention_mask=mask, labels=torch.randn(40))
    uq = RichBLL(model, noise_variance=1.0).fit([batch])
    pred = uq.predict({"input_ids": ids[:3], "attention_mask": mask[:3]})
    assert pred.std.shape == (3, 1)
    assert uq._fitted.moments.residual_sq is not None
    # labels were used as targets: without them there are no residuals
    del batch["labels"]
    assert RichBLL(model, noise_variance=1.0).fit([batch])._fitted.moments.residual_sq is None


def test_several_inputs_by_position() -> None:
    def forward(m, a, b):
        return m.head(torch.tanh(m.first(a) + m.second(b)))

    model = Forward(forward, first=nn.Linear(4, 6), second=nn.Linear(2, 6), head=nn.Linear(6, 1))
    b = torch.randn(50, 2)
    uq = RichBLL(model, noise_variance=1.0).fit([((X[:20], b[:20]), Y[:20]), ((X[20:], b[20:]), Y[20:])])
    assert uq.predict((X[:3], b[:3])).mean.shape == (3, 1)


def test_an_input_without_batch_dimension_is_passed_on_whole() -> None:
    def forward(m, x, scale, mask):
        return m.head(torch.tanh(m.hidden(x * scale)) @ mask)

    model = Forward(forward, hidden=nn.Linear(4, 6), head=nn.Linear(6, 1))
    mask = torch.eye(6)
    uq = RichBLL(model, noise_variance=1.0).fit([((X, torch.tensor(2.0), mask), Y)])
    same = RichBLL(nn.Sequential(model.hidden, nn.Tanh(), model.head), noise_variance=1.0).fit((2 * X, Y))
    got = uq.predict((X, torch.tensor(2.0), mask)).epistemic_variance
    torch.testing.assert_close(got, same.predict(2 * X).epistemic_variance, rtol=1e-4, atol=1e-9)


def test_n_is_what_was_seen(model: nn.Module) -> None:
    data = TensorDataset(X, Y)
    sampler = SubsetRandomSampler(range(23), generator=torch.Generator().manual_seed(0))
    by_sampler = RichBLL(model, noise_variance=0.5).fit(DataLoader(data, batch_size=8, sampler=sampler))
    by_subset = RichBLL(model, noise_variance=0.5).fit(DataLoader(Subset(data, range(23)), batch_size=8))
    assert by_sampler.num_data == by_subset.num_data == 23
    a, b = by_sampler.predict(X).epistemic_variance, by_subset.predict(X).epistemic_variance
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("empty", [[], iter([]), [(X[:0], Y[:0])], X[:0]])
def test_nothing_to_read(empty, model: nn.Module) -> None:
    with pytest.raises(DataError, match="no examples"):
        RichBLL(model, noise_variance=0.5).fit(empty)


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [
        (TensorDataset(X, Y), DataError, "Wrap it in a torch.utils.data.DataLoader"),
        (3, DataError, "not an iterable of batches"),
        ([(X, X, Y)], DataError, "Yield"),
        ([np.zeros((3, 4))], DataError, "torch.from_numpy"),
        ((X, Y[:10]), ShapeError, "50 and 10 rows"),
        ([(X, Y[:10])], ShapeError, r"10 targets but inputs of shape \(50, 4\)"),
        ([(X, torch.randn(50, 2))], ShapeError, r"batch 0.*\(50, 2\).*1 value"),
        ([(X, torch.tensor(1.0))], ShapeError, "targets of shape"),
    ],
)
def test_bad_data(data, error, reason, model: nn.Module) -> None:
    with pytest.raises(error, match=reason):
        RichBLL(model, noise_variance=0.5).fit(data)


def test_batch_not_first_is_noticed() -> None:
    model = Forward(lambda m, x: m.head(m.rnn(x)[0][-1]), rnn=nn.LSTM(4, 5), head=nn.Linear(5, 1))
    with pytest.raises(Exception, match="the first dimension must be the batch"):
        RichBLL(model, noise_variance=0.5).fit([torch.randn(7, 30, 4)])
