"""Measurements of a model that need its kernels: what seeded attention would do to it."""
