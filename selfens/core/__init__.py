"""Tensors in, tensors out: losses, schedules, optimizers, targets, views. No files, no config, no loop."""
