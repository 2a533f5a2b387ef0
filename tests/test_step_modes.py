"""Plain, compiled, captured and with our own kernels: a step computes the same.

Dropout and noise are drawn by torch's own generator in all modes (`fallback_random`), so that the draws are the same; without
augmentation, because a compiler may draw the noise before the shifts. Our kernels draw dropout themselves and are compared
without it. On a GPU the library may choose another algorithm for a convolution each time, and training amplifies the last
digit; how much is measured on the spot, by changing the initial weights that little. Adam's epsilon is raised because with
1e-8 its first steps have the size of the learning rate whatever the gradient, which turns the last digit of a gradient near
zero into a whole step.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from selfens import presets
from selfens.data import preprocess
from selfens.data.dataset import Dataset
from selfens.data.labels import choose_labels
from selfens.device import torch_settings
from selfens.training import Session

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
STEPS = 20


@pytest.fixture(autouse=True)
def same_draws():
    import torch._inductor.config

    torch._dynamo.reset()
    with torch._inductor.config.patch(fallback_random=True):
        yield


def made_up_images(side=16, rows=400):
    random = np.random.default_rng(0)
    labels = np.arange(rows) % 10
    images = random.normal(labels[:, None, None, None] / 10, 1, (rows, 3, side, side)).astype(np.float32)
    return Dataset(
        inputs=images, labels=labels, test_inputs=images[:0], test_labels=labels[:0], classes=tuple("0123456789")
    )


def session_after(overrides, *, method, device, network=None, steps=STEPS, perturbed=0.0):
    """A session after some steps with changing rates, its warnings, and the losses per step.

    perturbed  relative size of a random change to the initial weights
    """
    data, warnings, losses = made_up_images(), [], []
    config = presets.get(f"cifar10-{method}").with_overrides(
        ["data.labels=100", "data.preprocess=none", "augment.flip=false", "augment.translation=0"]
        + ["optimizer.epsilon=0.001", *overrides]
    )
    device = torch.device(device)
    with torch_settings(config.training, device, 0):
        choice = choose_labels(data, config.data, label_seed=0, split_seed=0)
        fitted = preprocess.fit("none", data.inputs, device)
        session = Session(config, device, data, choice, fitted, network, None, warnings.append)
        if perturbed:
            factors = 1 + perturbed * np.random.default_rng(1).standard_normal(len(session.optimizer.flat))
            session.optimizer.flat.mul_(torch.from_numpy(factors).float().to(device))
        done = 0
        while done < steps:
            for rows in session.loader.order(done)[: steps - done]:
                session.step.set(learning_rate=1e-3 / (1 + done), beta1=0.9 - 0.01 * done, weight=0.1 * done)
                session.step(rows)
                done += 1
            session.method.end_epoch()
            losses.append(session.step.read().total)
    return session, warnings, losses


def relative_difference(first, second):
    return float((first - second).norm() / second.norm())


def differences(one, other):
    """Of the parameters, the running means, the ensemble and the losses per epoch of two sessions that were trained."""
    (first, _, first_losses), (second, _, second_losses) = one, other
    means = [name for name, _ in first.network.named_buffers() if "running_mean" in name]
    assert means
    mine, theirs = (torch.cat([s.network.get_buffer(name) for name in means]) for s in (first, second))
    result = {
        "parameters": relative_difference(first.optimizer.flat, second.optimizer.flat),
        "running means": relative_difference(mine, theirs),
        "losses": max(abs(a - b) / abs(b) for a, b in zip(first_losses, second_losses, strict=True)),
    }
    if first.method.ensemble:
        result["ensemble"] = relative_difference(first.method.ensemble.mean, second.method.ensemble.mean)
    return result


def assert_same(overrides, *, method, device, rounding, against):
    """As close to the plain steps as plain steps from initial weights changed by `rounding`: training amplifies both."""
    plain = session_after(against, method=method, device=device)
    allowed = differences(session_after(against, method=method, device=device, perturbed=rounding), plain)
    ours = session_after(overrides, method=method, device=device)
    assert ours[1] == []
    for what, difference in differences(ours, plain).items():
        assert difference < 3 * allowed[what] + 1e-6, f"{what}: {difference:.1e}, allowed {allowed[what]:.1e}"
    assert allowed["parameters"] < 0.05  # else the comparison would say nothing


SMALL = ["network.name=small", "network.width=8", "training.kernels=off"]
PLAIN = ["training.compile=off", "training.capture=off"]


def without_unshared_draws(device):
    """Settings without what this version of torch draws differently when compiled, `fallback_random` or not."""

    def draw(x):
        return torch.randn_like(x), functional.dropout(x, 0.5)

    x, pairs = torch.ones(64, 64, device=device), []
    for function in (draw, torch.compile(draw)):
        torch.manual_seed(0)
        pairs.append(function(x))
    (noise, dropped), (compiled_noise, compiled_dropped) = pairs
    settings = [] if torch.equal(noise, compiled_noise) else ["network.noise=0"]
    return settings if torch.equal(dropped, compiled_dropped) else [*settings, "network.dropout=0"]


def test_compiled_on_a_cpu_is_the_same():
    """One method is enough on a CPU: what differs between methods is compiled by the same call."""
    same = without_unshared_draws("cpu")
    assert_same(
        [*SMALL, *same, "training.compile=on"],
        method="temporal",
        device="cpu",
        rounding=1e-6,
        against=[*SMALL, *same, *PLAIN],
    )


def test_a_step_that_cannot_be_compiled_runs_plainly_and_says_so_once(monkeypatch):
    def broken(function, **options):
        def fails(*inputs):
            raise torch._dynamo.exc.Unsupported("not possible here")

        return fails

    monkeypatch.setattr(torch, "compile", broken)
    session, warnings, _ = session_after([*SMALL, "training.compile=on"], method="pi", device="cpu", steps=3)
    assert len(warnings) == 1
    assert "not possible here" in warnings[0]
    assert not session.step.compiled


@needs_gpu
@pytest.mark.parametrize(
    ("method", "compile", "capture"),
    [("temporal", "on", "off"), ("temporal", "off", "on"), ("temporal", "on", "on"), ("pi", "on", "on")],
)
def test_compiled_and_captured_steps_are_the_same_on_a_gpu(method, compile, capture):
    same = ["training.precision=fp32", "training.kernels=off"]
    if compile == "on":
        same += without_unshared_draws("cuda")
    switches = [f"training.compile={compile}", f"training.capture={capture}"]
    assert_same([*switches, *same], method=method, device="cuda", rounding=1e-6, against=[*PLAIN, *same])


@needs_gpu
@pytest.mark.parametrize("method", ["pi", "temporal"])
@pytest.mark.parametrize(("precision", "rounding"), [("fp32", 1e-6), ("tf32", 5e-4), ("bf16", 4e-3)])
def test_our_kernels_are_the_same_on_a_gpu(method, precision, rounding):
    common = [f"training.precision={precision}", "network.dropout=0", "network.noise=0"]
    assert_same(
        common, method=method, device="cuda", rounding=rounding, against=[*common, *PLAIN, "training.kernels=off"]
    )


@needs_gpu
def test_a_network_that_cannot_be_captured_still_trains():
    class AsksTheHost(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3 * 16 * 16, 10)

        def forward(self, x):
            y = functional.dropout(self.layer(x.flatten(1)), 0.1)
            return y if y.abs().max().item() < 1e9 else y * 0

    session, warnings, losses = session_after(
        ["training.compile=off"], method="temporal", device="cuda", network=AsksTheHost()
    )
    assert len(warnings) == 1
    assert "could not be captured" in warnings[0]
    assert np.isfinite(losses).all()


@needs_gpu
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 24, 6, 8), (100, 128, 16, 16), (7, 512, 6, 6), (2, 100, 4, 4)])
def test_the_normalize_kernel_is_the_plain_operations(shape, kind, pool):
    from selfens.kernels import normalize

    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda").to(kind).contiguous(memory_format=torch.channels_last).requires_grad_()
    bias = torch.randn(shape[1], device="cuda").requires_grad_()
    out, mean = normalize(x, bias, 0.1, pool=pool)
    plain_x, plain_bias = x.detach().float().requires_grad_(), bias.detach().clone().requires_grad_()
    plain_mean = plain_x.mean((0, 2, 3))
    plain = functional.leaky_relu(plain_x + (plain_bias - plain_mean)[None, :, None, None], 0.1)
    plain = functional.max_pool2d(plain, 2) if pool else plain
    gradient = torch.randn(plain.shape, device="cuda").to(kind)
    out.backward(gradient)
    plain.backward(gradient.float())
    tolerance = 1e-5 if kind == torch.float32 else 2e-2
    torch.testing.assert_close(out.float(), plain, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(mean, plain_mean, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(bias.grad, plain_bias.grad, atol=2e-2, rtol=tolerance)
    ties = 0 if kind == torch.float32 else 0.01  # equal bf16 values may be pooled from another of the four pixels
    differs = (x.grad.float() - plain_x.grad).abs() > tolerance * 2
    assert differs.float().mean() <= ties


@needs_gpu
def test_the_kernel_drops_the_share_it_should_and_scales_the_rest():
    from selfens.kernels import normalize

    x = torch.randn(50, 64, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last).requires_grad_()
    bias = torch.zeros(64, device="cuda")
    kept, _ = normalize(x, bias, 0.1)
    dropped, _ = normalize(x, bias, 0.1, dropout=0.3)
    zeros = dropped == 0
    assert abs(float(zeros.float().mean()) - 0.3) < 0.005
    torch.testing.assert_close(dropped[~zeros], kept[~zeros] / 0.7)
    again, _ = normalize(x, bias, 0.1, dropout=0.3)
    assert not torch.equal(again == 0, zeros)
    dropped.sum().backward()
    before = torch.where(zeros, 0.0, torch.where(dropped > 0, 1.0, 0.1) / 0.7)
    expected = before - before.mean((0, 2, 3), keepdim=True)
    torch.testing.assert_close(x.grad, expected, atol=1e-5, rtol=1e-5)
