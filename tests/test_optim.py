"""Adam against a twin of the authors' formula and against torch's."""

import numpy as np
import pytest
import torch
from reference.adam import AdamTwin
from torch import nn

from selfens.core.optim import Adam
from selfens.errors import ConfigError

STEPS = 30
RATES = [(0.01 * (1 + step / 10), 0.9 if step < 15 else 0.9 - 0.4 * (step - 14) / 15) for step in range(STEPS)]


def parameters(seed=0):
    random = np.random.default_rng(seed)
    return [nn.Parameter(torch.from_numpy(random.normal(size=shape)).float()) for shape in [(3, 4), (5,), (2, 1, 3)]]


def gradients(step):
    """Sizes from 1e-4 to 1, as in a network's layers."""
    random = np.random.default_rng([1, step])
    return [random.normal(size=s).astype(np.float32) * k for s, k in [((3, 4), 1), ((5,), 1e-2), ((2, 1, 3), 1e-4)]]


def set_rates(optimizer, learning_rate, beta1):
    optimizer.learning_rate.fill_(learning_rate)
    optimizer.beta1.fill_(beta1)


def take_steps(optimizer, count=STEPS):
    for step in range(count):
        set_rates(optimizer, *RATES[step])
        optimizer.step([torch.from_numpy(g) for g in gradients(step)])


@pytest.mark.parametrize(("beta2", "epsilon"), [(0.999, 1e-8), (0.99, 1e-8), (0.999, 1e-3)])
def test_thirty_steps_with_changing_rates_follow_the_authors_formula(beta2, epsilon):
    ours, arrays = parameters(), [p.detach().numpy().astype(np.float64) for p in parameters()]
    optimizer, twin = Adam(ours, beta2, epsilon), AdamTwin(arrays, beta2, epsilon)
    for step, (rate, beta1) in enumerate(RATES):
        set_rates(optimizer, rate, beta1)
        optimizer.step([torch.from_numpy(g) for g in gradients(step)])
        twin.step(gradients(step), rate, beta1)
        for p, array in zip(ours, arrays, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), array, rtol=1e-5, atol=1e-6)


def test_torchs_adam_differs_only_by_the_place_of_epsilon():
    ours, theirs = parameters(), parameters()
    optimizer, reference = Adam(ours), torch.optim.Adam(theirs)
    for step, (rate, beta1) in enumerate(RATES):
        set_rates(optimizer, rate, beta1)
        optimizer.step([torch.from_numpy(g) for g in gradients(step)])
        reference.param_groups[0].update(lr=rate, betas=(beta1, 0.999))
        for p, g in zip(theirs, gradients(step), strict=True):
            p.grad = torch.from_numpy(g)
        reference.step()
    # A step of 0.02 differs by epsilon / sqrt(v), where sqrt(v) is at least about 0.01 of a typical gradient.
    for p, q, size in zip(ours, theirs, [1, 1e-2, 1e-4], strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6 + STEPS * 0.02 * 1e-8 / (0.01 * size))


def test_first_step_is_the_learning_rate_against_the_sign():
    (p,) = [nn.Parameter(torch.zeros(2))]
    optimizer = Adam([p])
    set_rates(optimizer, 0.003, 0.9)
    optimizer.step([torch.tensor([5.0, -0.1])])
    torch.testing.assert_close(p.detach(), torch.tensor([-0.003, 0.003]), rtol=1e-5, atol=0)


def test_parameters_stay_views_of_the_flat_tensor():
    ours = parameters()
    before = [p.detach().clone() for p in ours]
    optimizer = Adam(ours)
    assert all(torch.equal(p, b) for p, b in zip(ours, before, strict=True))
    take_steps(optimizer, 3)
    pieces = torch.split(optimizer.flat, [p.numel() for p in ours])
    for p, piece in zip(ours, pieces, strict=True):
        assert p.data_ptr() == piece.data_ptr()
        assert torch.equal(p.detach().flatten(), piece)
    optimizer.flat.fill_(2.5)
    assert all(bool((p == 2.5).all()) for p in ours)


def test_loading_weights_into_the_module_keeps_the_views():
    network = nn.Linear(3, 2)
    optimizer = Adam(network.parameters())
    network.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
    assert sorted(optimizer.flat.tolist()) == [0.0] * 2 + [1.0] * 6


def test_parameter_without_gradient_counts_as_zero_gradient():
    ours, arrays = parameters(), [p.detach().numpy().astype(np.float64) for p in parameters()]
    optimizer, twin = Adam(ours), AdamTwin(arrays)
    for step in range(6):
        unused = step % 2 == 1  # with momentum left from the step before
        each = gradients(step)
        set_rates(optimizer, 0.01, 0.9)
        optimizer.step([None if unused and i == 1 else torch.from_numpy(g) for i, g in enumerate(each)])
        twin.step([0 * g if unused and i == 1 else g for i, g in enumerate(each)], 0.01, 0.9)
    np.testing.assert_allclose(ours[1].detach().numpy(), arrays[1], rtol=1e-5, atol=1e-6)


def test_frozen_parameters_are_left_alone():
    ours = parameters()
    ours[1].requires_grad_(False)
    frozen, address = ours[1].clone(), ours[1].data_ptr()
    optimizer = Adam(ours)
    set_rates(optimizer, 0.1, 0.9)
    optimizer.step([torch.ones_like(ours[0]), torch.ones_like(ours[2])])
    assert [id(p) for p in optimizer.parameters] == [id(ours[0]), id(ours[2])]
    assert torch.equal(ours[1], frozen)
    assert ours[1].data_ptr() == address


def test_state_goes_on_where_it_was_left():
    first, second = parameters(), parameters()
    whole, half = Adam(first), Adam(second)
    take_steps(whole)
    take_steps(half, 10)
    rest = Adam(second)
    rest.load_state({name: tensor.clone() for name, tensor in half.state().items()})
    for step in range(10, STEPS):
        set_rates(rest, *RATES[step])
        rest.step([torch.from_numpy(g) for g in gradients(step)])
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))


def test_nan_in_a_gradient_is_not_hidden():
    ours = parameters()
    optimizer = Adam(ours)
    set_rates(optimizer, 0.01, 0.9)
    optimizer.step([torch.full_like(ours[0], torch.nan), None, None])
    assert ours[0].isnan().all()


def test_network_without_trainable_parameters_is_refused():
    with pytest.raises(ConfigError, match="no trainable parameters"):
        Adam([])
    with pytest.raises(ConfigError, match="no trainable parameters"):
        Adam([nn.Parameter(torch.ones(2), requires_grad=False)])


@pytest.mark.parametrize("kinds", [[torch.float64], [torch.float32, torch.float64], [torch.bfloat16]])
def test_parameters_other_than_float32_are_refused(kinds):
    with pytest.raises(ConfigError, match="expected float32"):
        Adam([nn.Parameter(torch.ones(2, dtype=kind)) for kind in kinds])
