"""The gradient by an embedding's table: few of its rows receive anything from an example."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from richbll.network.structure import PIECE, Piece, owned, wide
from richbll.room import Room


@dataclass(frozen=True)
class Rows:
    """An embedding's table: at each of T positions one row receives g; rows of index −1 receive nothing."""

    indices: Tensor  # (n, T)
    g: Tensor  # (c, n, T, d)
    num_rows: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.num_rows * self.row

    @property
    def row(self) -> int:
        """One row of the table."""
        return self.g.shape[3]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is held."""
        return (self.indices, self.g)

    def dense(self, start: int, stop: int) -> Tensor:
        """Elements start … stop."""
        first, last = start // self.row, -(-stop // self.row)
        c, n, T, d = self.g.shape
        inside = (self.indices >= first) & (self.indices < last)
        places = (self.indices - first).where(inside, last - first)  # one row more than asked for takes the others
        places = places + torch.arange(n, device=places.device).unsqueeze(1) * (last - first + 1)
        table = wide(self.g).new_zeros(c, n * (last - first + 1), d)
        table.index_add_(1, places.flatten(), wide(self.g).reshape(c, n * T, d))
        flat = table.view(c, n, last - first + 1, d)[:, :, :-1].reshape(c, n, -1)
        return flat[:, :, start - first * d : stop - first * d]

    def pieces(self, start: int, stop: int, room: Room | None = None) -> Iterator[Piece]:
        """A few rows of the table at a time."""
        c, n = self.g.shape[:2]
        step = max(1, PIECE // max(1, c * n * self.row)) * self.row
        for begin in range(start, stop, step):
            end = min(begin + step, stop)
            yield slice(0, n), slice(begin - start, end - start), self.dense(begin, end)

    def product(self, U: Tensor, start: int, stop: int) -> Tensor:
        """Φᵀ U for whole rows start … stop of the table: only tokens that occur cost anything."""  # (c, elements, ρ)
        first, last = start // self.row, -(-stop // self.row)
        places = self.indices.flatten()
        chosen = ((places >= first) & (places < last)).nonzero().flatten()
        dtype = torch.promote_types(wide(self.g).dtype, U.dtype)
        g = self.g.flatten(1, 2)[:, chosen].to(dtype)  # (c, tokens, d)
        u = U[chosen // self.indices.shape[1]].to(dtype)  # (tokens, ρ)
        table = g.new_zeros(len(g), last - first, self.row * U.shape[1])
        table.index_add_(1, places[chosen] - first, (g.unsqueeze(-1) * u.unsqueeze(1)).flatten(2))
        flat = table.view(len(g), -1, U.shape[1])
        return flat[:, start - first * self.row : stop - first * self.row]

    def squared_norms(self) -> Tensor:
        """‖φ_i‖², tokens that occur twice in an example added up first."""  # (c, n)
        g = wide(self.g)
        same = (self.indices.unsqueeze(2) == self.indices.unsqueeze(1)) & (self.indices >= 0).unsqueeze(2)
        return ((g @ g.mT) * same).sum(dim=(2, 3))

    def kept(self) -> "Rows":
        """The same."""
        return replace(self, indices=owned(self.indices), g=owned(self.g))
