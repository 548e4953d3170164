"""Gaussian laws in closed form: densities, moments of relu and tanh, exponential moments, inversion of a law.

Nothing here knows networks. What rounding costs each function stands in one table, `normal.ERRORS`.
"""
