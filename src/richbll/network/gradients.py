"""φ^m: the gradient of every output by the other parameters, one example at a time, for any module.

Two routes, both exact. `torch.func` vectorises over the examples of a micro-batch; where it refuses (GRU,
data-dependent control flow) or the model treats a batch of one differently, examples are differentiated one by one.
Each route is checked against the outputs of the whole batch; and what is vectorised also against the gradient of a
random sum over them, since torch's own rules for it are not all right (PReLU, with as many examples as outputs).
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from richbll.checks import finite_rows
from richbll.errors import ModelError, RichBLLWarning
from richbll.network.batches import Batch, map_tensors, tensors_in
from richbll.network.functional import call_with
from richbll.network.outputs import coarsest, read_output, same_outputs
from richbll.rng import child_generator

MOST_ROWS = 128  # of a micro-batch: beyond this vectorisation gains nothing and activations grow


@dataclass(frozen=True)
class Piece:
    """Elements start … stop of one parameter, flattened."""

    name: str
    start: int
    stop: int


Block = tuple[Piece, ...]


def blocks_of(sizes: dict[str, int], largest: int) -> list[Block]:
    """Cut the parameters, laid end to end, into blocks of at most `largest` elements."""
    blocks: list[Block] = []
    pieces: list[Piece] = []
    room = largest
    for name, size in sizes.items():
        start = 0
        while start < size:
            stop = min(size, start + room)
            pieces.append(Piece(name, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                blocks.append(tuple(pieces))
                pieces, room = [], largest
    return [*blocks, tuple(pieces)] if pieces else blocks


class ExampleGradients:
    """Reads φ^m of batches, block by block. Remembers which route works for this model."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self._model = model
        self._constants = {name: parameter.detach() for name, parameter in model.named_parameters()}
        self._parameters = {name: self._constants[name] for name in names}
        self._precision = coarsest(*(parameter.dtype for parameter in self._constants.values()))
        self.vectorised = True  # until a batch shows that it cannot be
        self._heard_of: set[str] = set()
        self._proved: set[tuple[object, ...]] = set()  # numbers of rows and outputs, and parameters

    def micro_batches(
        self, batch: Batch, f: Tensor, block: Block, most_bytes: int | None = None, columns: Tensor | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Rows and their gradients (n', c, m') by a block of parameters, within a number of bytes.

        `f` (n, c) is what the model returns for the whole batch. With `columns` (n,) an example gives the gradient of
        that one output only: (n', 1, m').
        """
        names = list(dict.fromkeys(piece.name for piece in block))
        width = sum(self._parameters[name].numel() for name in names)
        num_outputs = f.shape[1] if columns is None else 1
        per_row = num_outputs * width * max(self._parameters[name].element_size() for name in names)
        fitting = (
            MOST_ROWS if most_bytes is None else most_bytes // (2 * per_row)
        )  # gradients, and their copy in one piece
        num_rows = max(1, min(MOST_ROWS, fitting))
        for start in range(0, batch.size, num_rows):
            rows = slice(start, min(start + num_rows, batch.size))
            chosen = _every_output(f[rows]) if columns is None else columns[rows].unsqueeze(1)
            gradients = self._read(batch, rows, f, chosen, names)
            flat = {name: g.reshape(*g.shape[:2], -1) for name, g in gradients.items()}
            pieces = [flat[piece.name][..., piece.start : piece.stop] for piece in block]
            phi_m = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)
            finite_rows("gradients", batch.where, phi_m)
            yield rows, phi_m

    def _read(self, batch: Batch, rows: slice, f: Tensor, columns: Tensor, names: list[str]) -> dict[str, Tensor]:
        if self.vectorised:
            try:
                gradients, seen = self._all_at_once(batch, rows, columns, names)
                is_same = same_outputs(seen, f[rows], self._precision, among=f)
                if is_same and self._is_proved(batch, rows, columns, gradients):
                    return gradients
            except Exception:
                pass  # whatever torch.func cannot do, the loop below can, or it raises the model's own error
            self.vectorised = False
        gradients, seen = self._one_by_one(batch, rows, columns, names)
        self._warn_of_silence(names)
        if not same_outputs(seen, f[rows], self._precision, among=f):
            raise ModelError(
                f"In {batch.where} the model's output for an example depends on the other examples of its batch "
                f"(by up to {(seen - f[rows]).abs().max().item():.3g}), so an example has no gradient of its own. "
                "BatchNorm with track_running_stats=False, state that is kept between calls and randomness in eval "
                "mode do this, and so does a mean over padded positions of nn.TransformerEncoder, whose fast path sets "
                "them to zero in eval mode (take the mean over the others)."
            )
        return gradients

    def _all_at_once(
        self, batch: Batch, rows: slice, columns: Tensor, names: list[str]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients (n', c', …) of these rows' columns by torch.func, and the outputs (n', c) it saw."""
        is_mapped = batch.per_example
        batch = batch.rows(rows)
        leaves = tensors_in((batch.args, batch.kwargs))

        def outputs(parameters: dict[str, Tensor], columns: Tensor, *example: Tensor) -> tuple[Tensor, Tensor]:
            supply = iter(example)
            mapped = iter(is_mapped)

            def as_batch_of_one(_: Tensor) -> Any:
                leaf = next(supply)
                return leaf.unsqueeze(0) if next(mapped) else leaf

            args, kwargs = map_tensors((batch.args, batch.kwargs), as_batch_of_one)
            f = read_output(call_with(self._model, self._constants | parameters, args, kwargs), 1)[0]
            return f.gather(0, columns), f

        in_dims = (None, 0, *(0 if mapped else None for mapped in is_mapped))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks on operators that it vectorises slowly
            chosen = {name: self._parameters[name] for name in names}
            gradients, seen = vmap(jacrev(outputs, has_aux=True), in_dims=in_dims)(chosen, columns, *leaves)
        return gradients, seen

    def _one_by_one(
        self, batch: Batch, rows: slice, columns: Tensor, names: list[str]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The same by ordinary autograd. Examples go in pairs: a model may treat a batch of one differently."""
        chosen = {name: self._parameters[name].detach().requires_grad_() for name in names}
        gradients: dict[str, list[Tensor]] = {name: [] for name in names}
        seen = []
        for row in range(*rows.indices(batch.size)):
            pair = slice(max(0, min(row, batch.size - 2)), max(0, min(row, batch.size - 2)) + 2)
            example = batch.rows(pair)
            with torch.enable_grad():
                raw = call_with(self._model, self._constants | chosen, example.args, example.kwargs)
                f = read_output(raw, example.size)[row - pair.start]  # (c,)
            seen.append(f.detach())
            by_output = [self._of_one(f_c, chosen) for f_c in f[columns[row - rows.start]]]
            for position, name in enumerate(names):
                gradients[name].append(torch.stack([by_one[position] for by_one in by_output]))
        return {name: torch.stack(parts) for name, parts in gradients.items()}, torch.stack(seen)

    def _is_proved(self, batch: Batch, rows: slice, columns: Tensor, gradients: dict[str, Tensor]) -> bool:
        """Whether vectorised gradients are those of autograd: Σ R φ over all examples and outputs, with random R.

        Looked at once for each number of rows: where there is a fault in the vectorising, it is a matter of shapes.
        """
        about = (*columns.shape, *gradients)
        if about in self._proved:
            return True
        part = batch.rows(rows)
        chosen = {name: self._parameters[name].detach().requires_grad_() for name in gradients}
        with torch.enable_grad():
            raw = call_with(self._model, self._constants | chosen, part.args, part.kwargs)
            f = read_output(raw, part.size).gather(1, columns)
        R = torch.randn(f.shape, generator=child_generator(0, "proof"), dtype=torch.float64).to(f)
        wanted = self._of_one((f * R).sum(), chosen)
        allowed = torch.finfo(self._precision).eps ** 0.5
        sizes = [float(want.abs().max()) if want.numel() else 0.0 for want in wanted]
        for got, want, size in zip(gradients.values(), wanted, sizes, strict=True):
            gap = (torch.tensordot(R.to(got), got, dims=2) - want).abs()
            if gap.numel() and not float(gap.max()) <= allowed * max(size, 1e-3 * max(sizes)):
                return False
        self._proved.add(about)
        return True

    def _of_one(self, f: Tensor, chosen: dict[str, Tensor]) -> list[Tensor]:
        """The gradient of one number by the chosen parameters; zero where it does not depend on one."""
        if not f.requires_grad:
            return [torch.zeros_like(parameter) for parameter in chosen.values()]
        try:
            found = torch.autograd.grad(f, list(chosen.values()), retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if "checkpoint" in str(error).lower():
                raise ModelError(
                    "A reentrant checkpoint hides its parameters from the gradient: use_reentrant=False."
                ) from error
            raise
        self._heard_of |= {name for name, g in zip(chosen, found, strict=True) if g is not None}
        filled = zip(found, chosen.values(), strict=True)
        return [torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g for g, p in filled]

    def _warn_of_silence(self, names: list[str]) -> None:
        silent = [name for name in names if name not in self._heard_of]
        if silent:
            self._heard_of |= set(silent)  # say it once
            warnings.warn(
                f"The output does not depend on {len(silent)} parameter tensors ({', '.join(silent[:3])}, …): they are "
                "unused, or hidden by a reentrant checkpoint (use_reentrant=False shows them).",
                RichBLLWarning,
                stacklevel=6,
            )


def _every_output(f: Tensor) -> Tensor:
    """The columns 0 … c − 1 for every row."""  # (n, c)
    return torch.arange(f.shape[1], device=f.device).expand(f.shape)
