"""From a model, its data and the options to a fitted posterior."""

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from richbll.checks import human_bytes, positive_per_output
from richbll.core.moments import Moments
from richbll.core.projection import Projection, default_ridge, gcv_ridge, plain_projection
from richbll.core.subsample import advised_size, subsample_size
from richbll.distributed import alone_only, current_ranks
from richbll.errors import DataError, MemoryBudgetError, OptionError, RichBLLWarning
from richbll.fitted import Fitted, data_root, posterior_for
from richbll.keeping import Keeping
from richbll.likelihoods.categorical import Categorical, class_of
from richbll.likelihoods.gaussian import NO_TARGETS, noise_from_residuals
from richbll.network.agreement import check_alike, own_facts
from richbll.network.batches import Batch, Stream
from richbll.network.class_rows import ClassRows
from richbll.network.held_rows import hold_rows
from richbll.network.network import Network, read_network
from richbll.network.records import RecordReader
from richbll.network.untouched import untouched
from richbll.options import Options
from richbll.room import keep_freed_memory
from richbll.solvers.choice import choose_solver, planned
from richbll.solvers.plan import Plan
from richbll.solvers.solution import Solution, Source, feature_moments

_CLASS_RIDGE = 1.0  # the paper's


@torch.inference_mode(False)
def fit(
    model: nn.Module, data: Any, options: Options, will_be_tuned: bool = False, keeping: Keeping | None = None
) -> Fitted:
    """Read the data, find the projection and the posterior, and settle ridge, noise and prior.

    Where noise and prior will be tuned on held-out data anyway, the noise is not estimated from residuals.
    """
    keep_freed_memory()
    with untouched(model):
        ranks = current_ranks()
        with ranks.together("the first batch") as block:
            alone_only(ranks, transform=options.transform == "per_class", subsample=options.subsample == "auto")
            stream = Stream(data, device_of(model), options.progress, ranks)
            first = stream.peek()
            network = _read(model, first, options)
            _check_scales(network, first, options, will_be_tuned)
            block.value = own_facts(network, stream, options.saved(1))
        check_alike(block.said, stream)
        source = _source(stream, network, options)
        if keeping is not None:
            source = keeping.source(source, network, options)
        moments, projections, solution = _solved(network, source, options)
        moments = _classes_together(moments, network, options)
    ridge = settled_ridge(options, projections, moments, enriched=bool(network.parameter_sizes))
    root = data_root(projections, moments)
    posterior = posterior_for(projections, root, ridge, network.last_layer.num_own, moments.row_weight)
    g, device = len(posterior.W), posterior.W.device
    fitted = Fitted(
        last_layer=network.last_layer,
        parameter_names=tuple(network.parameter_sizes),
        moments=moments,
        projections=projections,
        ridge=ridge,
        root=root,
        posterior=posterior,
        noise_variance=torch.ones(g, dtype=torch.float64, device=device),
        prior_variance=positive_per_output("prior_variance", options.prior_variance, g).to(device),
        cross=None if solution is None else solution.cross,
        additive=None if solution is None else solution.additive,
    )
    return replace(fitted, noise_variance=_noise(options, fitted, will_be_tuned).to(device))


@torch.inference_mode(False)
def plan(model: nn.Module, data: Any, options: Options) -> Plan:
    """What a fit on this data would do, from its first batch and its length."""
    with untouched(model):
        stream = Stream(data, device_of(model), options.progress)
        if not stream.can_be_reread:
            raise DataError(
                "A plan looks at the first batch, and an iterator would then have lost it. Give what the iterator is "
                "made from: a DataLoader, or a list of batches."
            )
        network = _read(model, stream.peek(), options)
        reader = RecordReader(network, stream.peek())
        return planned(options.solver, network, stream, options.memory, _planned_rows(stream, network, options), reader)


def _planned_rows(stream: Stream, network: Network, options: Options) -> int | None:
    """How many rows will be read: all, or so many of each class."""
    total, subsample = stream.num_rows, options.subsample
    if subsample is None or total is None or isinstance(subsample, str):
        return total
    if isinstance(subsample, int):
        subsample *= network.last_layer.num_outputs if options.likelihood == "classification" else 1
    return min(total, subsample_size(subsample, total, network.last_layer.num_features))


def _read(model: nn.Module, first: Batch, options: Options) -> Network:
    return read_network(
        model,
        first,
        options.last_layer,
        options.parameters,
        make_reader=options.reader,
        enrich=options.enrich,
        wide=options.basis == "all_layers",
    )


def _check_scales(network: Network, first: Batch, options: Options, will_be_tuned: bool) -> None:
    """What can be told wrong before all of the data is read."""
    c = network.last_layer.num_outputs
    if (options.likelihood == "classification" and c < 2) or (options.likelihood == "binary" and c != 1):
        raise OptionError(
            f'likelihood="{options.likelihood}", but the model has {c} output(s): "binary" is for one, '
            '"classification" for one class of several, "multilabel" for a yes or no each.'
        )
    has_one_transform = options.transform != "per_class" or not network.parameter_sizes
    has_one_data_term = network.reader.one_column and not options.per_class(c, network.last_layer.num_features)
    if has_one_transform and has_one_data_term:
        c = 1
    positive_per_output("prior_variance", options.prior_variance, c)
    r = network.last_layer.num_features
    needed = 6 * 8 * c * r * r  # H, its root, L, R L, W and V of every posterior
    if needed > options.memory:
        raise MemoryBudgetError(
            f"{c} posteriors over {r} features take {human_bytes(needed)}, but memory_budget is "
            f"{human_bytes(options.memory)}. Raise the budget{_one_for_all(options)}."
        )
    if options.noise_variance is not None and options.noise_function is None:
        positive_per_output("noise_variance", options.noise_variance, c)
    elif options.default_noise is None and first.targets is None and not will_be_tuned:
        raise DataError(NO_TARGETS)


