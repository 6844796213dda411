"""`python -m crunode_papers.image_data`: which data sets are found on this machine, and where."""

from crunode_papers.image_data.datasets import data_summary

__all__: list[str] = []

if __name__ == "__main__":
    for name, where in data_summary().items():
        print(f"{name}: {where or 'not found'}")
