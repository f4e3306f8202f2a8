"""What rules must not be believed in: models that would fool a trial run, wrong rules, batches unlike the first."""

import warnings
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from richbll import RichBLL
from richbll.errors import ModelError, RichBLLWarning
from richbll.network import capture
from richbll.network.capture import layout_of
from richbll.network.company import companies, same_rows
from richbll.network.records import RecordReader
from richbll.network.rules import rules
from richbll.network.rules.linear import by_bias
from richbll.network.rules.rule import FLAT, SHARED
from richbll.network.structure import Outer
from tests.cases import CASES, Forward, make
from tests.network.hard import HARD, D, N, closed, model, x
from tests.network.ruled import assert_equals_truth, by_rule, read, reader_of, truth


@contextmanager
def without_rules():
    """Everything by the general route."""
    plain = RecordReader.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RecordReader, "__init__", lambda self, network, batch, rules=True: plain(self, network, batch, False)
        )
        yield


def variances(network: nn.Module, batches: list, **options) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RichBLLWarning)
        uq = RichBLL(network, noise_variance=0.3, **options).fit([_copied(batch) for batch in batches])
    return uq.predict(_copied(batches[0])).epistemic_variance


def _copied(batch):
    return {key: value.clone() for key, value in batch.items()} if isinstance(batch, dict) else batch.clone()


def with_neighbours(h: Tensor) -> Tensor:
    """Of rows in the middle of a batch only."""
    return torch.cat([h[:1], h[1:-1].roll(1, 0), h[-1:]])


# ---------------------------------------------------------------------- models


# a parameter of the branch that is not taken
unused = pytest.mark.filterwarnings("ignore:The output does not depend on 2 parameter tensors")


@unused
@pytest.mark.parametrize("name", list(HARD))
def test_every_batch_equals_autograd(name: str) -> None:
    torch.manual_seed(0)
    network, batches = HARD[name]()
    names = [name for name, _ in network.named_parameters() if not name.startswith(("head.", "4."))]
    reader = reader_of(network, _copied(batches[0]))
    for batch in batches:
        want = truth(network, _copied(batch), names)
        assert_equals_truth(reader, read(reader, _copied(batch)), want, 1e-9)


@pytest.mark.parametrize("name", list(HARD))
def test_posteriors_are_those_of_the_general_route(name: str) -> None:
    torch.manual_seed(0)
    network, batches = HARD[name]()
    got = variances(network, batches)
    with without_rules():
        want = variances(network, batches)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", list(CASES))
def test_the_zoo_with_and_without_rules(name: str) -> None:
    case = make(name, 2, torch.float64)
    batches = list(case.train.split(23))
    got = variances(case.model, batches, ridge=1e-3)
    with without_rules():
        torch.testing.assert_close(got, variances(case.model, batches, ridge=1e-3), rtol=1e-7, atol=0)


@pytest.mark.parametrize(
    ("name", "by_rules"),
    [
        ("dead_at_both_ends", {"b.weight", "b.bias"}),
        ("one_of_two_uses_dead_at_both_ends", {"a.bias"}),
        ("relus_dead_at_both_ends", {"0.weight", "0.bias", "2.weight", "2.bias"}),
        ("in_reverse", set()),
        ("a_shared_factor_dead_at_both_ends", set()),
        ("positions_of_a_single_token_later", {"at.weight"}),
        ("positions_of_a_single_token_first", set()),
        ("sorted_behind_a_large_constant", set()),
        ("a_gradient_inside", set()),
        ("a_forward_derivative_inside", set()),
        ("a_function_of_the_users_own", {"a.weight", "a.bias"}),
        ("one_attention_in_two_ways", {"a.out_proj.weight", "a.out_proj.bias"}),
        ("a_model_that_changes_its_input", {"a.weight", "a.bias"}),
    ],
)
def test_what_the_trial_shows(name: str, by_rules: set[str]) -> None:
    """Where there is nothing to see, a rule is neither believed nor given up: its call is tried by itself."""
    network, batches = HARD[name]()
    assert by_rule(reader_of(network, _copied(batches[0]))) == by_rules


