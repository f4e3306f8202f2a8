"""The evidence for richbll: baselines, measures and demonstrations, built on its public names alone."""
