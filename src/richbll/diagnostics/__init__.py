"""How well does the approximation hold here? Measured, not assumed."""
