"""What can be found about chains, their tuning, and coefficients made of them."""

from __future__ import annotations

from crunode.findings.kind import FindingKind

__all__ = ["KINDS"]

KINDS = [
    FindingKind(
        "LLC101",
        "negative estimate",
        "error",
        "The estimated learning coefficient is below zero by more than its error. A learning coefficient is positive, "
        "so the chains found lower loss than the center has: the center is not a minimum of the sampled loss.",
        "Train longer, or polish the weights by full-batch descent, before estimating.",
    ),
    FindingKind(
        "LLC102",
        "loss fell below the center",
        "warning",
        "The chains spent time at losses below the loss at the center by more than sampling noise explains, so the "
        "center is not a local minimum. The estimate is then low by about nbeta times the missing depth.",
        "Train longer or polish the weights; with label noise, read the value extrapolated over the nbeta ladder.",
    ),
    FindingKind(
        "LLC103",
        "no single scale",
        "warning",
        "The estimate changes strongly with nbeta over the ladder, so no one exponent describes the loss at this "
        "resolution; a change of the precision would move it likewise. The value at the conventional nbeta = n / log n "
        "is reported, and half the change between the levels beside it is in the systematic error.",
        "Compare estimates only at equal nbeta and precision, or use more data.",
    ),
    FindingKind(
        "LLC104",
        "above half the parameter count",
        "error",
        "The estimate exceeds d/2, the value of a regular model, by more than its error; no minimum can have that. "
        "Either the chains left the basin, or the step is too large, or minibatch noise heats them.",
        "Lower the step, enlarge the batch, or raise the precision.",
    ),
    FindingKind(
        "LLC105",
        "few examples",
        "warning",
        "n is below 100. The theory is asymptotic in n, and the error of a small n is not part of the stated error.",
        "Use more data, or read the value as an effective dimension at this n.",
    ),
    FindingKind(
        "LLC106",
        "loss is flat",
        "error",
        "The loss did not change anywhere the chains went, so the estimate is zero by construction and says nothing.",
        "Check that the loss depends on the sampled parameters, or lower the precision.",
    ),
    FindingKind(
        "LLC107",
        "below the bound of the Jacobian's rank",
        "warning",
        "At a minimum that realises its data the learning coefficient is at least half the rank of the Jacobian of "
        "parameters to outputs. The estimate lies below that, and below the part of it that this nbeta and precision "
        "resolve, by more than twice its error: the center may not be a minimum, or the chains have not equilibrated.",
        "Train longer or polish the weights; lengthen the run.",
    ),
    FindingKind(
        "LLC108",
        "directions unresolved",
        "info",
        "The estimate lies below half the rank of the Jacobian of parameters to outputs by more than twice its error. "
        "The rank counts every direction in which the outputs change at all; at a finite nbeta a direction counts in "
        "full only where nbeta times its curvature is far above the precision. In trained networks most curvatures are "
        "small, so the estimate is an effective dimension at this nbeta, and the learning coefficient proper, the "
        "limit of large nbeta, is higher.",
        "Compare estimates only at equal nbeta and precision; for the limit, raise nbeta or lower the precision.",
    ),
    FindingKind(
        "LLC109",
        "a smooth point of the valley",
        "info",
        "Without label noise the loss is least on a whole valley of weights, and the center is a smooth point of it: "
        "the Jacobian of parameters to outputs has the same rank there and at points of the valley around it. The "
        "learning coefficient is then half that rank, which is the value. Chains are run only where something is given "
        "that is about them.",
        "Nothing. To see chains beside it, or what chains with a weak prior drift to, {}.",
        "give draws= or target='basin'",
        "add --set draws=400 or --set target=basin",
    ),
    FindingKind(
        "LLC110",
        "the valley's limit",
        "warning",
        "Without label noise the loss is least on a whole valley of weights, in which the chains did not get around. "
        "The value is half the rank of the Jacobian at smooth points of the valley near the center: an upper bound, "
        "which is the learning coefficient where the pieces of the valley cross mildly, as in deep linear networks. "
        "Half the way to what the chains saw is in the systematic error.",
        "Raise draws and warmup if the limit is in doubt.",
    ),
    FindingKind(
        "LLC111",
        "the center is no minimum",
        "warning",
        "A short descent on all data from the center lowers the loss by so much that nbeta times it is more than half "
        "of the estimate, which label noise alone does not do. The center lies on a slope or at a saddle, where there "
        "is no learning coefficient; a value beside this is that of another place, or of none.",
        "Train longer, or {} to estimate at a minimum nearby.",
        "give polish=True",
        "add --set polish=true",
    ),
    FindingKind(
        "LLC112",
        "no minimum reached",
        "warning",
        "The weights were to be moved to a minimum nearby before the estimate, and the loss was still falling when the "
        "gradients for it were spent, or when the weights had moved by ten times their size. There may be no minimum, "
        "as with classes that can be told apart without error, where the loss falls for ever as the weights grow.",
        "Train longer first, or {} for more gradients; add weight decay to the loss where it has no minimum.",
        "give a larger number, as in polish=10000,",
        "add a larger number, as in --set polish=10000,",
    ),
    FindingKind(
        "LLC113",
        "chains left the surroundings",
        "error",
        "The loss grows more slowly than the distance from the center, which it does around no minimum: the chains "
        "have left it for level ground, where only the prior holds them, and the value is the height of that ground.",
        "Raise the precision or nbeta, so that chains stay around the center.",
    ),
    FindingKind(
        "LLC114",
        "a series in the temperature",
        "info",
        "The network is large and free of label noise: a single chain was cooled down in steps, and what was missing "
        "at the last temperature was told by the rank at the center, as far as the center has the directions, and else "
        "by the rank at a point of the valley below, or extrapolated. How far that may be off is in the systematic "
        "error.",
        "A larger budget cools further.",
    ),
    FindingKind(
        "LLC115",
        "too few temperatures",
        "error",
        "The chain of a large network did not get through three temperatures (two, where the rank at the center is "
        "known), or the coldest one shows little of that rank, so that nothing can be said about where its estimates "
        "lead.",
        "Raise the budget. Where steps had to be shortened again and again, the loss may have no second derivative.",
    ),
    FindingKind(
        "LLC116",
        "no straight line",
        "warning",
        "The mean loss is not a straight line in the temperature, whose slope the coefficient is: chains are too short "
        "to tell, or the posterior changes from one region to another along the ladder.",
        "Take more draws, or levels that are closer together; look at where the chains are at each of them.",
    ),
    FindingKind(
        "LLC117",
        "levels of nbeta too few or too close",
        "warning",
        "The intercept in 1/log nbeta lies far outside of the levels it is extrapolated from, or there are only three "
        "of them, so that a bend cannot be told from noise. Its stated error then rests on the law being a line.",
        "Take four levels or more, with the coldest at least the square of the hottest.",
    ),
    FindingKind(
        "LLC118",
        "no line in 1/log nbeta",
        "warning",
        "The estimates at the levels of nbeta are not on a line in 1/log nbeta within their errors. Corrections of "
        "other forms are there (powers of nbeta, label noise), or chains have not got around at all levels. The stated "
        "standard error is enlarged by how badly the line fits.",
        "Begin at a colder level, raise draws and warmup, or take llc, which weighs several laws.",
    ),
    FindingKind(
        "LLC119",
        "the estimate falls with nbeta",
        "warning",
        "Multiplicity m gives a slope of −(m − 1) in 1/log nbeta, which is never above zero; this one is, by more than "
        "three standard errors. Label noise makes estimates fall with nbeta, and so do cold chains that have not "
        "equilibrated; the intercept is not the learning coefficient then.",
        "With noisy labels {}; otherwise raise warmup.",
        "take llc, or sample landscape.self_labelled()",
        "use crunode llc",
    ),
    FindingKind(
        "LLC120",
        "the chain left",
        "error",
        "The chain of a large network sees less the colder it is, even held close: it leaves the weights for where the "
        "coefficient is less.",
        "Raise the budget, or ask for the least coefficient within reach by {}.",
        "target='basin'",
        "--set target=basin",
    ),
    FindingKind(
        "MC201",
        "chains disagree",
        "error",
        "Split R-hat of the loss is above its limit: chains started at the same point do not agree, so they have not "
        "converged and the standard error is too small.",
        "Raise draws and warmup, or the precision, so that chains explore the same region.",
    ),
    FindingKind(
        "MC202",
        "low effective sample size",
        "warning",
        "The draws are worth few independent ones, so the standard error itself is uncertain.",
        "Raise draws or chains.",
    ),
    FindingKind(
        "MC203",
        "loss is drifting",
        "error",
        "The loss still trends within the kept draws: warm-up ended too early, or the chains are leaving the basin.",
        "Raise warmup; raise precision if the trend goes up without end; train longer if it goes down.",
    ),
    FindingKind(
        "MC204",
        "chain diverged",
        "error",
        "A chain reached non-finite or absurdly large values. Neither its draws nor the surviving chains alone are "
        "an estimate, because survivors are selected.",
        "Lower the step, or leave it to be tuned.",
    ),
    FindingKind(
        "MC205",
        "low acceptance",
        "warning",
        "Fewer than one proposal in five was accepted, so the chains hardly move.",
        "Lower the step, or leave it to be tuned.",
    ),
    FindingKind(
        "MC206",
        "no overlap between rungs",
        "error",
        "Fewer than one swap in fifty between two neighbouring levels of nbeta was accepted. Positions do not pass "
        "from the hot part of the ladder to the cold one there, so that cold chains stay in the modes they began in.",
        "Add levels between the two, or have the ladder chosen by crunode.ladder.",
    ),
    FindingKind(
        "MC207",
        "no round trip",
        "warning",
        "No position went from the hottest level of nbeta to the coldest one and back within the kept draws. Each rung "
        "has then seen what its own chains found, and how modes are weighed against each other is not settled.",
        "Raise draws, or space the levels for equal swap rates with crunode.ladder.",
    ),
    FindingKind(
        "MC208",
        "divergent trajectories",
        "warning",
        "The energy error of some trajectories exceeded 1000: leapfrog steps are too large for parts of the posterior, "
        "which the chains then enter too seldom.",
        "Raise accept (0.95 or 0.99) for smaller steps and give a longer warmup, or raise the precision.",
    ),
    FindingKind(
        "MC209",
        "trees at the largest depth",
        "warning",
        "Trajectories were cut off at the largest depth before they turned back. The draws are valid, but chains move "
        "more slowly than they could.",
        "Raise depth, {}, or raise the precision.",
        "learn scales with metric='diagonal'",
        "learn scales with --set kernel='NUTS(metric=\"diagonal\")'",
    ),
    FindingKind(
        "MC301",
        "minibatch heating",
        "warning",
        "Gradient noise of the minibatches adds a noticeable part to the injected noise, so the chains are hotter "
        "than asked and the estimate is high. The predicted size is in the systematic error.",
        "Raise batch, lower step, or use a full-batch kernel (MALA, HMC).",
    ),
    FindingKind(
        "MC302",
        "discretisation",
        "warning",
        "The step of an unadjusted kernel is large against the curvature, so the estimate is high by a noticeable "
        "part. The predicted size is in the systematic error.",
        "Lower step, or use a Metropolis kernel (MALA, HMC).",
    ),
    FindingKind(
        "TUNE401",
        "depends on the precision",
        "warning",
        "The estimate moves by more than a tenth, and by more than its noise, when the precision of the prior is "
        "halved or doubled: the prior holds directions that the loss does not. How far it moves is in the systematic "
        "error.",
        "Compare estimates only at equal precision, or read the value extrapolated over a ladder of nbeta.",
    ),
    FindingKind(
        "TUNE402",
        "the prior makes the value",
        "error",
        "The estimate nearly doubles, or more, when the precision of the prior is halved: the prior holds nearly all "
        "that chains move along, and the value says how strong it is rather than how complex the model.",
        "Lower the precision or raise nbeta, or leave them out to have them chosen.",
    ),
]
