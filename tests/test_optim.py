"""The authors' Adam against a twin, SGD and AdamW against torch's, and what all optimizers have in common."""

import numpy as np
import pytest
import torch
from reference.adam import AdamTwin
from torch import nn

from selfens.core.optim import Adam, AdamW, Sgd, flatten
from selfens.errors import ConfigError

STEPS = 30
RATES = [(0.01 * (1 + step / 10), 0.9 if step < 15 else 0.9 - 0.4 * (step - 14) / 15) for step in range(STEPS)]
SHAPES = {"body.weight": (3, 4), "body.bias": (5,), "head.weight": (2, 1, 3)}
OPTIMIZERS = {"adam": Adam, "adamw": AdamW, "sgd": Sgd}


class Network(nn.Module):
    """Only parameters, of one, two and three dimensions."""

    def __init__(self, seed=0):
        super().__init__()
        random = np.random.default_rng(seed)
        self.body, self.head = nn.Module(), nn.Module()
        for name, shape in SHAPES.items():
            part, attribute = name.split(".")
            setattr(getattr(self, part), attribute, nn.Parameter(torch.from_numpy(random.normal(size=shape)).float()))


def arrays_of(network):
    return [parameter.detach().numpy().astype(np.float64) for parameter in network.parameters()]


def gradients(step):
    """Sizes from 1e-4 to 1, as in a network's layers."""
    random = np.random.default_rng([1, step])
    sizes = zip(SHAPES.values(), (1, 1e-2, 1e-4), strict=True)
    return [random.normal(size=shape).astype(np.float32) * size for shape, size in sizes]


def set_rates(optimizer, learning_rate, beta1):
    optimizer.rates["learning_rate"].fill_(learning_rate)
    if "beta1" in optimizer.rates:
        optimizer.rates["beta1"].fill_(beta1)


def take_steps(optimizer, count=STEPS, first=0):
    for step in range(first, count):
        set_rates(optimizer, *RATES[step])
        optimizer.step([torch.from_numpy(g) for g in gradients(step)])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beta2": 0.99},
        {"epsilon": 1e-3},
        {"weight_decay": 0.1},
        {"multipliers": {"body": 0.1, "body.bias": 3.0}},
        {"weight_decay": 0.1, "multipliers": {"head": 0.0}},
    ],
    ids=str,
)
def test_adam_with_changing_rates_follows_the_authors_formula(options):
    network, multipliers = Network(), options.get("multipliers", {})
    arrays = arrays_of(network)
    each = {"body": [0.1, 3.0, 1.0], "head": [1.0, 1.0, 0.0]}.get(next(iter(multipliers), ""))
    twin = AdamTwin(arrays, **(options | {"multipliers": each}))
    optimizer = Adam(network, **options)
    for step, (rate, beta1) in enumerate(RATES):
        set_rates(optimizer, rate, beta1)
        optimizer.step([torch.from_numpy(g) for g in gradients(step)])
        twin.step(gradients(step), rate, beta1)
        for parameter, array in zip(network.parameters(), arrays, strict=True):
            np.testing.assert_allclose(parameter.detach().numpy(), array, rtol=1e-5, atol=1e-6)


def torchs(name, network, weight_decay):
    """The same with torch's classes, without weight decay for one-dimensional parameters."""
    groups = [
        {"params": [p for p in network.parameters() if (p.ndim >= 2) == decays], "weight_decay": decays * weight_decay}
        for decays in (True, False)
    ]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups) if name == "adamw" else torch.optim.Adam(groups)


@pytest.mark.parametrize(
    ("name", "weight_decay"), [("sgd", 0.0), ("sgd", 0.1), ("adamw", 0.0), ("adamw", 0.1), ("adam", 0.1)]
)
def test_optimizers_are_torchs(name, weight_decay):
    ours, theirs = Network(), Network()
    optimizer, reference = OPTIMIZERS[name](ours, weight_decay=weight_decay), torchs(name, theirs, weight_decay)
    for step, (rate, beta1) in enumerate(RATES):
        set_rates(optimizer, rate, beta1)
        optimizer.step([torch.from_numpy(g) for g in gradients(step)])
        for group in reference.param_groups:
            group.update({"lr": rate} if name == "sgd" else {"lr": rate, "betas": (beta1, 0.999)})
        for p, g in zip(theirs.parameters(), gradients(step), strict=True):
            p.grad = torch.from_numpy(g)
        reference.step()
    # torch's Adam adds epsilon in a different place. A step of 0.02 differs by epsilon / sqrt(v), where sqrt(v) is at least
    # about 0.01 of a typical gradient.
    for p, q, size in zip(ours.parameters(), theirs.parameters(), [1, 1e-2, 1e-4], strict=True):
        allowed = STEPS * 0.02 * 1e-8 / (0.01 * size) if name == "adam" else 0
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6 + allowed)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_multiplier_scales_the_steps_of_its_parameters_only(name):
    plain, scaled = Network(), Network()
    before = [p.detach().clone() for p in plain.parameters()]
    for network, multipliers in ((plain, {}), (scaled, {"head": 0.25, "body.bias": 0.0})):
        take_steps(OPTIMIZERS[name](network, multipliers=multipliers), 1)
    for p, q, old, factor in zip(plain.parameters(), scaled.parameters(), before, (1, 0, 0.25), strict=True):
        torch.testing.assert_close(q - old, factor * (p - old), rtol=1e-4, atol=1e-7)


