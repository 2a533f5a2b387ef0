"""Adam as in the authors' code: the bias corrections in the step size, epsilon beside the uncorrected root."""

import math

import numpy as np


class AdamTwin:
    def __init__(self, parameters, beta2=0.999, epsilon=1e-8, weight_decay=0.0, multipliers=None):
        """parameters: a list of float64 arrays, changed in place; multipliers: a learning rate's factor for each."""
        self.parameters = parameters
        self.m = [np.zeros_like(p) for p in parameters]
        self.v = [np.zeros_like(p) for p in parameters]
        self.t, self.beta2, self.epsilon = 0, beta2, epsilon
        self.weight_decay, self.multipliers = weight_decay, multipliers or [1.0] * len(parameters)

    def step(self, gradients, learning_rate, beta1):
        self.t += 1
        rate = learning_rate * math.sqrt(1 - self.beta2**self.t) / (1 - beta1**self.t)
        for i, gradient in enumerate(gradients):
            if self.weight_decay and self.parameters[i].ndim >= 2:
                gradient = gradient + self.weight_decay * self.parameters[i]
            self.m[i] = beta1 * self.m[i] + (1 - beta1) * gradient
            self.v[i] = self.beta2 * self.v[i] + (1 - self.beta2) * gradient**2
            self.parameters[i] -= self.multipliers[i] * rate * self.m[i] / (np.sqrt(self.v[i]) + self.epsilon)
