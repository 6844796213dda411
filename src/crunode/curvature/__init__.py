"""First and second derivatives of a landscape: Jacobians, their ranks, and what they bound."""

__all__: list[str] = []
