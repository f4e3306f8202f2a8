"""Data sets are found in the stated order, checked, downloaded, read, and added as one file."""

import hashlib
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from richbll.errors import RichBLLError, RichBLLWarning
from richbll_bench import datasets
from richbll_bench.data.conversion import with_header
from richbll_bench.data.dataset import Dataset, Source, csv_dataset
from richbll_bench.data.finding import find, search
from richbll_bench.data.folders import cache_folder, data_folders
from richbll_bench.errors import ChecksumError, ContentError, MissingDatasetError, UnknownDatasetError
from tests.bench.http_source import Site, serving

SHIPPED = b"1.0\t2.50 3\n4.0\t5.50 6\n\n"
CONTENT = b"first,second,price\n1.0,2.50,3\n4.0,5.50,6\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()

REAL = {  # rows and features, target
    "boston": ((506, 13), "medv"),
    "concrete": ((1030, 8), "strength"),
    "energy": ((768, 8), "heating_load"),
    "power": ((9568, 4), "PE"),
    "wine_red": ((1599, 11), "quality"),
    "wine_white": ((4898, 11), "quality"),
}


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two data folders and a cache, all empty."""
    found = {name: tmp_path / name for name in ("first", "second", "cache")}
    for folder in found.values():
        folder.mkdir()
    monkeypatch.setenv("RICHBLL_DATA", os.pathsep.join([str(found["first"]), str(found["second"])]))
    monkeypatch.setenv("RICHBLL_CACHE", str(found["cache"]))
    monkeypatch.setenv("no_proxy", "*")
    return found


def homes(*sources: Source | str) -> Dataset:
    return csv_dataset("own.homes", title="Homes", file="own/homes.csv", sha256=SHA256, target="price", sources=sources)


def put(folder: Path, content: bytes = CONTENT) -> Path:
    path = folder / "own" / "homes.csv"
    path.parent.mkdir()
    path.write_bytes(content)
    return path


# ---------------------------------------------------------------------- the search order


def test_order(places: dict[str, Path]) -> None:
    cached = put(places["cache"])
    assert find(homes()) == cached
    second = put(places["second"])
    assert find(homes()) == second
    first = put(places["first"])
    assert find(homes()) == first


def test_a_wrong_file_is_told_and_the_next_folder_is_tried(places: dict[str, Path]) -> None:
    wrong, right = put(places["first"], CONTENT + b"7,8,9\n"), put(places["second"])
    actual = hashlib.sha256(wrong.read_bytes()).hexdigest()
    with pytest.warns(RichBLLWarning, match=re.escape(f"{wrong} has sha256 {actual}, but it must be {SHA256}")):
        assert find(homes()) == right
    assert wrong.exists()  # not ours to delete
    (error,) = search(homes()).wrong
    assert isinstance(error, ChecksumError)
    assert (error.path, error.expected, error.actual) == (str(wrong), SHA256, actual)


def test_the_error_lists_all_that_was_tried(places: dict[str, Path]) -> None:
    wrong = put(places["first"], b"else")
    with (
        serving(Site(CONTENT, status=404)) as site,
        pytest.warns(RichBLLWarning, match="not used"),
        pytest.raises(MissingDatasetError) as caught,
    ):
        find(homes(site.url))
    message = str(caught.value)
    for words in (
        f"{wrong} has sha256 {hashlib.sha256(b'else').hexdigest()}, but it must be {SHA256}",
        f"{places['second'] / 'own' / 'homes.csv'}: no such file",
        f"{places['cache'] / 'own' / 'homes.csv'}: no such file",
        f"{site.url}: the server answered 404",
        "$RICHBLL_DATA",
        "richbll data fetch homes",
    ):
        assert words in message
    assert isinstance(caught.value, RichBLLError)


def test_nothing_is_downloaded_when_it_is_not_wanted() -> None:
    with serving(Site(CONTENT)) as site, pytest.raises(MissingDatasetError, match="no such file"):
        find(homes(site.url), fetching=False)
    assert site.asked == []


def test_without_a_source() -> None:
    with pytest.raises(MissingDatasetError, match="no public source is known"):
        find(homes())


def test_folders_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RICHBLL_DATA", os.pathsep.join(["", "/a", "", "~/b"]))
    assert data_folders() == [Path("/a"), Path.home() / "b"]
    monkeypatch.delenv("RICHBLL_DATA")
    assert data_folders() == []
    monkeypatch.delenv("RICHBLL_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "richbll"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "richbll"


# ---------------------------------------------------------------------- fetching


def test_a_download_goes_to_the_cache_and_is_used_again(places: dict[str, Path]) -> None:
    with serving(Site(CONTENT)) as site:
        path = find(homes(site.url))
        assert path == places["cache"] / "own" / "homes.csv"
        assert find(homes(site.url)) == path
    assert site.asked == [None]
    assert homes().read(path).y.tolist() == [3, 6]


def test_what_a_source_ships_is_converted(places: dict[str, Path]) -> None:
    convert = with_header("first", "second", "price")
    with serving(Site(SHIPPED, breaks=[7])) as site:
        path = find(homes(Source(site.url, hashlib.sha256(SHIPPED).hexdigest(), convert)))
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["homes.csv"]
    assert site.asked == [None, "bytes=7-"]


def test_a_conversion_that_gives_another_file_is_refused(places: dict[str, Path]) -> None:
    convert = with_header("first", "second", "cost")
    with serving(Site(SHIPPED)) as site, pytest.raises(MissingDatasetError, match=f"must be {SHA256}"):
        find(homes(Source(site.url, hashlib.sha256(SHIPPED).hexdigest(), convert)))
    assert not (places["cache"] / "own" / "homes.csv").exists()


def test_the_next_source_is_asked() -> None:
    with serving(Site(CONTENT, status=503)) as bad, serving(Site(CONTENT)) as good:
        assert find(homes(bad.url, good.url)).read_bytes() == CONTENT
    assert len(bad.asked) == len(good.asked) == 1


def test_a_source_with_another_checksum_needs_a_conversion() -> None:
    with pytest.raises(ContentError, match="give one checksum"):
        homes(Source("http://nowhere", "0" * 64))


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,price\n", r"1 line\(s\)"),
        (b"a,cost\n1,2\n", "0 columns are named 'price', of a, cost"),
        (b"price,price\n1,2\n", "2 columns are named 'price'"),
        (b"a,price\n1,2\n3\n", "row 2: 1 values for 2 columns"),
        (b"a,price\n1,2\nx,4\n", "row 2, column 'a': 'x' is not a finite number"),
        (b"a,price\n1,\n", "row 1, column 'price': '' is not a finite number"),
        (b"a,price\n1,inf\n", "'inf' is not a finite number"),
        (b"a,price\n\xff,1\n", "cannot be read as CSV"),
    ],
)
def test_bad_content(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(ContentError, match=message):
        homes().read(path)


def test_the_target_may_stand_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "semicolons.csv"
    path.write_bytes(b'\xef\xbb\xbf"the price";a;b\r\n1;2;3\r\n4;5;6\r\n')  # as spreadsheets write it
    read = csv_dataset("t", title="", file="t", sha256=SHA256, target="the price", separator=";").read(path)
    np.testing.assert_array_equal(read.x, [[2, 3], [5, 6]])
    np.testing.assert_array_equal(read.y, [1, 4])
    assert (read.feature_names, read.target_name) == (("a", "b"), "the price")
    assert read.x.dtype == read.y.dtype == np.float64


# ---------------------------------------------------------------------- the declarations


def test_one_file_makes_a_data_set(
    tmp_path: Path, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "homes.py").write_text(
        "from richbll_bench.data.dataset import csv_dataset\n"
        f"dataset = csv_dataset(__name__, title='Homes', file='own/homes.csv', sha256='{SHA256}', target='price')\n"
    )
    monkeypatch.setattr(datasets, "__path__", [*datasets.__path__, str(tmp_path / "more")])
    request.addfinalizer(lambda: sys.modules.pop("richbll_bench.datasets.homes", None))
    put(places["second"])
    assert "homes" in datasets.names()
    read = datasets.load("homes")
    assert read.x.tolist() == [[1.0, 2.5], [4.0, 5.5]]
    assert read.feature_names == ("first", "second")


def test_a_file_that_declares_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "empty.py").write_text("")
    monkeypatch.setattr(datasets, "__path__", [*datasets.__path__, str(tmp_path)])
    request.addfinalizer(lambda: sys.modules.pop("richbll_bench.datasets.empty", None))
    with pytest.raises(ContentError, match=r"datasets/empty.py must hold"):
        datasets.declaration("empty")


def test_the_paper_s_data_sets_are_there() -> None:
    assert set(REAL) <= set(datasets.names())


def test_unknown() -> None:
    with pytest.raises(UnknownDatasetError, match=r"no data set 'bostn'; there are boston, .* Did you mean boston"):
        datasets.load("bostn")


@pytest.mark.parametrize("name", datasets.names())
def test_declarations_are_complete(name: str) -> None:
    dataset = datasets.declaration(name)
    assert dataset.name == name
    assert dataset.title
    assert dataset.sources or name not in REAL  # a data set of one's own need not be public
    for checksum in [dataset.sha256, *(source.sha256 for source in dataset.sources)]:
        assert re.fullmatch("[0-9a-f]{64}", checksum)
    assert all(source.url.startswith("https://") for source in dataset.sources)


# ---------------------------------------------------------------------- the real files

REAL_FOLDERS = os.environ.get("RICHBLL_DATA", "")  # before the fixture empties it


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a data set that is on this machine."""
    monkeypatch.setenv("RICHBLL_DATA", REAL_FOLDERS)
    name: str = request.param
    if search(datasets.declaration(name)).path is None:
        pytest.skip(f"$RICHBLL_DATA ({REAL_FOLDERS or 'not set'}) has no {datasets.declaration(name).file}")
    return name


