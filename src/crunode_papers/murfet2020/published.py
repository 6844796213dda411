"""Learning coefficients and R² as Tables 1, 3, 4 and 5 of Murfet et al. 2020 print them."""

from __future__ import annotations

import math

__all__ = ["TABLE5_NOTE", "printed"]

TABLE5_NOTE = "Table 5 prints the numbers of Table 4"

_INF = (math.inf, math.nan)
_NAN = (math.nan, math.nan)

# (table, layers, relu) -> two-layer MCMC, last-layer MCMC, two-layer Laplace, last-layer Laplace, MAP; None where the
# text of the paper that these were taken from does not give them.
_ORDER = ("two-layer MCMC", "last-layer MCMC", "two-layer Laplace", "last-layer Laplace", "MAP")
_Value = tuple[float, float] | None
_VALUES: dict[tuple[int, int, bool], tuple[_Value, ...]] = {
    (1, 1, False): ((9.709027, 0.966124), (6.410380, 0.988921), _INF, (2154.989266, 0.801077), (10.714216, 0.951051)),
    (1, 5, False): ((1.286290, 0.985161), (1.298504, 0.982298), _INF, (2038.605589, 0.803736), (1.437473, 0.983411)),
    (1, 1, True): ((3.117187, 0.977313), (3.152710, 0.980132), _INF, (1120.648298, 0.742412), (5.343311, 0.972212)),
    (1, 5, True): ((0.835593, 0.957824), (1.466273, 0.920716), _INF, (1416.294288, 0.808991), (1.981483, 0.889519)),
    (3, 1, False): ((36.721594, 0.992839), (20.676920, 0.983695), _INF, (1768.655088, 0.838035), _INF),
    (3, 5, False): ((13.729278, 0.924049), (9.170642, 0.945613), _INF, (1943.793236, 0.794679), (14.123308, 0.917502)),
    (3, 1, True): ((22.175448, 0.975450), (10.675455, 0.968584), None, None, None),
    (3, 5, True): ((4.652483, 0.922693), (3.533366, 0.862125), _INF, (1004.852367, 0.901899), (6.256696, 0.940437)),
    (4, 1, False): ((11.086023, 0.969991), (7.377871, 0.957824), _NAN, (30.692954, 0.029238), (12.947959, 0.970173)),
    (4, 5, False): ((0.808601, 0.144260), (0.799114, 0.127686), _NAN, (-33.817429, 0.009074), (1.204743, 0.242671)),
    (4, 1, True): ((5.987187, 0.848490), (5.384686, 0.801313), None, None, None),
    (4, 5, True): ((0.794055, 0.088305), (1.141580, 0.162585), None, None, None),
}


def printed(table: int, layers: int, relu: bool, method: str) -> tuple[float, float] | None:
    """The printed slope and R², inf and nan as printed; None where our text of the paper lacks them.

    Example:
        >>> printed(1, 1, False, "MAP")
        (10.714216, 0.951051)
        >>> printed(5, 1, False, "MAP") == printed(4, 1, False, "MAP")
        True
    """
    row = _VALUES[4 if table == 5 else table, layers, relu]
    return row[_ORDER.index(method)]
