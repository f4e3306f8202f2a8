"""Mean and standard error over seeds."""

import math
import statistics
from collections.abc import Sequence

from richbll_bench.errors import TableError
from richbll_bench.tables.table import Cell


def summary(values: Sequence[float]) -> Cell:
    """Mean ± s/√n, with the sample's s (n − 1); one value alone has no error, and one NaN makes the mean NaN.

    Examples:
        >>> cell = summary([1.0, 2.0, 3.0])
        >>> cell.mean, round(cell.error, 4), cell.count
        (2.0, 0.5774, 3)
    """
    if not values:
        raise TableError("No values to summarise.")
    count = len(values)
    if not all(map(math.isfinite, values)):
        return Cell(mean=sum(values) / count, error=None, count=count)
    error = statistics.stdev(values) / math.sqrt(count) if count > 1 else None
    return Cell(mean=statistics.fmean(values), error=error, count=count)
