"""Folders of runs: written so that a kill loses at most the last chunk, read without trust, listed in a catalogue.

May be imported from outside: what the modules list in `__all__`. A new file of a run is written by `documents` or
`chunks`, and read through `guarded`.
"""

from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode.store.atomic import digest as digest
    from crunode.store.atomic import locked as locked
    from crunode.store.atomic import write_bytes as write_bytes
    from crunode.store.belongs import Header as Header
    from crunode.store.belongs import refuse as refuse
    from crunode.store.documents import read_document as read_document
    from crunode.store.documents import write_document as write_document
else:
    __getattr__, __dir__, __all__ = exports(__name__)
