"""Naive twins of what the package computes: numpy, float64, a loop over rows, written from the paper and the facts sheet."""
