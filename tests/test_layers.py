"""The layers and networks against numpy: one output at a time, in double precision."""

import numpy as np
import pytest
import torch
from reference import layers as twin
from reference.differences import numerical_gradient
from torch import nn

from selfens import networks
from selfens.config import NetworkConfig
from selfens.errors import ConfigError
from selfens.networks.layers import (
    BatchNorm,
    GaussianNoise,
    NormalizedConv2d,
    NormalizedLayer,
    NormalizedLinear,
    calibrate,
    normalized_layers,
    update_running_means,
)

STILL = {"noise": 0.0, "dropout": 0.0}
# Single precision sums of at most a hundred products of size 1, against double.
CLOSE = {"rtol": 1e-5, "atol": 2e-6}

LAYERS = {
    "dense": (lambda: NormalizedLinear(4, 3), (5, 4), 0),
    "dense leaky": (lambda: NormalizedLinear(4, 3, slope=0.1), (5, 4), 0),
    "same": (lambda: NormalizedConv2d(2, 3, 3), (2, 2, 4, 3), 1),
    "valid": (lambda: NormalizedConv2d(2, 3, 3, padding="valid"), (2, 2, 4, 5), 0),
    "1x1": (lambda: NormalizedConv2d(2, 3, 1), (2, 2, 3, 3), 0),
}


def numpy(tensor):
    return tensor.detach().numpy().astype(np.float64)


