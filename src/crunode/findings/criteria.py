"""What can be found about information criteria and volumes."""

from __future__ import annotations

from crunode.findings.kind import FindingKind

__all__ = ["KINDS"]

KINDS = [
    FindingKind(
        "CRIT701",
        "heavy importance weights",
        "warning",
        "Leaving an example out changes the posterior by so much that draws of the full one hardly stand for it: the "
        "tail of the importance weights has an exponent k above 0.7, and neither their mean nor its stated error can "
        "be trusted.",
        "Compare with waic; look at these examples (diagnostics['pareto_k']); leave them out and sample again.",
    ),
    FindingKind(
        "CRIT702",
        "a prior around the weights",
        "info",
        "The draws are of a posterior that is held near the trained weights. Criteria then judge that neighborhood as "
        "a model of its own, which has seen the data, and are too low for a model whose prior has not.",
        "For a model as a whole sample with prior=Gaussian(precision, mean='origin').",
    ),
    FindingKind(
        "CRIT703",
        "levels without overlap",
        "error",
        "Draws of two neighbouring levels of nbeta hardly ever have losses that both would have, so that the ratio of "
        "their evidences rests on a few of them or on none. Its stated error cannot be trusted then. Across a phase "
        "transition levels have to be closer than elsewhere.",
        "Add levels between the two.",
    ),
    FindingKind(
        "CRIT704",
        "a ladder that begins too cold",
        "error",
        "The evidence is relative to the prior, at nbeta = 0. The first level is so cold that its draws do not reach "
        "back to there.",
        "Begin the ladder at a smaller nbeta: so small that nbeta times the loss is of order one over the prior.",
    ),
    FindingKind(
        "CRIT705",
        "a truth that the model does not realise",
        "warning",
        "No weights that were given or reached by a descent predict as the truth does, and data sets of this size "
        "tell the difference. What holds for realisable truths does not then: the generalisation loss does not "
        "approach the entropy, and its distance from that is not the learning coefficient over n.",
        "Nothing, if that is meant. Else start closer to the truth, or take a model that holds it.",
    ),
    FindingKind(
        "CRIT706",
        "few visits between regions",
        "warning",
        "Chains hardly ever go from one region of parameter space to the other near a transition, or disagree about "
        "how often each is visited. Which region holds the posterior there then rests on where chains began; the "
        "interval that is stated is at least from one level to the next, and may still be too narrow.",
        "Sample with replica exchange, with more chains, or with more levels of nbeta around the transition.",
    ),
    FindingKind(
        "CRIT707",
        "the free energy follows no such law",
        "error",
        "No λ log t − (m − 1) log log t with a correction fits the increments of the free energy within their errors: "
        "the ladder crosses a phase transition, chains have not mixed, or the center is not a true parameter.",
        "Look at phases(...) and at each level; begin the ladder at a colder level, on one side of the transition.",
    ),
    FindingKind(
        "CRIT708",
        "multiplicity not decided",
        "info",
        "More than one multiplicity agrees with the free energies. The value is an average over them, and their "
        "disagreement is part of the systematic error.",
        "Sample to colder levels, or with more draws.",
    ),
    FindingKind(
        "CRIT711",
        "a constant left out of the likelihood",
        "info",
        "The exponential of minus the loss has the same integral over targets everywhere, but not 1: a constant is "
        "left out. It shifts losses and criteria of all models alike, so that differences hold; it has to be added to "
        "compare with an entropy, or with a model that has another constant.",
        "Nothing for comparisons. Else add the constant to the loss, as Triple.loss does.",
    ),
    FindingKind(
        "CRIT712",
        "no likelihood",
        "error",
        "The integral of the exponential of minus the loss over targets depends on the example or on the weights, or "
        "is infinite: the loss is not minus the logarithm of a probability, up to any constant. Criteria that are "
        "made from such probabilities do not hold.",
        "Use a loss that is −log p(y|x, w), with all terms that depend on x and w.",
    ),
    FindingKind(
        "CRIT713",
        "the equations of state do not hold",
        "warning",
        "Generalisation and training losses, functional variance and cross-validation over data sets do not fit "
        "together with one learning coefficient and one singular fluctuation within their errors: data sets may be "
        "too small, chains may not have got around, or the truth is one that the model does not realise.",
        "Raise n and draws; look at the residuals, and at triple.distance(draws).",
    ),
    FindingKind(
        "VOL601",
        "volumes follow no such law",
        "error",
        "No t^λ (−log t)^(m−1) with corrections of higher exponents fits the volumes within their noise: the potential "
        "is not analytic, changes its form below some t, or the particles have not spread over the set.",
        "Raise moves and particles, or look closer at the point by a smaller radius.",
    ),
    FindingKind(
        "VOL602",
        "multiplicity not decided",
        "info",
        "More than one multiplicity agrees with the volumes. The value is an average over them, and their disagreement "
        "is part of the systematic error.",
        "Raise levels and particles.",
    ),
    FindingKind(
        "VOL603",
        "fewer levels than asked",
        "warning",
        "The halvings of t ended where the rounding of the potential begins, or where no particle was left.",
        "Compute the potential in double precision as a sum of squares, or raise particles.",
    ),
    FindingKind(
        "VOL604",
        "particles hardly move",
        "warning",
        "Few steps are accepted, so that copies of a particle stay together. The volumes stay unbiased, but rare large "
        "errors may not show in the difference between replicas.",
        "Raise moves and particles.",
    ),
]
