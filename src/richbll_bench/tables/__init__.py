"""Tables as values: made from records or from the paper, put beside each other, and written out in several forms."""

from richbll_bench.tables.beside import beside
from richbll_bench.tables.bold import with_bold
from richbll_bench.tables.markdown import markdown
from richbll_bench.tables.ours import ours
from richbll_bench.tables.paired import Paired, comparison, comparison_tables
from richbll_bench.tables.structure import structure
from richbll_bench.tables.summary import summary
from richbll_bench.tables.table import Cell, Column, Row, Table
from richbll_bench.tables.text import plain_text, rich_table

__all__ = [
    "Cell",
    "Column",
    "Paired",
    "Row",
    "Table",
    "beside",
    "comparison",
    "comparison_tables",
    "markdown",
    "ours",
    "plain_text",
    "rich_table",
    "structure",
    "summary",
    "with_bold",
]