def randomized(layer, seed=0):
    """Gains, biases and running means away from where they start."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in (layer.direction.data, layer.gain.data, layer.bias.data, layer.running_mean):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return layer


@pytest.fixture(params=LAYERS)
def case(request):
    build, shape, padding = LAYERS[request.param]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return randomized(build()), x, padding


def twin_of(layer, x, padding, mean=None):
    d, g, b = numpy(layer.direction), numpy(layer.gain), numpy(layer.bias)
    return twin.normalized_layer(numpy(x), d, g, b, layer.slope, padding, mean)


def batch_means(layer, x, padding):
    weight = twin.normalized_weight(numpy(layer.direction), numpy(layer.gain))
    return twin.unit_means(twin.linear(numpy(x), weight, padding))


def test_weight_is_gain_times_unit_direction(case):
    layer, _, _ = case
    np.testing.assert_allclose(
        numpy(layer.weight()), twin.normalized_weight(numpy(layer.direction), numpy(layer.gain)), **CLOSE
    )
    norms = layer.weight().flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, layer.gain.abs(), rtol=1e-5, atol=0)


def test_training_subtracts_the_batch_mean_and_evaluation_the_running_mean(case):
    layer, x, padding = case
    np.testing.assert_allclose(numpy(layer.train()(x)), twin_of(layer, x, padding), **CLOSE)
    expected = twin_of(layer, x, padding, numpy(layer.running_mean))
    np.testing.assert_allclose(numpy(layer.eval()(x)), expected, **CLOSE)


def test_gradients_are_those_of_differences_and_flow_through_the_batch_mean(case):
    layer, x, padding = case
    coefficients = torch.randn(layer(x).shape, generator=torch.Generator().manual_seed(2))
    x.requires_grad_()
    parts = (x, layer.direction, layer.gain, layer.bias)
    gradients = torch.autograd.grad((layer.train()(x) * coefficients).sum(), parts)
    arrays = [numpy(part) for part in parts]

    def loss():
        return (twin.normalized_layer(*arrays, layer.slope, padding) * numpy(coefficients)).sum()

    for gradient, array in zip(gradients, arrays, strict=True):
        np.testing.assert_allclose(numpy(gradient), numerical_gradient(loss, array), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_a_constant_gradient_vanishes_in_the_batch_mean(name):
    build, shape, _ = LAYERS[name]
    layer = build()
    layer.slope = 1.0  # without the nonlinearity the output's mean is b, whatever x, V and g are
    x = torch.randn(shape, requires_grad=True)
    gradients = torch.autograd.grad(layer.train()(x).sum(), (x, layer.direction, layer.gain, layer.bias))
    assert all(gradient.abs().max() < 1e-4 for gradient in gradients[:3])
    assert gradients[3].min() > 1


def test_running_mean_moves_when_told_toward_the_last_training_pass(case):
    layer, x, padding = case
    layer.momentum = 0.9
    layer.running_mean.fill_(3.0)
    layer.train()(x)
    layer(2 * x)
    layer.eval()(5 * x)
    assert bool((layer.running_mean == 3).all())
    update_running_means(layer)
    expected = 0.9 * 3.0 + 0.1 * batch_means(layer, 2 * x, padding)
    np.testing.assert_allclose(numpy(layer.running_mean), expected, **CLOSE)


def test_running_mean_starts_at_zero_without_bias_correction():
    layer, x = NormalizedLinear(4, 3, momentum=0.999), torch.randn(6, 4) + 2
    for _ in range(10):
        layer(x)
        update_running_means(layer)
    expected = (1 - 0.999**10) * batch_means(layer, x, 0)
    np.testing.assert_allclose(numpy(layer.running_mean), expected, rtol=1e-4)


def test_running_mean_is_saved_and_the_batch_mean_is_not():
    assert set(NormalizedLinear(4, 3).state_dict()) == {"direction", "gain", "bias", "running_mean"}


def test_noise_is_added_in_training_only():
    noise, x = GaussianNoise(0.15), torch.ones(200, 50)
    torch.manual_seed(0)
    added = noise.train()(x) - x
    assert float(added.std()) == pytest.approx(0.15, rel=0.03)
    assert float(added.mean()) == pytest.approx(0, abs=0.005)
    assert not torch.equal(noise(x), noise(x))
    assert torch.equal(noise.eval()(x), x)
    assert torch.equal(GaussianNoise(0.0).train()(x), x)


@pytest.mark.parametrize("build", [NormalizedLinear, lambda i, o: NormalizedConv2d(i, o, 3)])
def test_initial_weights_have_deviation_0_05(build):
    torch.manual_seed(0)
    layer = build(40, 200)
    assert float(layer.direction.detach().std()) == pytest.approx(0.05, rel=0.05)
    assert float(layer.direction.detach().mean()) == pytest.approx(0, abs=0.005)
    assert torch.equal(layer.gain, torch.ones(200))
    assert not layer.bias.any()
    assert not layer.running_mean.any()


# calibration


def traced(network, inputs):
    """(layer, what it is given) for each normalized layer in a pass."""
    seen = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, arguments: seen.append((layer, arguments[0].detach())))
        for layer in normalized_layers(network)
    ]
    with torch.no_grad():
        network(inputs)
    for hook in hooks:
        hook.remove()
    return seen


NETWORK_INPUTS = {"small": (9, 2, 5, 4), "mlp": (9, 7), "conv13": (6, 3, 13, 12), "tiny": (6, 1, 13, 12)}
OTHER_INPUTS = {"committee": (9, 7), "wrn-28-2": (6, 3, 8, 8)}  # without the paper's layers


def network_and_inputs(name, classes=4, **options):
    torch.manual_seed(3)
    shape = (NETWORK_INPUTS | OTHER_INPUTS)[name]
    return networks.build(NetworkConfig(name=name, **options), shape[1:], classes), torch.randn(shape)


@pytest.mark.parametrize("name", NETWORK_INPUTS)
def test_after_calibration_every_layer_has_unit_rms_around_its_mean(name):
    network, x = network_and_inputs(name, **STILL)
    calibrate(network, x)
    for layer, given in traced(network.train(), x):
        y = layer.linear(given, layer.weight()).detach().transpose(0, 1).flatten(1)
        rms = (y - y.mean(dim=1, keepdim=True)).square().mean(dim=1).sqrt()
        torch.testing.assert_close(rms, torch.ones_like(rms), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", NETWORK_INPUTS)
def test_calibration_touches_nothing_but_the_gains(name):
    network, x = network_and_inputs(name)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    gains = {f"{key}.gain" for key, module in network.named_modules() if isinstance(module, NormalizedLayer)}
    calibrate(network.eval(), x)
    assert not any(module.training for module in network.modules())
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key]) != (key in gains), key


def test_calibration_uses_noise_and_dropout():
    gains = []
    for seed in (0, 0, 1):
        network, x = network_and_inputs("mlp")
        torch.manual_seed(seed)
        calibrate(network, x)
        gains.append(network.dense.gain.detach().clone())
    assert torch.equal(gains[0], gains[1])
    assert not torch.equal(gains[0], gains[2])


def test_calibration_divides_the_gain_there_is():
    network, x = network_and_inputs("mlp", **STILL)
    calibrate(network, x)
    once = network.dense.gain.detach().clone()
    calibrate(network, x)
    torch.testing.assert_close(network.dense.gain.detach(), once, rtol=1e-3, atol=0)


def test_network_without_normalized_layers_is_not_even_run():
    class Unrunnable(nn.Module):
        def forward(self, x):
            raise AssertionError

    calibrate(Unrunnable(), torch.ones(1))


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7])
def test_a_unit_that_never_moves_keeps_its_gain(value):
    torch.manual_seed(0)
    layer = NormalizedLinear(7, 20)
    calibrate(layer, torch.full((100, 7), value))
    assert torch.equal(layer.gain, torch.ones(20))


# whole networks

TABLE_5 = (
    "noise conv1a conv1b conv1c pool1 drop1 conv2a conv2b conv2c pool2 drop2 conv3a conv3b conv3c pool3 flatten dense"
)
SHAPES_32 = {
    "conv1a": (128, 32, 32), "conv1b": (128, 32, 32), "conv1c": (128, 32, 32), "pool1": (128, 16, 16),
    "conv2a": (256, 16, 16), "conv2b": (256, 16, 16), "conv2c": (256, 16, 16), "pool2": (256, 8, 8),
    "conv3a": (512, 6, 6), "conv3b": (256, 6, 6), "conv3c": (128, 6, 6), "pool3": (128, 1, 1), "dense": (10,),
}  # fmt: skip
SIZES = {"1a": 3, "1b": 3, "1c": 3, "2a": 3, "2b": 3, "2c": 3, "3a": 3, "3b": 1, "3c": 1}


def conv13(shape=(3, 32, 32), classes=10, **options):
    return networks.build(NetworkConfig(name="conv13", **options), shape, classes)


def test_conv13_has_the_papers_number_of_parameters():
    assert sum(p.numel() for p in conv13().parameters() if p.requires_grad) == 3_121_812


def test_conv13_of_another_width_has_as_many_channels_in_proportion():
    found, papers = conv13(width=8).state_dict(), conv13().state_dict()
    for name in (f"conv{number}" for number in SIZES):
        weights = [each for each in papers if each.startswith(name) and papers[each].ndim == 4]
        assert weights
        assert [len(found[each]) * 16 for each in weights] == [len(papers[each]) for each in weights]


def test_conv13_is_the_papers_table():
    network = conv13()
    assert [name for name, _ in network.named_children()] == TABLE_5.split()
    assert network.noise.deviation == 0.15
    assert (network.drop1.p, network.drop2.p) == (0.5, 0.5)
    assert {type(network.drop1), type(network.drop2)} == {nn.Dropout}  # elementwise
    for name, size in SIZES.items():
        layer = getattr(network, f"conv{name}")
        assert (layer.direction.shape[2:], layer.slope, layer.momentum) == ((size, size), 0.1, 0.999)
    assert (tuple(network.dense.direction.shape), network.dense.slope) == ((10, 128), 1)


def test_conv13_has_the_papers_shapes_at_32_pixels():
    network, x, shapes = conv13().eval(), torch.zeros(1, 3, 32, 32), {}
    with torch.no_grad():
        for name, module in network.named_children():
            x = module(x)
            shapes[name] = tuple(x.shape[1:])
    assert {name: shapes[name] for name in SHAPES_32} == SHAPES_32


CONV13 = r"'conv13' .* at least 12x12.*network\.name=small.*mlp"
SMALL = r"'small' .* at least 4x4.*network\.name=mlp"


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        *(("conv13", shape, CONV13) for shape in [(3, 11, 32), (3, 32, 11), (1, 8, 8), (64,)]),
        *(("small", shape, SMALL) for shape in [(1, 3, 8), (8, 8, 3), (64,)]),
    ],
)
def test_inputs_that_are_too_small_are_refused(name, shape, sentence):
    with pytest.raises(ConfigError, match=sentence):
        networks.build(NetworkConfig(name=name), shape, 3)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("conv13", [(3, 12, 12), (3, 13, 13), (3, 33, 33), (1, 12, 20), (4, 17, 12)]),
        ("small", [(1, 4, 4), (3, 9, 5), (4, 8, 8)]),
        ("mlp", [(5,), (3, 4, 4)]),
    ],
)
def test_networks_return_logits_for_any_inputs_that_are_large_enough(name, shapes):
    for classes, shape in enumerate(shapes, start=2):
        network = networks.build(NetworkConfig(name=name), shape, classes)
        with torch.no_grad():
            assert network.train()(torch.randn(2, *shape)).shape == (2, classes)
            assert network.eval()(torch.randn(1, *shape)).isfinite().all()


@pytest.mark.parametrize(("name", "layer", "units"), [("small", "conv1a", 24), ("mlp", "hidden1", 128)])
def test_width_of_the_small_networks_can_be_chosen(name, layer, units):
    shape = NETWORK_INPUTS[name][1:]
    for width, expected in ((None, units), (5, 5)):
        network = networks.build(NetworkConfig(name=name, width=width), shape, 3)
        assert len(getattr(network, layer).gain) == expected


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_training_is_noisy_and_evaluation_is_not(name):
    network, x = network_and_inputs(name)
    with torch.no_grad():
        for parameter in network.parameters():  # some networks start with outputs of zero
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
        assert not torch.equal(network.train()(x), network(x))
        assert torch.equal(network.eval()(x), network(x))
    still, x = network_and_inputs(name, **STILL)
    with torch.no_grad():
        assert torch.equal(still.train()(x), still(x))


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_options_reach_every_layer(name):
    network, _ = network_and_inputs(name, mean_momentum=0.5, noise=0.3, dropout=0.25)
    normalized = [
        *normalized_layers(network),
        *(each for each in network.modules() if isinstance(each, BatchNorm)),
    ]
    if name != "committee":  # which has neither
        assert {layer.momentum for layer in normalized} == {0.5}
        assert [each.deviation for each in network.modules() if isinstance(each, networks.GaussianNoise)] == [0.3]
    assert {module.p for module in network.modules() if isinstance(module, nn.Dropout)} == {0.25}


def test_unknown_network_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'conv31'; did you mean 'conv13'\?.*package\.module:factory"):
        networks.build(NetworkConfig(name="conv31"), (3, 32, 32), 10)


def make_linear(input_shape, num_classes):
    return nn.Linear(input_shape[0], num_classes)


def make_nothing(input_shape, num_classes):
    return None


def make_without_arguments():
    return nn.Identity()


def make_an_end(input_shape, num_classes):
    raise SystemExit(0)


def make_an_error(input_shape, num_classes):
    raise ValueError("six is too few")


def test_factory_of_ones_own_builds_the_network():
    network = networks.build(NetworkConfig(name=f"{__name__}:make_linear"), (6,), 4)
    assert (network.in_features, network.out_features) == (6, 4)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("nowhere.at_all:f", "cannot be imported"),
        (f"{__name__}:missing", "cannot be imported"),
        (f"{__name__}:make_nothing", r"returned a NoneType; expected a torch\.nn\.Module"),
        (f"{__name__}:make_without_arguments", r"\(input_shape, num_classes\) failed"),
        (f"{__name__}:make_an_end", r"failed: SystemExit: 0\."),
        (f"{__name__}:make_an_error", r"failed: ValueError: six is too few\."),
    ],
)
def test_factory_that_does_not_work_is_refused(factory, message):
    with pytest.raises(ConfigError, match=message):
        networks.build(NetworkConfig(name=factory), (6,), 4)
