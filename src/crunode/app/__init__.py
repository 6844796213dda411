"""The dashboard: run folders, running jobs, recipes and exact values in a browser, served from this machine."""

__all__: list[str] = []
