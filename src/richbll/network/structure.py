"""Gradients by one parameter, example by example, in the form that its layer gives them.

A linear map's gradient is a sum of outer products, a convolution's a correlation of windows, an embedding's a few rows;
everything else is dense. All hold c outputs and n examples, and give any range of the flattened parameter when asked,
piece by piece: pieces are small enough to stay in fast memory, and the n × m matrix is never there as a whole.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from richbll.products import product
from richbll.room import Room

# From so many positions on, a grouped convolution over examples is faster than unfolding and multiplying,
MANY_POSITIONS = 256
# but for pieces of one output and windows of few elements: those of an image with its three colours.
_SMALL_WINDOW = 32


# Elements of a piece: 16 MiB of float32. Larger ones leave the caches, and fresh memory costs more than arithmetic.
PIECE = 2**22
_COLUMNS = 1  # the place of unfolded windows in a room; gradients have the first one
# Elements of x and g together with which a grouped convolution stays in the caches: with four times as many it took 1.7
# times as long for each.
_CONVOLVED = 2**20

Piece = tuple[slice, slice, Tensor]  # examples, elements, and their gradients (c, n', elements)


class Gradient(Protocol):
    """∂f/∂θ for one range of one parameter: c outputs, n examples, `size` elements."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def row(self) -> int:
        """Ranges that begin and end at multiples of this are made without waste."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is held."""

    def dense(self, start: int, stop: int) -> Tensor:
        """Elements start … stop, in at least float32."""  # (c, n, stop − start)

    def pieces(self, start: int, stop: int, room: Room | None = None) -> Iterator[Piece]:
        """The same in pieces, the first examples first; elements are counted from `start`.

        With a room, a piece may be in it, and is lost when the next one is made.
        """

    def kept(self) -> "Gradient":
        """The same, without views of larger tensors and without a graph: what a cache holds."""