def test_a_multiplier_for_no_parameter_is_refused():
    sentence = r"names 'backbone'; expected the prefix of a parameter: body\.weight"
    with pytest.raises(ConfigError, match=sentence):
        Adam(Network(), multipliers={"backbone": 0.1})


def test_parameters_stay_views_of_the_flat_tensor():
    network = Network()
    before = [p.detach().clone() for p in network.parameters()]
    optimizer = Sgd(network)
    assert all(torch.equal(p, b) for p, b in zip(network.parameters(), before, strict=True))
    take_steps(optimizer, 3)
    pieces = torch.split(optimizer.flat, [p.numel() for p in network.parameters()])
    for p, piece in zip(network.parameters(), pieces, strict=True):
        assert p.data_ptr() == piece.data_ptr()
        assert torch.equal(p.detach().flatten(), piece)
    network.load_state_dict({name: torch.full(shape, 2.5) for name, shape in SHAPES.items()})
    assert bool((optimizer.flat == 2.5).all())


def test_the_flat_tensor_is_known_only_while_the_parameters_are_in_it():
    network = Network()
    optimizer = Adam(network)
    parameters = list(network.parameters())
    assert flatten(parameters) is Sgd(network).flat is optimizer.flat
    network.double().float()
    moved = flatten(list(network.parameters()))
    assert moved is not optimizer.flat
    assert torch.equal(moved, optimizer.flat)
    part = flatten(parameters[:2])
    assert part.numel() == sum(parameter.numel() for parameter in parameters[:2])
    assert flatten(list(network.parameters())) is not moved


def test_parameter_without_gradient_counts_as_zero_gradient():
    network = Network()
    arrays = arrays_of(network)
    optimizer, twin = Adam(network), AdamTwin(arrays)
    for step in range(6):
        unused = step % 2 == 1  # with momentum left from the step before
        each = gradients(step)
        set_rates(optimizer, 0.01, 0.9)
        optimizer.step([None if unused and i == 1 else torch.from_numpy(g) for i, g in enumerate(each)])
        twin.step([0 * g if unused and i == 1 else g for i, g in enumerate(each)], 0.01, 0.9)
    np.testing.assert_allclose(network.body.bias.detach().numpy(), arrays[1], rtol=1e-5, atol=1e-6)


def test_frozen_parameters_are_not_changed():
    network = Network()
    network.body.bias.requires_grad_(False)
    frozen, address = network.body.bias.clone(), network.body.bias.data_ptr()
    optimizer = AdamW(network, weight_decay=0.5)
    set_rates(optimizer, 0.1, 0.9)
    optimizer.step([torch.ones(3, 4), torch.ones(2, 1, 3)])
    assert [id(p) for p in optimizer.parameters] == [id(network.body.weight), id(network.head.weight)]
    assert torch.equal(network.body.bias, frozen)
    assert network.body.bias.data_ptr() == address


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_continues_where_it_was_left(name):
    first, second = Network(), Network()
    take_steps(OPTIMIZERS[name](first))
    half = OPTIMIZERS[name](second)
    take_steps(half, 10)
    rest = OPTIMIZERS[name](second)
    rest.load_state_dict({key: tensor.clone() for key, tensor in half.state_dict().items()})
    take_steps(rest, first=10)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nan_in_a_gradient_is_not_hidden(name):
    network = Network()
    optimizer = OPTIMIZERS[name](network)
    set_rates(optimizer, 0.01, 0.9)
    optimizer.step([torch.full((3, 4), torch.nan), None, None])
    assert network.body.weight.isnan().all()


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (nn.Identity(), "no trainable parameters"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameters"),
        (nn.Linear(2, 2, dtype=torch.float64), "expected float32"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.bfloat16)), "expected float32"),
    ],
)
def test_networks_whose_parameters_cannot_be_trained_are_refused(network, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Adam(network)
