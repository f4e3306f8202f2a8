"""Lines are whole, or skipped and removed; also after a kill in mid-write, and with several writers."""

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from richbll.errors import RichBLLWarning
from richbll_bench.errors import RecordError
from richbll_bench.json_lines import append_line, read_lines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records" / "lines.jsonl"


def objects(path: Path) -> list[dict]:
    return [content for _, content in read_lines(path)]


def test_append_and_read(path: Path) -> None:
    append_line(path, {"a": 1})
    append_line(path, {"a": "ü\n\u2028", "b": [1.5, None]})
    assert read_lines(path) == [(1, {"a": 1}), (2, {"a": "ü\n\u2028", "b": [1.5, None]})]
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_skipped_and_then_removed(path: Path, cut: int) -> None:
    append_line(path, {"first": 1})
    before = path.read_bytes()
    append_line(path, {"second": "x" * 40})
    path.write_bytes(path.read_bytes()[: len(before) + cut])
    with pytest.warns(RichBLLWarning, match=f"ends with an unfinished line of {cut} bytes, which is skipped"):
        assert objects(path) == [{"first": 1}]
    with pytest.warns(RichBLLWarning, match=f"unfinished line of {cut} bytes, which is removed"):
        append_line(path, {"third": 3})
    assert objects(path) == [{"first": 1}, {"third": 3}]
    assert path.read_bytes() == before + b'{"third": 3}\n'


def test_a_torn_line_longer_than_a_block(path: Path) -> None:
    append_line(path, {"first": 1})
    with path.open("ab") as file:
        file.write(b'{"x": "' + b"y" * 200_000)
    with pytest.warns(RichBLLWarning, match="200,007 bytes, which is removed"):
        append_line(path, {"second": 2})
    assert objects(path) == [{"first": 1}, {"second": 2}]


def test_a_file_of_nothing_but_a_torn_line(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"x"')
    with pytest.warns(RichBLLWarning, match="removed"):
        append_line(path, {"first": 1})
    assert objects(path) == [{"first": 1}]


def test_a_line_that_lacks_only_its_end_is_kept(path: Path) -> None:
    append_line(path, {"first": 1})
    path.write_bytes(path.read_bytes().rstrip())
    assert objects(path) == [{"first": 1}]
    append_line(path, {"second": 2})
    assert objects(path) == [{"first": 1}, {"second": 2}]


def test_a_bad_line_in_the_middle_is_not_passed_over(path: Path) -> None:
    append_line(path, {"first": 1})
    with path.open("ab") as file:
        file.write(b'{"second": \n{"third": 3}\n')
    with pytest.raises(RecordError, match=r"lines.jsonl, line 2 is not a JSON object: .*Mend or delete"):
        read_lines(path)


def test_a_full_disk_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_line(path, {"first": 1})
    before, write = path.read_bytes(), os.write

    def short(handle: int, data: bytes) -> int:
        return write(handle, data[:5])

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for broken, words in ((short, "5 of 14 bytes"), (full, "No space left")):
        monkeypatch.setattr(os, "write", broken)
        with pytest.raises(RecordError, match=words):
            append_line(path, {"second": 2})
        monkeypatch.setattr(os, "write", write)
        assert path.read_bytes() == before


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        read_lines(tmp_path / "nothing.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot be appended to"):
        append_line(tmp_path / "file" / "lines.jsonl", {})


def test_many_threads(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: append_line(path, {"i": i, "long": "x" * 5000}), range(80)))
    assert sorted(content["i"] for content in objects(path)) == list(range(80))


WRITER = """
import sys
from pathlib import Path
from richbll_bench.json_lines import append_line
print("ready", flush=True)
sys.stdin.readline()
for i in range(40):
    append_line(Path(sys.argv[1]), {"writer": sys.argv[2], "i": i, "long": "x" * 9000})
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from richbll_bench.json_lines import append_line
append_line(Path(sys.argv[1]), {"first": 1})
write = os.write
def half(handle, data):
    write(handle, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
os.write = half
append_line(Path(sys.argv[1]), {"second": 2})
"""


def test_several_processes(path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(path)]
    pipe = subprocess.PIPE
    writers = [subprocess.Popen([*command, name], stdin=pipe, stdout=pipe, text=True) for name in "ab"]
    for writer in writers:  # both have imported everything: now at once
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    found = [(content["writer"], content["i"]) for content in objects(path)]
    assert sorted(found) == [(name, i) for name in "ab" for i in range(40)]
    assert all(json.loads(line) for line in path.read_bytes().splitlines())


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this platform has no SIGKILL")
def test_killed_in_mid_write(path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == b'{"first": 1}\n{"secon'  # as a kill leaves it; its lock is gone
    with pytest.warns(RichBLLWarning, match="7 bytes, which is skipped"):
        assert objects(path) == [{"first": 1}]
    with pytest.warns(RichBLLWarning, match="7 bytes, which is removed"):
        append_line(path, {"second": 2})
    assert objects(path) == [{"first": 1}, {"second": 2}]
