"""One page of HTML from the records, and the tables of the README."""

from richbll_bench.report.page import page, write_page
from richbll_bench.report.section import Section, sections

__all__ = ["Section", "page", "sections", "write_page"]
