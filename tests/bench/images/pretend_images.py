"""Small image data sets in the public file formats, with other pixels than the real ones."""

import gzip
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np

from richbll_bench import image_datasets
from richbll_bench.data.dataset import File
from richbll_bench.images.dataset import ImageDataset

COUNTS = {"train": 60, "test": 40}  # by file


def pixels(count: int, seed: int, side: int = 32, channels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Ten classes that a small network can tell apart: a bright patch in one of ten places, and noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count).astype(np.uint8)
    images = random.integers(0, 90, (count, channels, side, side)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        top, left = 5 + 8 * (label // 4), 3 + 7 * (label % 4)
        image[label % channels, top : top + 6, left : left + 6] += 160
    return images, labels


def cifar(count: int, seed: int, num_label_bytes: int = 1) -> bytes:
    images, labels = pixels(count, seed)
    columns = [labels[:, None]] * num_label_bytes
    return np.concatenate([*columns, images.reshape(count, -1)], axis=1).tobytes()


def mat(path: Path, count: int, seed: int) -> None:
    from scipy.io import savemat

    images, labels = pixels(count, seed)
    y = np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)
    savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": y}, do_compression=True)


def idx(array: np.ndarray) -> bytes:
    header = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.tobytes())


def write(folder: Path, dataset: ImageDataset) -> ImageDataset:
    """All files of a data set, and its declaration with their checksums."""
    for part, files in (("train", dataset.train), ("test", dataset.test)):
        for number, file in enumerate(files):
            path = folder / file.file
            path.parent.mkdir(parents=True, exist_ok=True)
            seed = 10 * number + (part == "test") + 100 * len(dataset.name)
            if dataset.name == "svhn":
                mat(path, COUNTS[part], seed)
            elif dataset.name.startswith("cifar"):
                path.write_bytes(cifar(COUNTS[part], seed, 2 if dataset.name == "cifar100" else 1))
            else:
                images, labels = pixels(COUNTS[part], 7 + (part == "test"), side=28, channels=1)
                path.write_bytes(idx(labels if number else images[:, 0]))

    def known(file: File) -> File:
        sha256 = hashlib.sha256((folder / file.file).read_bytes()).hexdigest()
        return File(file.name, file.file, sha256, ())

    return replace(dataset, train=tuple(map(known, dataset.train)), test=tuple(map(known, dataset.test)))


def write_all(folder: Path) -> dict[str, ImageDataset]:
    return {name: write(folder, image_datasets.declaration(name)) for name in image_datasets.names()}
