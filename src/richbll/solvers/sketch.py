"""Sketched, in one pass: E = Sᵀ Φ^mᵀ Φ^r with a random projection S of the parameters to q numbers, which is additive.

Memory is r q whatever the number of parameters, for streams and networks where nothing exact fits. The relative error
of AᵀA is about √((1 + sr)/q) with sr = tr(AᵀA)² / ‖AᵀA‖²_F.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from richbll.checks import one_of, whole_number
from richbll.network.agreement import tried_reader
from richbll.network.network import Network
from richbll.network.records import Record, RecordReader, SiteShape
from richbll.network.structure import Gradient, Outer, Piece, Windows, summed
from richbll.precision import float64_device
from richbll.rng import child_seed
from richbll.room import Room
from richbll.sketches import Sketch, make_sketch, sketch_names
from richbll.solvers.cross import additive
from richbll.solvers.plan import must_fit
from richbll.solvers.solution import Solution, Source

_BY_FACTORS = ("auto", "tensor_sketch", "kronecker")
_ROW_BY_ROW = ("auto", "fold", "tensor_sketch")  # as cheap for few examples at a time as for all
_WIDE = 8  # from so many times q elements on, a linear layer at one position is sketched by its factors
_FAST_BYTES = 3 * 2**26  # of activations: a forward and backward pass over more leaves the caches
_TOGETHER = 2**21  # elements at a time where the gradients of several uses are added up


@dataclass(frozen=True)
class Sketched:
    """A solver that projects the gradients of every example by a sketch, to be given as `solver=`.

    Args:
        kind: a name of `richbll.sketches`, or "auto": "tensor_sketch" for linear layers at one position, else "fold".
        size: q.
        seed: the sketches of other seeds are independent.
        rules: False forms every gradient by the general route, as the paper's reference implementation does.

    Examples:
        >>> from richbll import RichBLL, Sketched
        >>> model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        >>> uq = RichBLL(model, noise_variance=0.1, solver=Sketched("gaussian", 512)).fit(torch.randn(100, 2))
    """

    kind: str = "auto"
    size: int = 2048
    seed: int = 0
    rules: bool = True

    def __post_init__(self) -> None:
        one_of("kind", self.kind, ["auto", *sketch_names()])
        whole_number("size", self.size, least=1)
        whole_number("seed", self.seed)

    def __call__(self, network: Network, stream: Source, memory: int) -> Solution:
        """Read the data once."""
        c, r = network.num_gradients, network.last_layer.num_features
        check_fits(c, self.size, r, memory)
        reader = tried_reader(network, stream, self.rules)
        state = {
            "cross": torch.zeros(c, self.size, r, dtype=torch.float64, device=float64_device(network.device)),
            "trace": torch.zeros(c, dtype=torch.float64, device=float64_device(network.device)),
        }
        return additive(network, reader, stream, state, memory, _Adding(self, reader))


class _Adding:
    """Adds a record to E."""

    solver, most_bytes = "sketch", _FAST_BYTES

    def __init__(self, sketched: Sketched, reader: RecordReader) -> None:
        self._reader, self._kind, self._room = reader, sketched.kind, Room()
        flat, factored = ("fold", "tensor_sketch") if sketched.kind == "auto" else (sketched.kind, sketched.kind)
        self._flat = make_sketch(flat, sketched.size, sketched.seed)
        self._factored = make_sketch(factored, sketched.size, sketched.seed)
        sites = repr([(shape.site, shape.size, shape.kind, self._by_factors(shape)) for shape in reader.shapes])
        self.sketch: dict[str, Any] = asdict(sketched) | {"sites": f"{child_seed(0, sites):x}"}

    def __call__(self, cross: Tensor, record: Record) -> Tensor:
        """Adds in place; returns squared norms of sketches, on average those of the gradients."""
        phi = record.phi_r.to(torch.float64)
        total = torch.zeros(len(cross), len(phi), cross.shape[1], dtype=working(record.phi_r), device=phi.device)
        for shape in self._reader.shapes:
            name, start = shape.site
            total += self._sketched(f"{name}[{start}:]", record.gradients[shape.site], shape)
        cross += total.to(torch.float64).mT @ phi
        return torch.linalg.vector_norm(total, dim=2, dtype=torch.float64).square()

    def _sketched(self, address: str, uses: list[Gradient], shape: SiteShape) -> Tensor:
        """Of one site: by its factors, in the pieces that it comes in, or in ranges of all examples."""  # (c, n, q)
        size = shape.size
        if self._by_factors(shape):
            return _of_factors(self._factored, address, _as_outer(uses, shape))
        c, n = _leading(uses)
        held = uses[0].tensors[-1]
        total = torch.zeros(c, n, self._flat.size, dtype=working(held), device=held.device)
        for rows, elements, J in self._pieces(uses, size):
            flat = J.reshape(-1, J.shape[2])
            total[:, rows] += self._flat.flat(address, flat, elements.start).view(c, -1, self._flat.size)
        return total

    def _by_factors(self, shape: SiteShape) -> bool:
        """Decided once for a site, as all of its examples must go through one map.

        "auto": at one position, with so many elements that forming them costs more than transforming the factors.
        """
        if self._kind == "auto":
            return shape.kind == "linear" and shape.positions == 1 and shape.size > _WIDE * self._flat.size
        return self._kind in _BY_FACTORS and shape.kind in ("linear", "convolution")

    def _pieces(self, uses: list[Gradient], size: int) -> Iterator[Piece]:
        if self._kind in _ROW_BY_ROW and len(uses) == 1:
            if isinstance(uses[0], Windows):
                for rows, part in uses[0].few_examples():
                    yield rows, slice(0, size), part.dense(0, size, self._room)
            else:
                yield from uses[0].pieces(0, size, self._room)
            return
        # a dense sketch draws its numbers once for each range, so all examples go together
        n = _leading(uses)[1]
        step = max(1, _TOGETHER // max(1, n * uses[0].row)) * uses[0].row
        for start in range(0, size, step):
            stop = min(start + step, size)
            yield slice(0, n), slice(start, stop), summed(uses, start, stop)


def _leading(uses: list[Gradient]) -> tuple[int, int]:
    """c and n."""
    tensors = [tensor for use in uses for tensor in use.tensors if tensor.ndim > 2]
    return max(tensor.shape[0] for tensor in tensors), tensors[0].shape[1]


def _as_outer(uses: list[Gradient], shape: SiteShape) -> Outer:
    """The factors of a gradient; a convolution's are windows of its input. One without is Σ_t e_t (row t)ᵀ."""
    first = uses[0]
    found = first.unfolded() if isinstance(first, Windows) else first
    if len(uses) == 1 and isinstance(found, Outer):
        return found
    J = summed(uses, 0, shape.size)  # (c, n, size)
    rows = J.view(*J.shape[:2], *shape.widths)
    unit = torch.eye(shape.widths[0], dtype=J.dtype, device=J.device)
    return Outer(unit.expand(1, J.shape[1], -1, -1), rows)


def _of_factors(sketch: Sketch, address: str, outer: Outer) -> Tensor:
    """Each output by itself, as one of the factors is the same for all."""  # (c, n, q)
    outputs = range(max(len(outer.left), len(outer.right)))
    lefts, rights = len(outer.left) - 1, len(outer.right) - 1
    return torch.stack([sketch.outer(address, outer.left[min(k, lefts)], outer.right[min(k, rights)]) for k in outputs])


def working(like: Tensor) -> torch.dtype:
    """float64 for float64, else float32."""
    return torch.promote_types(like.dtype, torch.float32)


def sketch_bytes(c: int, q: int, r: int) -> int:
    """What the sketched cross moment takes."""
    return 8 * c * q * r


def check_fits(c: int, q: int, r: int, memory: int) -> None:
    """The sketch, in half of the memory."""
    must_fit(
        f"A sketch of {q} numbers with {r} features and {c} output(s)",
        sketch_bytes(c, q, r),
        memory // 2,
        "Nothing smaller gives the projection: raise the budget, or take a smaller sketch, "
        "solver=richbll.Sketched(size=…).",
    )


solve = Sketched()
