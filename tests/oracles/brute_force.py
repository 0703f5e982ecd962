"""The paper's formulas as loops over indices in float64 NumPy, exactly as printed.

Slow and without array tricks on purpose: an independent reading of the formulas to test
`etlib.energy` against.
"""

import math

import numpy as np


def layer_norm(x, gamma, delta, eps):
    """g_i = gamma (x_i - mean) / sqrt(1/D sum_j (x_j - mean)^2 + eps) + delta_i, one token."""
    D = len(x)
    mean = sum(x) / D
    variance = sum((x[j] - mean) ** 2 for j in range(D)) / D
    return np.array(
        [gamma * (x[i] - mean) / math.sqrt(variance + eps) + delta[i] for i in range(D)]
    )


def lagrangian(x, gamma, delta, eps):
    """L = D gamma sqrt(1/D sum_j (x_j - mean)^2 + eps) + sum_j delta_j x_j, one token."""
    D = len(x)
    mean = sum(x) / D
    variance = sum((x[j] - mean) ** 2 for j in range(D)) / D
    return D * gamma * math.sqrt(variance + eps) + sum(delta[j] * x[j] for j in range(D))


def attention_energy(g, Wk, Wq, beta, allowed, weights=None):
    """-sum_h 1/beta_h sum_C log sum_{B allowed} exp(beta_h w_hBC sum_a K_ahB Q_ahC)."""
    H, Y, D = Wk.shape
    N = len(g)
    K = np.zeros((Y, H, N))
    Q = np.zeros((Y, H, N))
    for a in range(Y):
        for h in range(H):
            for B in range(N):
                K[a, h, B] = sum(Wk[h, a, j] * g[B, j] for j in range(D))
                Q[a, h, B] = sum(Wq[h, a, j] * g[B, j] for j in range(D))
    total = 0.0
    for h in range(H):
        for C in range(N):
            inner = 0.0
            for B in range(N):
                if allowed[B, C]:
                    A = sum(K[a, h, B] * Q[a, h, C] for a in range(Y))
                    w = 1.0 if weights is None else weights[h, B, C]
                    inner += math.exp(beta[h] * w * A)
            if inner > 0:
                total -= math.log(inner) / beta[h]
    return total


def hopfield_energy(g, Xi, potential):
    """-sum_B G(xi_mu . g_B for all mu), with G summed over the memories by `potential`."""
    N, D = g.shape
    K = len(Xi)
    total = 0.0
    for B in range(N):
        total -= potential([sum(Xi[m, j] * g[B, j] for j in range(D)) for m in range(K)])
    return total


def relu_potential(h):
    return sum(0.5 * max(v, 0.0) ** 2 for v in h)


def softmax_potential(h, beta):
    return math.log(sum(math.exp(beta * v) for v in h)) / beta


def power_potential(h, n):
    return sum(max(v, 0.0) ** n for v in h) / n


def finite_difference(function, g, step=1e-6):
    """Central differences of a scalar function of an array."""
    gradient = np.zeros_like(g)
    for index in np.ndindex(g.shape):
        above, below = g.copy(), g.copy()
        above[index] += step
        below[index] -= step
        gradient[index] = (function(above) - function(below)) / (2 * step)
    return gradient
