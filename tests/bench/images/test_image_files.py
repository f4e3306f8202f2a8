"""Images are read from the public file formats, checked, and fetched out of archives."""

import gzip
import hashlib
import io
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from richbll_bench import image_datasets
from richbll_bench.data.archive import member
from richbll_bench.data.dataset import File, Source
from richbll_bench.data.finding import find_all, search
from richbll_bench.errors import ContentError, MissingDatasetError, UnknownDatasetError
from richbll_bench.images.augmentation import augmented
from richbll_bench.images.reading import Images, mat_content, read_cifar, read_idx, read_mat
from richbll_bench.images.split import batches, split
from tests.bench.http_source import Site, serving
from tests.bench.images import pretend_images
from tests.bench.images.conftest import REAL_FOLDERS

REAL = {  # test images, and the first labels
    "cifar10": (10_000, [3, 8, 8, 0]),
    "cifar100": (10_000, [49, 33, 72, 51]),
    "svhn": (26_032, [5, 2, 1, 0]),
    "fashion_mnist": (10_000, [9, 2, 1, 1]),
    "mnist": (10_000, [7, 2, 1, 0]),
}


def test_cifar(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.bin").write_bytes(pretend_images.cifar(5, number, num_label_bytes=2))
    read = read_cifar([tmp_path / "1.bin", tmp_path / "2.bin"], num_label_bytes=2)
    images, labels = (
        np.concatenate(parts) for parts in zip(*(pretend_images.pixels(5, s) for s in (1, 2)), strict=True)
    )
    np.testing.assert_array_equal(read.pixels, images)
    np.testing.assert_array_equal(read.labels, labels)
    assert read.labels.dtype == torch.int64
    with pytest.raises(ContentError, match=r"has 30,740 bytes, .* records of 3,073"):
        read_cifar([tmp_path / "1.bin", _written(tmp_path / "x", b"0" * 30_740)][1:])


def test_mat(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    pretend_images.mat(path, 30, 3)
    images, labels = pretend_images.pixels(30, 3)
    read = read_mat([path])
    np.testing.assert_array_equal(read.pixels, images)
    np.testing.assert_array_equal(read.labels, labels)  # 10 is 0 again
    from scipy.io import savemat

    again = tmp_path / "b.mat"
    X, y = images.transpose(2, 3, 1, 0), labels[:, None]
    savemat(again, {"X": X, "y": y})
    assert path.read_bytes() != again.read_bytes()
    assert mat_content(path) == mat_content(again)
    savemat(again, {"X": X, "y": y + 1})
    assert mat_content(path) != mat_content(again)
    savemat(again, {"X": X[:8], "y": y})
    with pytest.raises(ContentError, match=r"X is uint8 \(8, 32, 3, 30\) and y \(30, 1\)"):
        mat_content(again)
    with pytest.raises(ContentError, match="has no matrices X and y"):
        read_mat([_written(tmp_path / "c.mat", b"no matrices")])


def test_idx(tmp_path: Path) -> None:
    images, labels = pretend_images.pixels(9, 0, side=28, channels=1)
    first = _written(tmp_path / "images.gz", pretend_images.idx(images[:, 0]))
    second = _written(tmp_path / "labels.gz", pretend_images.idx(labels))
    read = read_idx([first, second])
    np.testing.assert_array_equal(read.pixels, images)
    np.testing.assert_array_equal(read.labels, labels)
    color = read.as_color().pixels
    assert color.shape == (9, 3, 32, 32)
    assert torch.equal(color[:, 2, 2:30, 2:30], read.pixels[:, 0])
    assert int(color[:, :, :2].sum()) == 0
    with pytest.raises(ContentError, match="is not a gzipped file"):
        read_idx([_written(tmp_path / "x.gz", b"plain"), second])
    with pytest.raises(ContentError, match="does not begin like an IDX file"):
        read_idx([_written(tmp_path / "x.gz", gzip.compress(b"plain")), second])
    with pytest.raises(ContentError, match=r"have shapes \(9,\) and \(9,\)"):
        read_idx([second, second])


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_another_compression_of_the_same_bytes_is_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = image_datasets.declaration("fashion_mnist").test[1]
    assert declared.packing is not None
    content = pretend_images.idx(np.arange(9, dtype=np.uint8))
    packing = replace(declared.packing, sha256=hashlib.sha256(gzip.decompress(content)).hexdigest())
    file = File("clothes", "labels.gz", "0" * 64, (), packing=packing)
    monkeypatch.setenv("RICHBLL_DATA", str(tmp_path))
    path = _written(tmp_path / "labels.gz", gzip.compress(gzip.decompress(content), 1))
    assert search(file).path == path
    path.write_bytes(gzip.compress(b"others"))
    assert len(search(file).wrong) == 1
    path.write_bytes(b"not even gzipped")
    assert len(search(file).wrong) == 1


def test_an_archive_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RICHBLL_DATA", raising=False)
    monkeypatch.setenv("RICHBLL_CACHE", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    contents = {"set/a.bin": b"first", "set/b.bin": b"second"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in contents.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    sha256 = hashlib.sha256(packed.getvalue()).hexdigest()
    with serving(Site(packed.getvalue())) as site:
        files = [
            File("two", n, hashlib.sha256(c).hexdigest(), (Source(site.url, sha256, member(n), shared=True),))
            for n, c in contents.items()
        ]
        paths = find_all(files)
    assert [path.read_bytes() for path in paths] == list(contents.values())
    assert len(site.asked) == 1
    assert sorted(p.name for p in (tmp_path / "set").iterdir()) == ["a.bin", "b.bin"]


def test_what_is_not_in_an_archive() -> None:
    packed = io.BytesIO()
    tarfile.open(fileobj=packed, mode="w:gz").close()
    with pytest.raises(ContentError, match="x cannot be read from the archive"):
        member("x")(packed.getvalue())
    with pytest.raises(ContentError, match="x cannot be read from the archive"):
        member("x")(b"no archive")


@pytest.mark.parametrize("name", image_datasets.names())
def test_declarations_are_complete(name: str) -> None:
    dataset = image_datasets.declaration(name)
    assert dataset.name == name
    assert dataset.title
    assert len(dataset.classes) in (10, 100)
    for file in dataset.files:
        assert file.sources
        assert all(re.fullmatch("[0-9a-f]{64}", one) for one in [file.sha256, *(s.sha256 for s in file.sources)])
        assert all(re.match("https://|http://ufldl.stanford.edu/", source.url) for source in file.sources)


def test_names_and_parts() -> None:
    with pytest.raises(UnknownDatasetError, match=r"no images 'cifar'; there are cifar10, .* Did you mean cifar10"):
        image_datasets.load("cifar", "test")
    with pytest.raises(ContentError, match="Of svhn only the test images are used here"):
        image_datasets.load("svhn", "train")


@pytest.mark.parametrize("name", list(REAL))
def test_real_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RICHBLL_DATA", REAL_FOLDERS)
    dataset = image_datasets.declaration(name)
    if any(search(file).path is None for file in dataset.test):
        pytest.skip(f"$RICHBLL_DATA ({REAL_FOLDERS or 'not set'}) has no {dataset.test[0].file}")
    num_test, labels = REAL[name]
    read = image_datasets.load(name, "test", fetching=False)
    assert len(read) == num_test
    assert int(read.labels.max()) == len(dataset.classes) - 1
    assert read.labels[:4].tolist() == labels


# ---------------------------------------------------------------------- split, scaling, crop and flip


@pytest.mark.usefixtures("pretended")
def test_split() -> None:
    found = split("cifar10", seed=0)
    assert (len(found.train), len(found.validation), len(found.test)) == (270, 30, 40)
    both = torch.cat([found.train.pixels, found.validation.pixels]).flatten(1)
    everything = image_datasets.load("cifar10", "train").pixels.flatten(1)
    assert torch.equal(both.double().sum(1).sort().values, everything.double().sum(1).sort().values)
    assert not torch.equal(split("cifar10", seed=1).train.labels, found.train.labels)
    less = split("cifar10", seed=0, num_images=50, num_test=7)
    assert (len(less.train), len(less.validation), len(less.test)) == (45, 5, 7)


@pytest.mark.usefixtures("pretended")
def test_scaling_is_by_channel() -> None:
    found = split("cifar10", seed=0)
    pairs = list(batches(found.test, found.scaling, batch_size=16))
    assert [len(y) for _, y in pairs] == [16, 16, 8]
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
    torch.testing.assert_close(pairs[1][0], (found.test.pixels[16:32] / 255 - mean) / std)
    assert pairs[0][0].is_contiguous(memory_format=torch.channels_last)


def test_crop_and_flip_against_one_image_at_a_time() -> None:
    batch = torch.randint(1, 256, (64, 3, 32, 32), dtype=torch.uint8)
    moved = augmented(batch, torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(5)
    moves = torch.randint(0, 9, (2, 64, 1), generator=generator)
    mirrored = torch.rand(64, 1, generator=generator) < 0.5
    for image, made, down, right, mirror in zip(batch, moved, *moves.flatten(1), mirrored, strict=True):
        framed = torch.zeros(3, 40, 40, dtype=torch.uint8)
        framed[:, 4:36, 4:36] = image
        window = framed[:, down : down + 32, right : right + 32]
        assert torch.equal(made, window.flip(2) if mirror else window)
    assert 0.2 < float(mirrored.float().mean()) < 0.8


def test_a_search_that_finds_nothing_says_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RICHBLL_DATA", str(tmp_path))
    monkeypatch.setenv("RICHBLL_CACHE", str(tmp_path))
    with pytest.raises(MissingDatasetError, match=r"cifar10 \(cifar-10-batches-bin/test_batch.bin\) is not to be had"):
        image_datasets.load("cifar10", "test", fetching=False)


def test_images_are_counted_and_chosen() -> None:
    images = Images(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.arange(4))
    assert len(images) == 4
    assert images.rows(torch.tensor([3, 1])).labels.tolist() == [3, 1]
