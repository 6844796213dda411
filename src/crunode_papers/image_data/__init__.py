"""Shared: Fashion-MNIST, MNIST and CIFAR from files on this machine, held against published checksums."""

__all__: list[str] = []
