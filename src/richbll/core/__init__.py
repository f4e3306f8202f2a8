"""The paper, as pure functions on tensors and frozen values. Names are its letters: see NOTATION.md.

Φ^r, Φ^m → Moments → Projection (Q, s, H) → L → SpectralPosterior → variance, covariance, draws
"""