@pytest.mark.parametrize(
    ("network", "rows"),
    [
        (nn.Sequential(nn.Linear(D, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 2)), N),
        (nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 2)), 3),
        (model(lambda m, v: torch.tanh(m.a(v) / m.a(v).abs().max()), a=nn.Linear(D, 6)), N),
        (model(lambda m, v: functional.dropout(torch.tanh(m.a(v)), 0.5, True), a=nn.Linear(D, 6)), N),
        (model(lambda m, v: torch.tanh(with_neighbours(m.a(v))), a=nn.Linear(D, 6)), 60),
    ],
    ids=["batch statistics", "batch statistics of three", "a maximum", "randomness", "only rows in the middle"],
)
def test_examples_that_depend_on_others_are_the_general_routes_error(network: nn.Module, rows: int) -> None:
    with pytest.raises(ModelError, match="depends on the other examples of its batch"):
        variances(network.double(), [x(rows, D)])


def test_a_loader_that_fills_the_same_memory_again() -> None:
    class Loader:
        def __init__(self) -> None:
            self.memory = torch.empty(10, D, dtype=torch.float64)

        def __len__(self) -> int:
            return 3

        def __iter__(self):
            for seed in range(3):
                yield self.memory.copy_(x(10, D, seed=seed))

    network = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    got = RichBLL(network, noise_variance=0.3).fit(Loader()).predict(x(5, D)).epistemic_variance
    apart = [x(10, D, seed=seed) for seed in range(3)]
    want = RichBLL(network, noise_variance=0.3).fit(apart).predict(x(5, D)).epistemic_variance
    torch.testing.assert_close(got, want)


@unused
def test_rows_are_cut_anew_when_rules_stop_to_hold() -> None:
    """A batch that was small enough for factors may be too large for dense gradients."""
    network, (first, other) = HARD["another_branch"]()
    reader = reader_of(network, first)
    room = 2 * 2 * 8 * 60 * 3  # two copies of two outputs' gradients by 60 parameters for three rows
    assert len(read(reader, first, room)) < 5
    records = read(reader, other, room)
    assert [record.rows.stop - record.rows.start for record in records] == [3, 3, 3, 3, 2]
    assert not reader._rules_hold


def test_an_error_of_the_model_is_the_models_own() -> None:
    def forward(m: nn.Module, v: Tensor) -> Tensor:
        if float(v[0, 0]) < -50:
            raise ValueError("not such inputs")
        return torch.tanh(m.a(v))

    network = model(forward, a=nn.Linear(D, 6))
    with pytest.raises(ValueError, match="not such inputs"):
        variances(network, [x(N, D), x(N, D) - 100])


