"""Downloads end with the right file or a clear error, whatever the server does."""

import hashlib
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from richbll_bench.data.download import download
from richbll_bench.errors import ChecksumError, DownloadError
from tests.bench.http_source import Site, serving

CONTENT = b"a,b\n" + b"".join(b"%d,%d\n" % (i, i * i) for i in range(20_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "uci" / "table.csv"


def part_of(path: Path) -> Path:
    return path.with_name("table.csv.part")


def test_good(path: Path) -> None:
    seen = []
    with serving(Site(CONTENT)) as site:
        download(site.url, path, SHA256, progress=lambda received, total: seen.append((received, total)))
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["table.csv"]  # nothing beside it
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [received for received, _ in seen] == sorted(received for received, _ in seen)


def test_no_request_when_it_is_there(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    with serving(Site(CONTENT)) as site:
        download(site.url, path, SHA256)
    assert site.asked == []


def test_a_wrong_file_in_its_place_is_replaced(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something else")
    with serving(Site(CONTENT)) as site:
        download(site.url, path, SHA256)
    assert path.read_bytes() == CONTENT


def test_interrupted_once_is_resumed_within_the_call(path: Path) -> None:
    with serving(Site(CONTENT, breaks=[70_001])) as site:
        download(site.url, path, SHA256)
    assert path.read_bytes() == CONTENT
    assert site.asked == [None, "bytes=70001-"]


def test_truncated_is_an_error_and_what_arrived_is_kept_for_the_next_call(path: Path) -> None:
    with serving(Site(CONTENT, breaks=[1000, 1000, 1000])) as site:
        with pytest.raises(DownloadError, match=rf"3,000 of {len(CONTENT):,} bytes.*try again") as caught:
            download(site.url, path, SHA256)
        assert caught.value.url == site.url
        assert not path.exists()
        assert part_of(path).read_bytes() == CONTENT[:3000]
        download(site.url, path, SHA256)
    assert site.asked == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-"]
    assert path.read_bytes() == CONTENT
    assert not part_of(path).exists()


def test_a_server_that_cannot_resume_sends_all(path: Path) -> None:
    with serving(Site(CONTENT, ranges=False, breaks=[5000])) as site:
        download(site.url, path, SHA256)
    assert site.asked == [None, "bytes=5000-"]
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("leftover", [b"x" * 5000, b"x" * (len(CONTENT) + 7), CONTENT + b"more"])
def test_a_leftover_of_another_file_is_thrown_away(path: Path, leftover: bytes) -> None:
    path.parent.mkdir(parents=True)
    part_of(path).write_bytes(leftover)
    with serving(Site(CONTENT)) as site:
        download(site.url, path, SHA256)
    assert site.asked == [f"bytes={len(leftover)}-", None]
    assert path.read_bytes() == CONTENT


def test_a_whole_leftover_only_gets_its_name(path: Path) -> None:
    path.parent.mkdir(parents=True)
    part_of(path).write_bytes(CONTENT)
    with serving(Site(CONTENT)) as site:
        download(site.url, path, SHA256)
    assert site.asked == []
    assert path.read_bytes() == CONTENT


def test_wrong_checksum_names_both_and_leaves_nothing(path: Path) -> None:
    other = CONTENT + b"1,2\n"
    with serving(Site(other)) as site, pytest.raises(ChecksumError) as caught:
        download(site.url, path, SHA256)
    assert caught.value.expected == SHA256
    assert caught.value.actual == hashlib.sha256(other).hexdigest()
    for part in (site.url, SHA256, caught.value.actual):
        assert part in str(caught.value)
    assert list(path.parent.iterdir()) == []
    assert site.asked == [None]  # the same bytes again would not help


@pytest.mark.parametrize(("status", "words"), [(404, "404 Not Found"), (500, "500 Internal Server Error")])
def test_refused(path: Path, status: int, words: str) -> None:
    with serving(Site(CONTENT, status=status)) as site, pytest.raises(DownloadError, match=words):
        download(site.url, path, SHA256)
    assert list(path.parent.iterdir()) == []


def test_offline(path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/table.csv"  # bound, but nobody listens
        with pytest.raises(DownloadError, match=r"no connection \(.*refused"):
            download(url, path, SHA256)


def test_not_an_address(path: Path) -> None:
    with pytest.raises(DownloadError, match="unknown url type"):
        download("uci/boston", path, SHA256)


def test_a_silent_server_is_given_up(path: Path) -> None:
    with (
        serving(Site(CONTENT, stalls=True)) as site,
        pytest.raises(DownloadError, match=r"after 0 of .* bytes \(timed out"),
    ):
        download(site.url, path, SHA256, timeout=0.05)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "uci").write_text("a file where a folder should be")
    with pytest.raises(DownloadError, match="cannot be written"):
        download("http://127.0.0.1:9/table.csv", tmp_path / "uci" / "table.csv", SHA256)


def test_of_several_at_once_one_asks(path: Path) -> None:
    # threads stand for processes: the lock belongs to the opened folder, not to the process
    with serving(Site(CONTENT)) as site, ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(download, site.url, path, SHA256) for _ in range(3)]
        assert [job.result() for job in jobs] == [None, None, None]
    assert site.asked == [None]
    assert path.read_bytes() == CONTENT
