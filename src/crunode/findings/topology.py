"""What can be found about critical points, paths and pictures of a landscape."""

from __future__ import annotations

from crunode.findings.kind import FindingKind

__all__ = ["KINDS"]

KINDS = [
    FindingKind(
        "TOPO1101",
        "starts without a critical point",
        "warning",
        "Some searches ended where the gradient is not zero: at a minimum of its norm, at a kink, at their last step, "
        "or on the way to infinity. They count for nothing; points that were found are those that are easier to find.",
        "Raise steps where searches are unfinished; take more starts; result.outcomes tells what became of each.",
    ),
    FindingKind(
        "TOPO1102",
        "the level was not reached",
        "warning",
        "Starts that go along the gradient came to rest, or ended their steps, at another loss than the given level. "
        "It may be below all losses that can be reached from there, or above them all. They count for nothing.",
        "Choose another level or other starts, or raise steps.",
    ),
    FindingKind(
        "TOPO1103",
        "no critical point was found",
        "error",
        "No search ended at a point without gradient. Whether there are critical points is unknown.",
        "Take more starts, other starts, more steps, or another level.",
    ),
    FindingKind(
        "TOPO1104",
        "eigenvalues of a Hessian too small to be signed",
        "warning",
        "Eigenvalues are smaller than their own error, without a gap that sets them apart as zero. The index is "
        "between two numbers, and so may be the number of degenerate directions.",
        "Compute in double precision; raise steps, so that the point is known better.",
    ),
    FindingKind(
        "TOPO1105",
        "no point of zero loss was found",
        "error",
        "Gauss-Newton steps came to rest, or ended, above zero loss. Whether there is such a point is unknown: the "
        "data may not be realizable, or the search may be stuck at a critical point of higher loss.",
        "Start from other weights; check that outputs can take the values of the targets; raise steps.",
    ),
    FindingKind(
        "TOPO1106",
        "rank below the number of outputs",
        "warning",
        "The Jacobian at the point of zero loss has a smaller rank than there are outputs over all examples, so that "
        "the theorem on the dimension of the zero-loss manifold does not apply. The null space of the Jacobian bounds "
        "the dimension of the set of zero loss there from above.",
        "Look for repeated examples, dead units, or a network too small for the data; walk along the set to see how "
        "far its directions go.",
    ),
    FindingKind(
        "TOPO1107",
        "no clear gap in the singular values",
        "warning",
        "Singular values of the Jacobian go down to rounding without a gap, so that its rank, and the dimension of the "
        "zero-loss manifold, is between two numbers.",
        "Compute in double precision; look for nearly repeated examples.",
    ),
    FindingKind(
        "TOPO1108",
        "piecewise linear activations",
        "info",
        "The network is smooth only where no unit is exactly at its kink. The dimension holds for the piece around the "
        "point, and a walk may cross from one piece to another.",
        "Nothing to do.",
    ),
    FindingKind(
        "TOPO1109",
        "the walk ended early",
        "warning",
        "From some point on no step, however small, could be brought back to the manifold. The rank of the Jacobian "
        "may fall there: the set of zero loss need not be a manifold everywhere.",
        "Take other directions, shorter steps, or another start.",
    ),
    FindingKind(
        "TOPO1121",
        "no path found",
        "info",
        "At some level no search led to a path: descent from between two beads stayed above it. Whether there is a "
        "path at that level is unknown; bounds on barriers end above it.",
        "Nothing to do if the bound is low enough. More strings, or other seeds, look elsewhere.",
    ),
    FindingKind(
        "TOPO1122",
        "search ended by a cap",
        "info",
        "At some level a string needed more beads, or more divisions of a piece, than allowed. That is what happens "
        "between components that are apart, and also where the only way is a long detour. It is unknown which.",
        "Raise beads or depth to look further; more strings look elsewhere.",
    ),
    FindingKind(
        "TOPO1123",
        "loss between grid points in doubt",
        "warning",
        "The loss along a path bends so much between neighboring grid points that it may be clearly above the largest "
        "value that was computed. That share is in the systematic error.",
        "Use more steps or another method for a smoother path; check for losses that are not continuous.",
    ),
    FindingKind(
        "TOPO1124",
        "numbers of components are upper bounds",
        "info",
        "Solutions are counted apart until a path joins them, and a path that was not found may be there. Components "
        "that hold none of the given solutions are not counted at all.",
        "Nothing to do; more strings and a smaller tolerance can lower the numbers.",
    ),
    FindingKind(
        "TOPO1141",
        "losses that are not finite",
        "warning",
        "At some points of a surface the loss is infinite or not a number: too far out, or through a logarithm, a "
        "root or an exponential. They are kept as holes (NaN) and are in no plot and no measure.",
        "Draw a smaller extent, or compute in double precision.",
    ),
    FindingKind(
        "TOPO1142",
        "norm layers under filter normalization",
        "warning",
        "The model divides by the size of what a layer gives, so that the scale of filters before it does not matter, "
        "and its own scales and shifts are left where they are, as in the code of Li et al. Directions change filters "
        "by equal shares, but how sharp the loss looks also depends on these scales.",
        "Compare only models with the same norm layers.",
    ),
    FindingKind(
        "TOPO1143",
        "no more in the plane than a random walk has",
        "info",
        "The two first principal components of a random walk in many dimensions explain 76 % of its variance. The "
        "plane of this training explains no more: its path there need not say anything about the training.",
        "Use later checkpoints, or look at more components.",
    ),
    FindingKind(
        "TOPO1144",
        "a probe without value at some points",
        "warning",
        "A probe failed, or gave an estimate that is not ok, at some points of a surface. They are holes (NaN).",
        "Look at diagnostics['probe_errors'], or probe fewer points nearer to the center.",
    ),
    FindingKind(
        "TOPO1145",
        "signs of curvature lost to rounding",
        "warning",
        "At more than a tenth of the points the second differences of the losses are smaller than what rounding does "
        "to them, so that they cannot be told convex from nonconvex. They count as convex.",
        "Compute in double precision, or with fewer points over the same extent.",
    ),
]