def test_autocast() -> None:
    """What products in half precision make of the weights is not the rules': the general route, within its rounding."""
    network = nn.Sequential(nn.Linear(D, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = variances(network, [x(40, D).float()])
        with without_rules():
            want = variances(network, [x(40, D).float()])
    torch.testing.assert_close(got, want, rtol=2e-2, atol=0)


# ---------------------------------------------------------------------- wrong rules


def scaled(factor: float):
    """A weight's gradient, off by a factor."""

    def rule(tracer, func, args, kwargs):
        given, weight, bias = args
        z = func(given, tracer.leaf(weight), tracer.leaf(bias))
        return tracer.uses(
            z,
            (weight, lambda g, e: Outer(factor * g.unsqueeze(2), e.vectors(given.detach())), 0),
            (bias, by_bias, 0),
        )

    return rule


def mixed_up(tracer, func, args, kwargs):
    """The gradients of one example given to the next."""
    given, weight, bias = args
    z = func(given, tracer.leaf(weight), tracer.leaf(bias))
    return tracer.uses(
        z,
        (weight, lambda g, e: Outer(g.unsqueeze(2), e.vectors(given.detach().roll(1, 0))), 0),
        (bias, lambda g, e: by_bias(g.roll(1, 1), e), 0),
    )


def forgetful(tracer, func, args, kwargs):
    """No word of the bias."""
    given, weight, bias = args
    z = func(given, tracer.leaf(weight), tracer.leaf(bias))
    return tracer.uses(z, (weight, lambda g, e: Outer(g.unsqueeze(2), e.vectors(given.detach())), 0))


def falling(tracer, func, args, kwargs):
    """Fails when the gradient is to be made."""

    def fall(g, e):
        raise RuntimeError("shapes do not fit")

    z = func(args[0], tracer.leaf(args[1]), tracer.leaf(args[2]))
    return tracer.uses(z, (args[1], fall, 0), (args[2], by_bias, 0))


@pytest.mark.parametrize("are_dead", [False, True], ids=["alive", "dead at both ends"])
@pytest.mark.parametrize(
    ("rule", "believed"),
    [
        (scaled(1.0), {"a.weight", "a.bias"}),
        (scaled(1 + 1e-4), {"a.bias"}),
        (scaled(0.0), {"a.bias"}),
        (mixed_up, set()),
        (forgetful, {"a.weight"}),
        (falling, {"a.bias"}),
    ],
    ids=["right", "off by 1e-4", "zero", "mixed up", "forgetful", "falling"],
)
def test_a_wrong_rule_is_not_believed(rule, believed: set[str], are_dead: bool) -> None:
    gate = (lambda v: (v[:, :1] > 0).to(v)) if are_dead else (lambda v: 1.0)
    network = model(lambda m, v: torch.tanh(m.a(v)) * gate(v), a=nn.Linear(D, 6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "rules", lambda: rules() | {functional.linear: rule})
        reader = reader_of(network, closed(D))
        assert by_rule(reader) <= believed
        if not are_dead:
            assert by_rule(reader) == believed
        values = x(N, D, seed=1)
        assert_equals_truth(reader, read(reader, values), truth(network, values, ["a.weight", "a.bias"]), 1e-10)


# ---------------------------------------------------------------------- the parts


@pytest.mark.parametrize(
    ("small", "large", "layout"),
    [
        ((2, 5), (3, 5), 0),
        ((2,), (3,), 0),
        ((2, 2), (3, 2), 0),
        ((2, 2, 4), (2, 3, 4), 1),
        ((2, 2, 2), (2, 3, 2), 1),
        ((10, 4), (15, 4), FLAT),
        ((2, 3), (2, 3), SHARED),
        ((), (), SHARED),
        ((2, 2), (3, 3), None),
        ((4, 2, 2), (4, 2, 3), None),
        ((10, 4), (16, 4), None),
        ((4, 10), (4, 15), None),
        ((2, 4), (3, 5), None),
        ((2, 4), (3, 4, 1), None),
    ],
)
def test_where_the_batch_is(small: tuple[int, ...], large: tuple[int, ...], layout) -> None:
    assert layout_of(small, large, 2, 3) == layout


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9, 64, 1000])
def test_company(n: int) -> None:
    """Never that of the batch, nor in its order; the ends are always looked at, and everybody where that is asked."""
    (few,), halves = companies(n, everybody=False), companies(n, everybody=True)
    assert {0, n - 1} <= set(few.tolist())
    assert 2 <= len(few) <= 8
    assert few.tolist() != sorted(few.tolist()) or n == 1
    assert n == 1 or few.tolist() != [n - 1 - row for row in reversed(few.tolist())]
    assert {row for half in halves for row in half.tolist()} == set(range(n))
    assert all(len(half) > 1 and half.tolist() != list(range(n)) for half in halves)


def test_rows_that_differ_by_rounding() -> None:
    a = x(5, 3, 2)
    assert same_rows([(a, a + 1e-12), (a + 1e6, a + 1e6 + 1e-9)], torch.float64)
    assert not same_rows([(a, a), (a + 1e6, a.flip(0) + 1e6)], torch.float64)
    assert not same_rows([(a, a[:, :2])], torch.float64)
    assert not same_rows([(a, a * torch.nan)], torch.float64)
    assert same_rows([(a.float(), (a * (1 + 1e-6)).float())], torch.float32)


def test_a_trial_leaves_nothing_behind() -> None:
    network = Forward(lambda m, v: m.head(torch.tanh(m.a(v))), a=nn.Linear(D, 6), head=nn.Linear(6, 2)).double()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    reader = reader_of(network, x(N, D))
    read(reader, x(N, D))
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert not reader._trial.gradients
    assert torch.backends.mha.get_fastpath_enabled()


def test_processes_may_agree_to_give_up_a_rule() -> None:
    """What another process must read by the general route, this one reads so too."""
    network = model(lambda m, v: torch.tanh(m.b(torch.tanh(m.a(v)))), a=nn.Linear(D, 5), b=nn.Linear(5, 6))
    reader = reader_of(network, x(N, D))
    reader.shapes = [replace(s, kind="general", widths=(0, 0)) if s.site[0] == "a.weight" else s for s in reader.shapes]
    names = ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert_equals_truth(reader, read(reader, x(N, D)), truth(network, x(N, D), names), 1e-10)


def test_a_batch_in_parts_is_looked_at_again_and_again(monkeypatch) -> None:
    """At its beginning, and then once in 64 rows: not in every small part."""
    torch.manual_seed(0)
    network = Forward(lambda m, v: m.head(torch.tanh(m.a(v))), a=nn.Linear(3, 8), head=nn.Linear(8, 1))
    inputs = torch.randn(300, 3)
    reader, looked = reader_of(network, inputs), []
    same_alone = RecordReader._same_alone
    monkeypatch.setattr(
        RecordReader, "_same_alone", lambda self, batch, *rest: looked.append(batch) or same_alone(self, batch, *rest)
    )
    records = read(reader, inputs, room=20 * reader._trial.activation_bytes)
    assert [record.rows.stop - record.rows.start for record in records] == [20] * 15
    begins = [int((inputs == batch.args[0][0]).all(dim=1).nonzero()) for batch in looked]
    assert begins == [0, 80, 160, 240]


def test_a_part_of_a_batch_that_is_unlike_others_is_found() -> None:
    """A model that mixes examples, but in parts that begin with a mark only: the third of these is looked at."""

    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.head = nn.Linear(3, 8), nn.Linear(8, 1)

        def forward(self, x):
            h = torch.tanh(self.first(x))
            return self.head(h + h.mean(dim=0) if bool(x[0, 0] > 100) else h)

    inputs = torch.randn(300, 3)
    inputs[80, 0] = 1000.0
    network = Mixing()
    reader = reader_of(network, inputs)
    with pytest.raises(ModelError):
        read(reader, inputs, room=20 * reader._trial.activation_bytes)


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_positions_of_all_examples_in_one_matrix_in_small_parts(rows: int) -> None:
    """Examples with more or fewer positions than those of the trial, in parts of few rows: never by rules."""

    def forward(m, tokens, keep):
        h = torch.tanh(m.a(tokens[keep]))  # (all positions, 6)
        owner = keep.nonzero()[:, 0]
        return torch.zeros(len(tokens), 6, dtype=h.dtype).index_add(0, owner, h)

    network = model(forward, a=nn.Linear(D, 6))
    tokens, keep = x(8, 4, D), torch.zeros(8, 4, dtype=torch.bool)
    for row, count in enumerate([2, 2, 1, 3, 1, 3, 2, 2]):
        keep[row, :count] = True
    inputs = {"tokens": tokens, "keep": keep}
    reader = reader_of(network, inputs)
    records = read(reader, inputs, room=rows * reader._trial.activation_bytes)
    assert_equals_truth(reader, records, truth(network, inputs, ["a.weight", "a.bias"]), 1e-10)
