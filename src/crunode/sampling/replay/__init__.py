"""Recording a function of tensors once, and replaying its operations without what surrounded them."""

__all__: list[str] = []