@pytest.mark.parametrize("real", list(REAL), indirect=True)
def test_real_shapes_and_targets(real: str) -> None:
    shape, target = REAL[real]
    read = datasets.load(real, fetching=False)
    assert read.x.shape == shape
    assert read.y.shape == (shape[0],)
    assert len(read.feature_names) == shape[1]
    assert read.target_name == datasets.declaration(real).target == target
    assert np.ptp(read.x, axis=0).min() > 0  # no constant column
    assert np.ptp(read.y) > 0


def shipped_boston(rows: list[list[str]]) -> str:
    widths = (8, 7, 8, 3, 8, 8, 7, 8, 4, 7, 7, 7, 7, 7)
    return "".join("".join(map(str.rjust, row, widths)) + "\n" for row in rows)


def shipped_concrete(rows: list[list[str]]) -> str:
    return "".join("".join(f"{text} \t" for text in row)[:-1] + "\n" for row in rows) + "\n"


def shipped_energy(rows: list[list[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows) + "\n"


def shipped_power(rows: list[list[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


AS_SHIPPED = {
    "boston": shipped_boston,
    "concrete": shipped_concrete,
    "energy": shipped_energy,
    "power": shipped_power,
}


@pytest.mark.parametrize("real", list(AS_SHIPPED), indirect=True)
def test_the_public_source_converts_into_the_file(real: str) -> None:
    """With the sources' spacing put back, our file has the checksum of what they ship: known without a network."""
    dataset = datasets.declaration(real)
    content = find(dataset, fetching=False).read_bytes()
    rows = [line.split(",") for line in content.decode().splitlines()[1:]]
    shipped = AS_SHIPPED[real](rows).encode()
    for source in dataset.sources:
        assert hashlib.sha256(shipped).hexdigest() == source.sha256
        assert source.convert is not None
        assert source.convert(shipped) == content
