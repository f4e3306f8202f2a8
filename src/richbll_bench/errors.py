"""What can go wrong around the evidence, by kind; all of them are errors of richbll."""

from pathlib import Path

from richbll.errors import RichBLLError

__all__ = [
    "BanditError",
    "ChecksumError",
    "ContentError",
    "DatasetError",
    "DownloadError",
    "EngineError",
    "MissingDatasetError",
    "PaperTableError",
    "RecordError",
    "TableError",
    "UnknownAgentError",
    "UnknownDatasetError",
    "UnknownExperimentError",
    "UnknownMethodError",
]


class DatasetError(RichBLLError):
    """A data set cannot be had."""


class UnknownDatasetError(DatasetError, ValueError):
    """There is no data set of that name."""


class MissingDatasetError(DatasetError):
    """The file is in no folder and could not be downloaded. The message lists everything that was tried."""


class ChecksumError(DatasetError):
    """A file is there, but it is not the file that was meant."""

    def __init__(self, path: Path | str, expected: str, actual: str) -> None:
        super().__init__(f"{path} has sha256 {actual}, but it must be {expected}.")
        self.path, self.expected, self.actual = str(path), expected, actual


class DownloadError(DatasetError):
    """A file could not be downloaded."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}")
        self.url, self.reason = url, reason


class ContentError(DatasetError, ValueError):
    """A file has the right checksum, or none to check, and still does not hold what its data set says."""


class RecordError(RichBLLError, ValueError):
    """A record cannot be written, or a line of a record file cannot be read."""


class PaperTableError(RichBLLError, ValueError):
    """There is no such table of the paper, or its file is malformed."""


class TableError(RichBLLError, ValueError):
    """Records do not make a table."""


class UnknownExperimentError(RichBLLError, ValueError):
    """There is no experiment of that name."""


class EngineError(RichBLLError):
    """Jobs cannot be run where they were to be run."""


class UnknownMethodError(RichBLLError, ValueError):
    """There is no method of that name."""


class BanditError(RichBLLError, ValueError):
    """A bandit problem or an agent was asked for what it cannot be."""


class UnknownAgentError(RichBLLError, ValueError):
    """There is no agent of that name."""
