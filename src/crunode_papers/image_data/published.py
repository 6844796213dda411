"""Data sets as they were published: sizes, checksums, and where to get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["NAMES", "PUBLISHED", "Published"]


@dataclass(frozen=True)
class Published:
    """One data set.

    Attributes:
        shape: Of an image.
        classes: Number of classes.
        train: Number of training images.
        test: Number of test images.
        folders: Where its idx or binary files may be, below a folder of data.
        sources: Addresses to get it from, each tried in turn: folders of idx files, or archives.
        digests: SHA-256 of each array as an idx file, which for the full set is what the published file has, by size
            ("full", "small") and array.
        md5: Of the archive, for sets that come in one.
        megabytes: To be fetched.
    """

    shape: tuple[int, ...]
    classes: int
    train: int
    test: int
    folders: tuple[str, ...]
    sources: tuple[str, ...]
    digests: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    md5: str | None = None
    megabytes: int = 0


PUBLISHED: dict[str, Published] = {
    "fashion-mnist": Published(
        (28, 28),
        10,
        60_000,
        10_000,
        ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw"),
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        {
            "full": {
                "x_train": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "y_train": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "x_test": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "y_test": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            },
            "small": {
                "x_train": "444ed5f7ce17397f236f5eba17dd507d3f6912f04edd3e4f1701cdf82f2cc0c5",
                "y_train": "35d691216f65485d010cc635af5574a9dc04aa5060de9be64ab6e5cb5ead38e9",
                "x_test": "7cee33c3c6414b1b86c25e665a6c4f41584269de3b7cc9768b1d351922845eef",
                "y_test": "3128d790775889812b73c4f13923559c8b9e281d112c6ea7862acf60a206a909",
            },
        },
        megabytes=31,
    ),
    "mnist": Published(
        (28, 28),
        10,
        60_000,
        10_000,
        ("mnist", "MNIST/raw"),
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        {
            "full": {
                "x_train": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "y_train": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "x_test": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "y_test": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            },
            "small": {
                "x_train": "36cb395b94762f0009909e61c7df0bc6d23da1b3e0251f38b10b10501b652034",
                "y_train": "6bf07e4d2b09bd66291b74f06f4d0e8c9f34e62ddcb50269a3126f861d1e7d68",
                "x_test": "b97c8bfeb834d8e7999eaa2d69239abe06653dc09c1e5d7eb0c974c5965bc6a9",
                "y_test": "41cf2f530031915ba9fbb241407c369dba1acd7515053edff48cebeee8b260f4",
            },
        },
        megabytes=12,
    ),
    "cifar10": Published(
        (3, 32, 32),
        10,
        50_000,
        10_000,
        ("cifar-10-batches-bin", "cifar10"),
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        megabytes=162,
    ),
    "cifar100": Published(
        (3, 32, 32),
        100,
        50_000,
        10_000,
        ("cifar-100-binary", "cifar100"),
        ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
        md5="03b5dce01913d631647c71ecec9e9cb8",
        megabytes=161,
    ),
}
"""Data sets by name."""

NAMES = tuple(PUBLISHED)
"""Data sets that `load_images` knows."""
