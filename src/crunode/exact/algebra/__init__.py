"""Polynomials: learning coefficients by linear programs, Newton polyhedra and resolution, all in exact arithmetic."""

__all__: list[str] = []
