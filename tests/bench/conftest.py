"""Fixtures of the evidence."""

from tests.bench.regression_data import data

__all__ = ["data"]
