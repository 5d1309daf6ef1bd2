"""Counter-based Gumbel noise: a pure function of (seed, position, token), so a seed gives the same tokens on every
plan, in any company, with or without speculation.

The counter is mixed with the 64-bit finaliser of splitmix64 (Steele, Lea and Flood, *Fast splittable pseudorandom
number generators*, 2014). All integer arithmetic is modulo 2^64:

    mix(z):  z ^= z >> 30;  z *= bf58476d1ce4e5b9;  z ^= z >> 27;  z *= 94d049bb133111eb;  z ^= z >> 31
    key      = mix(mix(seed + G) + position * G + G)          G = 9e3779b97f4a7c15
    x(token) = mix(key + token * G + G)
    u(token) = ((x >> 12) + 1/2) / 2^52                       in [2^-53, 1 - 2^-53]: never 0, never 1
    g(token) = -ln(-ln u)                                     in [-3.61, 36.74]
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB

MAX_SEED = _MASK
MIN_GUMBEL = float(-np.log(-np.log(2.0**-53)))
MAX_GUMBEL = float(-np.log(-np.log(1.0 - 2.0**-53)))


def _mix(z: int) -> int:
    z = ((z ^ z >> 30) * _MIX_A) & _MASK
    z = ((z ^ z >> 27) * _MIX_B) & _MASK
    return z ^ z >> 31


def noise_key(seed: int, position: int) -> int:
    """The 64-bit key of one draw; `position` is where the token to be chosen will stand."""
    return _mix((_mix((seed + _GOLDEN) & _MASK) + position * _GOLDEN + _GOLDEN) & _MASK)


def uniform_bits(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """x(token) for each of `tokens`, u64 of the same shape."""
    key = np.uint64((noise_key(seed, position) + _GOLDEN) & _MASK)
    z = tokens.astype(np.uint64) * np.uint64(_GOLDEN) + key
    z = (z ^ z >> np.uint64(30)) * np.uint64(_MIX_A)
    z = (z ^ z >> np.uint64(27)) * np.uint64(_MIX_B)
    return z ^ z >> np.uint64(31)


def gumbel(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """g(seed, position, token) for each of `tokens`, f64 of the same shape, all finite."""
    x = uniform_bits(seed, position, tokens)
    u = ((x >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return np.asarray(-np.log(-np.log(u)), dtype=np.float64)