@dataclass(frozen=True)
class Dense:
    """All elements, as they are."""

    values: Tensor  # (c, n, p)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.values.shape[2]

    @property
    def row(self) -> int:
        """Any range is as good."""
        return 1

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is held."""
        return (self.values,)

    def dense(self, start: int, stop: int) -> Tensor:
        """Elements start … stop."""
        return wide(self.values[:, :, start:stop])

    def pieces(self, start: int, stop: int, room: Room | None = None) -> Iterator[Piece]:
        """All at once."""
        yield slice(0, self.values.shape[1]), slice(0, stop - start), self.dense(start, stop)

    def kept(self) -> "Dense":
        """The same."""
        return Dense(owned(self.values))


@dataclass(frozen=True)
class Outer:
    """Σ_t left_t right_tᵀ over T positions, flattened row by row. One of the factors is the same for all outputs."""

    left: Tensor  # (c or 1, n, T, d_left)
    right: Tensor  # (c or 1, n, T, d_right)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.left.shape[3] * self.right.shape[3]

    @property
    def row(self) -> int:
        """One row of the matrix."""
        return self.right.shape[3]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is held."""
        return (self.left, self.right)

    def dense(self, start: int, stop: int, room: Room | None = None) -> Tensor:
        """Elements start … stop."""
        first, last = start // self.row, -(-stop // self.row)
        left, right = wide(self.left[..., first:last]), wide(self.right)
        c, n = max(len(left), len(right)), left.shape[1]
        if room is not None and c == 1 and left.dtype == right.dtype:
            rows = room.take((n, last - first, self.row), like=left)
            product = torch.bmm if left.shape[2] > 1 else torch.mul
            product(left[0].mT, right[0], out=rows)
        else:
            rows = left.mT @ right if left.shape[2] > 1 else left.mT * right  # (c, n, rows, d_right)
        flat = rows.reshape(c, n, -1)
        return flat[:, :, start - first * self.row : stop - first * self.row]

    def pieces(self, start: int, stop: int, room: Room | None = None) -> Iterator[Piece]:
        """A few rows of the matrix at a time."""
        c, n = max(len(self.left), len(self.right)), self.left.shape[1]
        count = max(1, min(n, PIECE // (c * self.row)))
        step = max(1, PIECE // (c * count * self.row)) * self.row
        for i in range(0, n, count):
            rows = slice(i, min(i + count, n))
            some = self if count == n else Outer(self.left[:, rows], self.right[:, rows])
            for begin in range(start, stop, step):
                end = min(begin + step, stop)
                yield rows, slice(begin - start, end - start), some.dense(begin, end, room)

    def of_columns(self, first: int, last: int) -> "Outer":
        """The gradient by weight[:, first:last]."""
        return Outer(self.left, self.right[..., first:last])

    def kept(self) -> "Outer":
        """The same."""
        return Outer(owned(self.left), owned(self.right))


@dataclass(frozen=True)
class Windows:
    """A convolution's weight (channels of g, channels of x / groups, *kernel): g correlated with windows of x.

    For a transposed convolution the two have changed places, and x is padded already.
    """

    x: Tensor  # (c or 1, n, d_x, *space)
    g: Tensor  # (c or 1, n, d_g, *positions)
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    padding: tuple[int, ...] = ()  # zeros on both sides of x, as many as its windows reach; none: x is as it is

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.g.shape[2] * self.row

    @property
    def row(self) -> int:
        """One channel of g."""
        return self.x.shape[2] // self.groups * math.prod(self.kernel)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is held."""
        return (self.x, self.g)

    def dense(self, start: int, stop: int, room: Room | None = None) -> Tensor:
        """Elements start … stop."""
        per_group = self.g.shape[2] // self.groups
        first, last = start // self.row, -(-stop // self.row)
        if self.groups > 1:  # whole groups, so that every channel of g meets its own channels of x
            first, last = first // per_group * per_group, -(-last // per_group) * per_group
        groups = range(first // per_group, -(-last // per_group))
        width = self.x.shape[2] // self.groups
        x = wide(self._reached[:, :, groups.start * width : groups.stop * width])
        g = wide(self.g[:, :, first:last])
        outputs = self._outputs()
        room = room if len(outputs) == 1 else None  # it holds one of them at a time
        parts = [self._one_output(x[min(k, len(x) - 1)], g[min(k, len(g) - 1)], len(groups), room) for k in outputs]
        flat = torch.stack(parts) if len(parts) > 1 else parts[0].unsqueeze(0)
        return flat[:, :, start - first * self.row : stop - first * self.row]

    def pieces(self, start: int, stop: int, room: Room | None = None) -> Iterator[Piece]:
        """A few examples at a time; after unfolding, a few channels at a time."""
        c, n = len(self._outputs()), self.x.shape[1]
        is_small = len(self.kernel) == 2 and self.row <= _SMALL_WINDOW
        unfolded = (is_small or self._is_unfolded()) and self.groups == 1 and c == 1
        per_example = 2 * self.row * self.g[0, 0, 0].numel() // 5 if unfolded else c * (stop - start)
        count = min(n, max(1 if is_small else 8, PIECE // max(1, per_example)))
        for i in range(0, n, max(1, count)):
            rows = slice(i, min(i + count, n))
            some = replace(self, x=self.x[:, rows], g=self.g[:, rows])
            if not unfolded:
                yield rows, slice(0, stop - start), some._by_few(start, stop, room)
                continue
            outer = Outer(some.g.flatten(3).mT, some._columns(wide(some._reached[0]), room).mT.unsqueeze(0))
            for part, elements, J in outer.pieces(start, stop, room):
                yield slice(i + part.start, i + part.stop), elements, J

    def _by_few(self, start: int, stop: int, room: Room | None) -> Tensor:
        """The same as `dense`, of few examples at a time where a grouped convolution forms it."""
        n = self.x.shape[1]
        count = max(1, _CONVOLVED // max(1, self.x[:, 0].numel() + self.g[:, 0].numel()))
        if room is None or self._is_unfolded() or count >= n:
            return self.dense(start, stop, room)
        found = room.take((len(self._outputs()), n, stop - start), like=wide(self.x[:, :0]))
        for i in range(0, n, count):
            rows = slice(i, i + count)
            found[:, rows] = replace(self, x=self.x[:, rows], g=self.g[:, rows]).dense(start, stop)
        return found

    def of_columns(self, first: int, last: int) -> "Windows":
        """The gradient by weight[:, first:last] of a convolution with one group."""
        return replace(self, x=self.x[:, :, first:last])

    def few_examples(self) -> Iterator[tuple[slice, "Windows"]]:
        """In so few examples that their windows, once unfolded, and their gradients stay in fast memory."""
        per_example = max(self.size, 4 * self.row * self.g[0, 0, 0].numel() if self._is_unfolded() else 0)
        count = max(1, PIECE // (len(self._outputs()) * per_example))
        for start in range(0, self.x.shape[1], count):
            rows = slice(start, start + count)
            yield rows, replace(self, x=self.x[:, rows], g=self.g[:, rows])

    def unfolded(self) -> Outer | None:
        """The same as outer products with windows, where it has one group and two dimensions."""
        if self.groups > 1 or len(self.kernel) != 2:
            return None
        columns = torch.stack([self._columns(wide(x)) for x in self._reached])
        return Outer(self.g.flatten(3).mT, columns.mT)

    def _is_unfolded(self) -> bool:
        return len(self.kernel) == 2 and self.g[0, 0, 0].numel() < MANY_POSITIONS

    def _columns(self, x: Tensor, room: Room | None = None) -> Tensor:
        """Windows of x at the positions of g, perhaps a view of it; torch's unfold takes twice as long."""
        x = padded(x, [(side, side) for side in self.padding])
        lead, between, positions = x.stride()[:2], x.stride()[2:], self.g.shape[3:]
        sizes = zip(x.shape[2:], positions, self.stride, self.kernel, self.dilation, strict=True)
        assert all((count - 1) * s + d * (k - 1) < size for size, count, s, k, d in sizes)
        within = (step * d for step, d in zip(between, self.dilation, strict=True))
        along = (step * s for step, s in zip(between, self.stride, strict=True))
        windows = x.as_strided((*x.shape[:2], *self.kernel, *positions), (*lead, *within, *along))
        shape = (len(x), x.shape[1] * math.prod(self.kernel), positions.numel())  # (n, d_x · kernel, T)
        if room is None or windows.is_contiguous():
            return windows.reshape(shape)
        columns = room.take(shape, like=x, place=_COLUMNS)
        columns.view(windows.shape).copy_(windows)
        return columns

    @property
    def _reached(self) -> Tensor:
        """x without what lies behind the last window: a transposed convolution can have more of it than a stride."""
        if self.padding:
            return self.x
        reached = self.x
        sizes = zip(self.g.shape[3:], self.kernel, self.stride, self.dilation, strict=True)
        for dim, (count, k, s, d) in enumerate(sizes, start=3):
            reached = reached.narrow(dim, 0, (count - 1) * s + d * (k - 1) + 1)
        return reached

    def _outputs(self) -> range:
        return range(max(len(self.x), len(self.g)))

    def _one_output(self, x: Tensor, g: Tensor, groups: int, room: Room | None = None) -> Tensor:
        """The rows of some channels of g for one output."""  # (n, channels · row)
        n, dims = len(x), len(self.kernel)
        if self._is_unfolded():
            columns = self._columns(x, room)
            shape = (n * groups, -1, columns.shape[2])
            return product(g.reshape(shape), columns.reshape(shape).mT, room).reshape(n, -1)
        # one convolution whose groups are the examples
        weight = x.new_empty(1).expand(
            n * g.shape[1], x.shape[1] // groups, *self.kernel
        )  # its shape is all that counts
        found = torch.ops.aten.convolution_backward(
            g.reshape(1, n * g.shape[1], *g.shape[2:]),
            x.reshape(1, n * x.shape[1], *x.shape[2:]),
            weight,
            None,
            list(self.stride),
            list(self.padding or [0] * dims),
            list(self.dilation),
            False,
            [0] * dims,
            n * groups,
            [False, True, False],
        )[1]
        return found.reshape(n, -1)

    def kept(self) -> "Windows":
        """The same."""
        return replace(self, x=owned(self.x), g=owned(self.g))


def wide(values: Tensor) -> Tensor:
    """In at least float32: sums of bfloat16 products are too coarse."""
    return values if values.dtype.itemsize >= 4 else values.float()


def place(values: Tensor) -> tuple[int, ...]:
    """Equal for the same memory, read in the same way. A view of a part can begin where the whole begins."""
    return (values.data_ptr(), *values.shape, *values.stride())


def owned(values: Tensor) -> Tensor:
    """Without a graph; a copy where it is a view that would keep a larger tensor alive."""
    values = values.detach()
    return values.clone() if values.untyped_storage().nbytes() > 2 * values.numel() * values.element_size() else values


def padded(x: Tensor, amounts: list[tuple[int, int]]) -> Tensor:
    """Zeros before and after each of the last dimensions."""
    flat = [side for pair in reversed(amounts) for side in pair]
    return pad(x, flat) if any(flat) else x


def summed(parts: list[Gradient], start: int, stop: int) -> Tensor:
    """Elements start … stop of the sum over all uses of a parameter."""  # (c, n, stop − start)
    total = parts[0].dense(start, stop)
    for part in parts[1:]:
        total = total + part.dense(start, stop)
    return total
