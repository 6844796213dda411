"""What can be found about models and data."""

from __future__ import annotations

from crunode.findings.kind import FindingKind

__all__ = ["KINDS"]

KINDS = [
    FindingKind(
        "MODEL501",
        "evaluation mode",
        "info",
        "The model was in training mode. It is evaluated in evaluation mode (dropout off, batch statistics frozen), "
        "because a loss that changes between calls has no landscape. The model itself keeps its mode.",
        "Nothing to do. Call model.eval() first to silence this.",
    ),
    FindingKind(
        "MODEL502",
        "unused parameters",
        "warning",
        "Some parameters have zero gradient both at the center and near it. They add dimensions but no complexity.",
        "Nothing to do if intended; otherwise check that they take part in the forward pass.",
    ),
    FindingKind(
        "MODEL503",
        "forward hooks",
        "info",
        "The model carries forward hooks. They run at every evaluation, on batched tensors too.",
        "Remove hooks that record activations before estimating.",
    ),
    FindingKind(
        "DATA501",
        "augmented data frozen",
        "warning",
        "Reading the same example twice gave different values (data augmentation). One draw of each example was "
        "taken and kept, so that the loss is a fixed function.",
        "Pass the data set without augmentation.",
    ),
    FindingKind(
        "DATA502",
        "examples coupled",
        "warning",
        "The loss of a batch is not the mean of the losses of its parts, so examples influence each other and "
        "minibatch losses do not average to the full loss.",
        "Use a loss that is a mean over examples, or full-batch kernels.",
    ),
    FindingKind(
        "DATA503",
        "not the loss's own mean",
        "warning",
        "The mean over examples differs from what the loss returns by itself, as it does with class weights (torch "
        "divides by the sum of the weights) and with ignored targets (torch divides by how many are left). The "
        "landscape is the mean over examples, with every example counted once.",
        "Nothing to do if that is meant; otherwise give loss=fn(model, batch) with one loss per example.",
    ),
    FindingKind(
        "DATA504",
        "own predictions as labels",
        "info",
        "The labels are noisy, and scatter around the predictions at the center as they would if the center were the "
        "truth. Their noise then says nothing of the learning coefficient but moves the minimum of the loss away from "
        "the center, so the model's own predictions are taken for labels.",
        "Nothing to do; {} to sample with the labels as they are.",
        "give labels='given'",
        "add --set labels=given",
    ),
    FindingKind(
        "DATA505",
        "part of the examples",
        "info",
        "The labels carry no noise, so a part of the examples with more than twice as many output values as the model "
        "has parameters has the same learning coefficient as all of them, and is sampled exactly in their place.",
        "Nothing to do; {} to sample with all examples.",
        "give a kernel, such as kernel=crunode.SGLD(),",
        "add a kernel, such as --set kernel=SGLD,",
    ),
]
