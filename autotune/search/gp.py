"""A Gaussian process for some hundred results: smooth where trees are coarse, and honest about what it does not know.

Matérn 5/2 kernel with one length per coordinate. Lengths and noise are the maximum of the posterior under log-normal
priors whose mean grows with √d (Hvarfner et al., ICML 2024), by a few steps of Adam that continue from the
last fit; the signal's variance has a closed form. (Rasmussen and Williams, 2006, chapters 2 and 5.)
"""

from __future__ import annotations

import math

import numpy as np

from autotune.search.grid import Floats

STEPS_FIRST, STEPS_NEXT = 40, 8

GROWTH = 1.03
"""Lengths are sought again when there are so many times more results than at the last search."""

RATE = 0.1
SQRT5 = math.sqrt(5.0)
SLACK = 1e-6


class GaussianProcess:
    """`fit` on coordinates (n × d) and values (n), then `predict` mean and deviation of others."""

    def __init__(self, dims: int) -> None:
        self._lengths = np.full(dims, math.log(0.5) + 0.5 * math.log(max(dims, 1)))
        self._prior = self._lengths.copy()
        self._noise = math.log(1e-2)
        self._fitted = 0  # results at the last search for lengths

    def fit(self, x: Floats, y: Floats) -> None:
        self._mean = float(y.mean())
        z = y - self._mean
        squares = (x[:, None, :] - x[None, :, :]) ** 2
        parameters = np.append(self._lengths, self._noise)
        first, second = np.zeros_like(parameters), np.zeros_like(parameters)
        steps = STEPS_NEXT if self._fitted else STEPS_FIRST
        if len(z) < self._fitted * GROWTH:
            steps = 0
        for step in range(1, steps + 1):
            gradient = self._gradient(parameters, squares, z)
            first = 0.8 * first + 0.2 * gradient
            second = 0.95 * second + 0.05 * gradient**2
            move = (first / (1 - 0.8**step)) / (np.sqrt(second / (1 - 0.95**step)) + 1e-8)
            parameters -= RATE * move
            parameters[:-1] = np.clip(parameters[:-1], -3.0, 4.0)
            parameters[-1] = np.clip(parameters[-1], math.log(1e-5), 0.0)
        self._lengths, self._noise = parameters[:-1], float(parameters[-1])
        self._fitted = len(z) if steps else self._fitted
        covariance = self._kernel(squares, self._lengths) + (math.exp(self._noise) + SLACK) * np.eye(len(z))
        self._x = x
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ z
        self._variance = max(float(z @ self._weights) / len(z), 1e-12)

    def correlations(self, x: Floats) -> Floats:
        """Kernel between new coordinates and the fitted ones."""
        scale = np.exp(-self._lengths)
        a, b = x * scale, self._x * scale
        squares = np.maximum((a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * (a @ b.T), 0.0)
        return _matern(np.sqrt(squares))

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        near = self.correlations(x)
        mean = self._mean + near @ self._weights
        left = np.maximum(1.0 - np.einsum("ij,ij->i", near @ self._inverse, near), 1e-9)
        return mean, np.sqrt(self._variance * left)

    def _kernel(self, squares: Floats, lengths: Floats) -> Floats:
        return _matern(np.sqrt(squares @ np.exp(-2.0 * lengths)))

    def _gradient(self, parameters: Floats, squares: Floats, z: Floats) -> Floats:
        """Of the negative log posterior, per result."""
        lengths, noise = parameters[:-1], math.exp(float(parameters[-1]))
        inverse_squares = np.exp(-2.0 * lengths)
        distance = np.sqrt(squares @ inverse_squares)
        kernel = _matern(distance)
        count = len(z)
        inverse = np.linalg.inv(kernel + (noise + SLACK) * np.eye(count))
        weights = inverse @ z
        variance = max(float(z @ weights) / count, 1e-12)
        inner = inverse - np.outer(weights, weights) / variance
        slope = inner * ((5.0 / 3.0) * (1.0 + SQRT5 * distance) * np.exp(-SQRT5 * distance))
        by_length = 0.5 * np.einsum("ij,ijk->k", slope, squares) * inverse_squares
        by_noise = 0.5 * noise * float(np.trace(inner))
        gradient = np.append(
            by_length + (lengths - self._prior) / 1.0,
            by_noise + (float(parameters[-1]) - math.log(1e-3)) / 4.0,
        )
        return gradient / count


def _matern(distance: Floats) -> Floats:
    scaled = SQRT5 * distance
    result: Floats = (1.0 + scaled + scaled * scaled / 3.0) * np.exp(-scaled)
    return result
