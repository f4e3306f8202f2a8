"""Memory that is used again and again: fresh pages cost as much as the products that are written into them."""

import math
from functools import cache

import torch
from torch import Tensor

_LARGEST = 31 * 2**20  # bytes of a block that glibc learns from: up to 32 MiB


@cache
def keep_freed_memory() -> None:
    """What a step frees is there for the next one, and not given back to the system to be asked for again.

    glibc keeps what is free at the end of its heap up to twice the largest block that it has seen freed. In a process
    that has freed nothing large, every product of a small fit would begin with fresh pages, which take as long as the
    product. So it sees a large block freed, once; nothing is written into it.
    """
    torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")


class Room:
    """Holds one tensor at a time in each of its places, of any shape.

    Examples:
        >>> room = Room()
        >>> large = room.take((2, 3), like=torch.zeros(()))
        >>> room.take((2, 2), like=large).data_ptr() == large.data_ptr()
        True
        >>> room.take((2, 2), like=large, place=1).data_ptr() == large.data_ptr()
        False
    """

    def __init__(self) -> None:
        self._held: dict[int, Tensor] = {}

    def take(self, shape: tuple[int, ...], like: Tensor, place: int = 0) -> Tensor:
        """Uninitialised, of the same type and device as `like`; what was in this place before is lost."""
        size = math.prod(shape)
        held = self._held.get(place)
        if held is None or held.numel() < size or held.dtype != like.dtype or held.device != like.device:
            held = None
            self._held.pop(place, None)  # before the larger one is there
            held = self._held[place] = torch.empty(size, dtype=like.dtype, device=like.device)
        return held[:size].view(shape)


class Shelf(Room):
    """A room whose first place lies in a larger tensor: what is made there is where it belongs.

    Examples:
        >>> whole = torch.zeros(4, 2)
        >>> shelf = Shelf(Room(), whole[1:])
        >>> _ = shelf.take((1, 2), like=whole).fill_(1)
        >>> whole[:3]
        tensor([[0., 0.],
                [1., 1.],
                [0., 0.]])
    """

    def __init__(self, room: Room, where: Tensor) -> None:
        self._room = room
        self.lies(where)

    def lies(self, where: Tensor) -> None:
        """From now on the first place is there; what does not fit goes into the room's."""
        self._where = where.view(-1)

    def take(self, shape: tuple[int, ...], like: Tensor, place: int = 0) -> Tensor:
        """Uninitialised, as `Room.take`."""
        where, size = self._where, math.prod(shape)
        if place or len(where) < size or (where.dtype, where.device) != (like.dtype, like.device):
            return self._room.take(shape, like, place)
        return where[:size].view(shape)
