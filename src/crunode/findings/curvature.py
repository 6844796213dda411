"""What can be found about curvature."""

from __future__ import annotations

from crunode.findings.kind import FindingKind

__all__ = ["KINDS"]

KINDS = [
    FindingKind(
        "CURV811",
        "tolerance not reached",
        "warning",
        "The budget of products ended before the standard error of a random estimate was as small as asked for. The "
        "value and its error hold; they are wider than wanted.",
        "Raise probes, or tolerance.",
    ),
    FindingKind(
        "CURV812",
        "an error from few random vectors",
        "warning",
        "A standard error rests on fewer than eight random vectors. It is widened by Student's t, but that assumes "
        "samples that are nearly normal, which one dominant eigenvalue makes them not.",
        "Raise probes.",
    ),
    FindingKind(
        "CURV813",
        "Lanczos steps have not settled",
        "warning",
        "Residuals of eigenvalues are above the tolerance, or the quadrature would still move with more steps: its "
        "error, which is part of the systematic one, is larger than asked for.",
        "Raise steps.",
    ),
    FindingKind(
        "CURV814",
        "no clear gap in the spectrum",
        "warning",
        "Eigenvalues go down to the rounding of the matrix without a gap of a factor of 100, or Lanczos steps are too "
        "few to show it, so that the rank is between two numbers.",
        "Raise steps; compute the matrix in double precision; set the resolution by what is known of its error; or use "
        "an effective dimension instead.",
    ),
    FindingKind(
        "CURV815",
        "negative eigenvalues where there should be none",
        "warning",
        "A matrix that is said, or has to be, positive has values zᵀAz or Ritz values clearly below zero, which proves "
        "that it has eigenvalues below zero.",
        "Use the Gauss-Newton or Fisher matrix in place of a Hessian, or move to a minimum first.",
    ),
    FindingKind(
        "CURV816",
        "positive definiteness not certain",
        "warning",
        "The lowest Ritz value is above zero, but its residual allows an eigenvalue below: the logarithm of the "
        "determinant may not exist.",
        "Raise steps or the shift.",
    ),
    FindingKind(
        "CURV821",
        "parameters outside of known layers",
        "info",
        "Some parameters are shared, used outside of the layer they belong to, made from others, or belong to a layer "
        "whose derivatives do not follow from what it is given. Their part of the trace is estimated by products of "
        "the whole matrix with random vectors: right on average, with a standard error, and slower.",
        "Nothing to do; diagnostics['rest'] has the reason for each parameter.",
    ),
    FindingKind(
        "CURV822",
        "many values exactly at a kink",
        "warning",
        "Many values that go into piecewise linear operations are exactly zero, where a ReLU has no derivative. The "
        "trace is of the piece that autograd takes there, and a small move of the weights changes it by a finite "
        "amount. Zero weights, dead inputs without a bias and padding do that.",
        "Look for layers at zero; move the weights a little and compare.",
    ),
    FindingKind(
        "CURV823",
        "examples cannot be told apart",
        "info",
        "The loss gives one number for a batch, or couples its examples, so that second derivatives of single examples "
        "are not to be had. The trace is estimated by products of the whole matrix with random vectors.",
        "Give a loss with one value per example, where there is one: traces are then found in far less time.",
    ),
    FindingKind(
        "CURV831",
        "gradients singular to machine precision",
        "warning",
        "The matrix of inner products of per-example gradients has no inverse in double precision, its smoothing "
        "included: examples are repeated, or have gradients that depend on one another, and the smoothing is below "
        "rounding. As much as rounding may have taken away is added to its diagonal, and the step rests on that.",
        "Raise alpha or epsilon, or leave repeated examples out of a batch.",
    ),
    FindingKind(
        "CURV832",
        "a Fisher trace that rests on few drawn labels",
        "warning",
        "With labels drawn from the model, the trace of the Fisher matrix of this batch is uncertain by more than half "
        "of its value. Near zero loss almost all drawn labels are the likeliest ones, and a few others make the trace.",
        "Use fisher='true', which sums over all classes.",
    ),
    FindingKind(
        "CURV833",
        "per-example gradients row by row",
        "info",
        "The layers of the model do not give the gradients of single examples: weights are used in more than one place "
        "or by a layer of another kind, or examples are coupled. They are computed and held row by row, which takes "
        "more time, and memory of batch size times parameters.",
        "Nothing has to be done; smaller batches need less memory.",
    ),
    FindingKind(
        "CURV834",
        "a batch of one",
        "warning",
        "The Fisher matrix of one example has rank one, and the step is that of the gradient with a length of one over "
        "its norm: the smaller the gradient, the longer the step, up to the smoothing.",
        "Use larger batches, or fisher='kaldi', which follows the Fisher matrix over steps.",
    ),
    FindingKind(
        "CURV841",
        "kernel singular to machine precision",
        "warning",
        "Some combination of outputs hardly depends on the weights, or the same example is there twice: the smallest "
        "eigenvalue of JJᵀ cannot be told from zero in double precision. Directions below the limit are left out of "
        "the step, which is then the shortest of the best ones; what depends on the smallest eigenvalue that counts "
        "(the condition number, rates, the length of the step) rests on where that limit is.",
        "Give a damping, or take repeated and nearly equal examples out.",
    ),
    FindingKind(
        "CURV842",
        "more outputs than parameters",
        "info",
        "The linearized network cannot reach arbitrary outputs on all examples. The step is that of least squares, "
        "and contraction is stated for the part of the residual that weights can change.",
        "Nothing to do; with fewer examples, or a wider network, the residual could vanish.",
    ),
    FindingKind(
        "CURV843",
        "the network does not follow its linearization",
        "warning",
        "The loss of the network is higher after the step than before, while that of its linearization is lower: the "
        "step leaves the region where the network is nearly linear in its weights.",
        "Raise the damping, or take a part of the step.",
    ),
    FindingKind(
        "CURV844",
        "not lazy",
        "info",
        "Between the two points the kernel changed by more than a tenth, or the linearization misses more than a tenth "
        "of the change in outputs: features were learned, and what holds for the kernel at the start does not "
        "describe the network any more.",
        "Nothing to do if that is meant. Wider networks in the same parametrization are nearer to their linearization.",
    ),
    FindingKind(
        "CURV845",
        "no power of the width",
        "warning",
        "The logarithms do not lie on a line within their errors. The exponent is a mean over these widths, and the "
        "one that holds for large widths may be another; how far the wider half differs is in the systematic error.",
        "Leave out the smallest widths, or add wider ones.",
    ),
]
