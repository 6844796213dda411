"""What the recipes after Pennington & Bahri (2017) share: networks with one hidden layer, and their Hessians."""

from __future__ import annotations

__all__: list[str] = []
