"""From a config to a trained run: setup, loop, step, evaluation, checkpoint."""
