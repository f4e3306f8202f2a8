"""Parameters, cut into ranges: C is made, squared and forgotten for one of them at a time."""

from dataclasses import dataclass, replace

from richbll.network.records import SiteShape
from richbll.network.structure import MANY_POSITIONS, Dense, Gradient, Outer, Windows

_HELD = 2**20  # elements of C at a time: it then stays in fast memory while all batches are added
_ROWS = 16  # of a weight, at least, where it acts at several positions: its other factor is read anew for every range
_CHANNELS = 16  # of a convolution's input, at least: products with fewer columns are slow


@dataclass(frozen=True)
class Range:
    """Elements start … stop of a site; by column, those of weight[:, start / unit : stop / unit].

    C does not care about the order of parameters. Some rows of a convolution's weight need windows of its whole input,
    anew for every range; some channels of the input need the windows of these channels.
    """

    shape: SiteShape
    start: int
    stop: int
    by_column: bool = False

    @property
    def unit(self) -> int:
        """Elements of a row, where it is best cut; by column of a column, and it is cut nowhere else."""
        return max(1, self.shape.size // self.shape.columns if self.by_column else self.shape.widths[1])

    def cut(self, most: int) -> list["Range"]:
        """In ranges of at most about `most` elements, of whole units where that is possible."""
        step = max(1, most // self.unit) * self.unit if self.unit <= most else max(1, most)
        starts = range(self.start, self.stop, step)
        return [replace(self, start=start, stop=min(start + step, self.stop)) for start in starts]

    def evenly(self, about: int, most: int) -> list["Range"]:
        """In ranges of about so many elements; the last may have fewer."""
        size = self.stop - self.start
        count = max(1, round(size / max(1, about)))
        return self.cut(min(most, -(-size // (count * self.unit)) * self.unit))

    def of(self, uses: list[Gradient]) -> tuple[list[Gradient], int, int]:
        """Gradients, and which of their elements these are. By column a weight is used once."""
        if not self.by_column:
            return uses, self.start, self.stop
        (one,) = uses
        first, last = self.start // self.unit, self.stop // self.unit
        if isinstance(one, Outer | Windows):
            return [one.of_columns(first, last)], 0, self.stop - self.start
        whole = one.dense(0, one.size)  # no rule held for these examples
        weight = whole.view(*whole.shape[:2], self.shape.widths[0], self.shape.columns, -1)
        return [Dense(weight[:, :, :, first:last].flatten(2))], 0, self.stop - self.start


def ranges_of(shapes: list[SiteShape], most: int) -> list[Range]:
    """Sites as ranges of at most about `most` elements."""
    return [part for shape in shapes for part in Range(shape, 0, shape.size).cut(most)]


def held_ranges(shapes: list[SiteShape], directions: int, most: int) -> list[Range]:
    """The same for kept gradients; C has so many numbers (c ρ) for every element."""
    return [part for shape in shapes for part in _held(shape, _HELD // directions, most)]


def _held(shape: SiteShape, about: int, most: int) -> list[Range]:
    whole = Range(shape, 0, shape.size, by_column=shape.columns > 0)
    if whole.unit > most:  # a part of a column is no range
        whole = replace(whole, by_column=False)
    if shape.kind == "linear":
        return whole.evenly(max(whole.unit * (_ROWS if shape.positions > 1 else 1), about), most)
    if whole.by_column:
        about *= 2 if shape.positions >= MANY_POSITIONS else 1  # gradients are then convolutions, best of many channels
        return whole.evenly(max(_CHANNELS * whole.unit, about), most)
    return whole.cut(most)  # windows are unfolded anew for every range, so there are as few as fit


def blocks_of_ranges(shapes: list[SiteShape], most: int) -> list[list[Range]]:
    """Ranges, gathered into blocks of at most `most` elements."""
    blocks: list[list[Range]] = []
    room = 0
    for part in ranges_of(shapes, most):
        size = part.stop - part.start
        if not blocks or size > room:
            blocks.append([])
            room = most
        blocks[-1].append(part)
        room -= size
    return blocks
