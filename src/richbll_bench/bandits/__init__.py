"""Contextual bandits: the wheel, its agents, and the loop in which they meet."""
