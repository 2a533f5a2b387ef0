"""Tensors in, tensors out: no config and no loop, so each module works in anyone's own training loop."""