def _one_for_all(options: Options) -> str:
    """What to do about many classes."""
    if options.likelihood != "classification":
        return ""
    if options.transform != "per_class":
        return ', or class_posterior="shared"'
    return ', or transform="shared"' + (' with class_posterior="shared"' if options.class_posterior != "shared" else "")


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter lives."""
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _source(stream: Stream, network: Network, options: Options) -> Source:
    """All of the data, or the rows to use of it; for classes, so many of each."""
    if options.subsample is None:
        return stream
    r, memory = network.last_layer.num_features, options.memory // 2
    subsample: Any = options.subsample
    if subsample == "auto":
        if not stream.can_be_reread:
            return stream
        subsample = _advised(stream, network, options)
    strata = (lambda b: _classes(network, b)) if options.likelihood == "classification" else None
    return hold_rows(stream, subsample, r, options.seed, memory, strata)


def _advised(stream: Stream, network: Network, options: Options) -> int:
    """k for "auto", from one forward pass over the data; for classes the same k is allowed to each of them."""
    held, total = [], 0
    for batch in stream.batches("sizing"):
        phi_r, _ = network.features(batch)
        held.append(phi_r)
        total += phi_r.numel() * 8
        if total > options.memory // 4:
            raise MemoryBudgetError(
                f'subsample="auto" looks at the features of all rows, which take more than {human_bytes(total)}, a '
                "quarter of memory_budget. Give a number of rows, or a larger budget."
            )
    given = None if options.noise_function is not None else options.noise_variance
    noise = options.default_noise if given is None else given
    # without a noise yet, one so small that the data decides everything, which asks for the largest k
    ratio = _mean(1e-2 if noise is None else noise) / _mean(options.prior_variance)
    return advised_size(torch.cat(held), ratio, options.seed)


def _mean(scale: Any) -> float:
    """Of a number, or of one per output on any device."""
    return float(torch.as_tensor(scale).detach().cpu().double().mean())


def _classes(network: Network, batch: Batch) -> Tensor:
    """The class of every row: labels decide, so the network is run only without them."""
    if batch.targets is not None:
        shape_only = torch.empty(batch.size, network.last_layer.num_outputs, device="meta")
        return class_of(batch, shape_only)
    return class_of(batch, network.features(batch)[1])


def _solved(
    network: Network, source: Source, options: Options
) -> tuple[Moments, tuple[Projection, ...], Solution | None]:
    solve = choose_solver(options.solver, network, source, options.memory)
    if options.transform != "per_class" or not network.parameter_sizes:
        solution = solve(network, source, options.memory)
        return solution.moments, (solution.projection,), solution
    # one transform per class: each from the rows of its class alone
    if not source.can_be_reread:
        raise DataError('transform="per_class" reads the data once per class: give a loader that can be read again.')
    moments, _ = feature_moments(network, source)
    alone = replace(network, reader=Categorical("gaussian", per_class=False))
    seen = {number for batch in source.batches("classes") for number in _classes(network, batch).tolist()}
    projections = []
    for number in range(network.last_layer.num_outputs):
        rows = ClassRows(source, lambda batch: _classes(network, batch), number)
        if number in seen:
            projections.append(solve(alone, rows, options.memory).projection)
        else:
            projections.append(plain_projection(moments.gram_projection))
    return moments, tuple(projections), None


def _classes_together(moments: Moments, network: Network, options: Options) -> Moments:
    """With one data term for all classes, where "auto" has found too few rows for one of each."""
    weighted, r = moments.gram_weighted, network.last_layer.num_features
    if options.likelihood != "classification" or weighted is None or len(weighted) == 1:
        return moments
    if options.keeps_classes_apart(moments.num_rows, len(weighted), r):
        return moments
    return replace(moments, gram_weighted=weighted.sum(dim=0, keepdim=True))


def settled_ridge(options: Options, projections: tuple[Projection, ...], moments: Moments, enriched: bool) -> float:
    """The ridge asked for, or what the likelihood and the number of rows suggest."""
    if isinstance(options.ridge, float):
        return options.ridge
    if options.ridge == "gcv":
        return gcv_ridge(projections[0], moments.num_rows) if enriched else 0.0
    if not options.is_regression:
        return _CLASS_RIDGE
    spectrum = projections[0].spectrum
    ridge = default_ridge(spectrum, moments.num_rows) if enriched else 0.0
    if ridge > 0:
        warnings.warn(
            f"{moments.num_rows} rows for {spectrum.rank} feature directions are too few for plain least squares; the "
            f"projection is regularised with ridge={ridge:.3g}. Read more rows if you can.",
            RichBLLWarning,
            stacklevel=4,
        )
    return ridge


def _noise(options: Options, fitted: Fitted, will_be_tuned: bool) -> Tensor:
    g = len(fitted.posterior.W)
    if options.noise_function is None and options.noise_variance is not None:
        return positive_per_output("noise_variance", options.noise_variance, g)
    if options.default_noise is not None:
        return positive_per_output("noise_variance", options.default_noise, g)
    if will_be_tuned:
        return fitted.noise_variance
    sigma2 = noise_from_residuals(fitted.moments, fitted.posterior, fitted.prior_variance)
    warnings.warn(
        "The noise is estimated from training residuals, which understate it when the network has fitted its training "
        "data closely. Better: tune(loader) with data it was not trained on, or noise_variance=… from the error there.",
        RichBLLWarning,
        stacklevel=4,
    )
    return sigma2
