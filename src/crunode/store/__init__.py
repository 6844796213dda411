"""Folders of runs: written so that a kill loses at most the last chunk, read without trust, listed in a catalogue.

May be imported from outside: what the modules list in `__all__`. A new file of a run is written by `documents` or
`chunks`, and read through `guarded`.
"""

__all__: list[str] = []
