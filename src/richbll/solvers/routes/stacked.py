"""Gradients of several batches, one below another: one product with many rows takes less than many with few.

To add one batch's product to C reads and writes all of C, which has as many rows as there are directions.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from richbll.network.structure import Gradient, Piece, place, summed
from richbll.precision import summing_dtype
from richbll.room import Room, Shelf
from richbll.solvers.routes.ranges import Range

STACKED = 31 * 2**20  # bytes of a stack: what is larger the C library does not keep for the next one
_SUMMED = 2**21  # elements at a time where the gradients of several uses are added up
_STACK = 2  # its place in a room

Uses = list[Gradient]  # of one range, by one batch


def neighbours(batches: Sequence[Uses], most_rows: int) -> Iterator[tuple[slice, list[Uses]]]:
    """Batches that follow each other, together as long as they have no more rows, with these rows."""
    some: list[Uses] = []
    start = stop = 0
    for uses in batches:
        n = _num_rows(uses)
        if some and stop + n - start > most_rows:
            yield slice(start, stop), some
            some, start = [], stop
        some.append(uses)
        stop += n
    yield slice(start, stop), some


def stacked(batches: list[Uses], all_rows: slice, part: Range, c: int, like: Tensor, room: Room) -> Iterator[Piece]:
    """Pieces of some batches over a range, in the dtype of `like`; several batches make one, in the room."""
    if len(batches) == 1:
        for rows, elements, J in _pieces(batches[0], part, room):
            yield slice(all_rows.start + rows.start, all_rows.start + rows.stop), elements, J.to(like.dtype)
        return
    size = part.stop - part.start
    stack = room.take((c, all_rows.stop - all_rows.start, size), like, place=_STACK)
    is_shelf = c == 1 and summing_dtype(like.device) == torch.float64  # MPS may lose a product into a part of a tensor
    start = 0
    for uses in batches:
        shelf = Shelf(room, stack[0, start:]) if is_shelf else None
        for rows, elements, J in _pieces(uses, part, room if shelf is None else shelf):
            _put(J, stack[:, start + rows.start : start + rows.stop, elements])
            if shelf is not None:
                shelf.lies(stack[0, start + rows.stop :])
        start += _num_rows(uses)
    yield all_rows, slice(0, size), stack


def _put(J: Tensor, where: Tensor) -> None:
    """A piece into the stack, unless it was made there."""
    is_there = J.untyped_storage().data_ptr() == where.untyped_storage().data_ptr()
    if not is_there or place(J[0]) != place(where[0]):
        where.copy_(J.clone() if is_there else J)  # it may be there, but not as it is to lie


def _pieces(uses: Uses, part: Range, room: Room) -> Iterator[Piece]:
    """Of one batch."""
    uses, start, stop = part.of(uses)
    return uses[0].pieces(start, stop, room) if len(uses) == 1 else _summed_pieces(uses, part)


def _summed_pieces(uses: list[Gradient], part: Range) -> Iterator[Piece]:
    """The sum over several uses of a parameter."""
    n = _num_rows(uses)
    for small in part.cut(max(1, _SUMMED // max(1, n))):
        J = summed(uses, small.start, small.stop)
        yield slice(0, n), slice(small.start - part.start, small.stop - part.start), J


def _num_rows(uses: Uses) -> int:
    return uses[0].tensors[-1].shape[1]
