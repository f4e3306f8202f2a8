"""How the variance of a function becomes a prediction."""
