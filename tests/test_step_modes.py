"""Plain, compiled, captured and with our own kernels: a step computes the same, for every method.

Dropout and noise are drawn by torch's own generator in all modes (`fallback_random`), so that the draws are the same; without
augmentation, because a compiler may draw the noise before the shifts. Our kernels draw dropout themselves and are compared
without it. On a GPU the library may choose another algorithm for a convolution each time, and training amplifies the last
digit; how much is measured on the spot, by changing the initial weights that little, a few times over. Adam's epsilon is
raised because with 1e-8 its first steps have the size of the learning rate whatever the gradient, which turns the last digit
of a gradient near zero into a whole step.
"""

import copy
import subprocess
import sys
import warnings
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from selfens import Dataset, presets
from selfens.core.device import generator, suitable_threads, torch_settings
from selfens.core.neighbors import project
from selfens.methods import METHODS
from selfens.networks.layers import BatchNorm, BatchNormConv2d, FusedSequential, NormalizedConv2d, fuse
from selfens.training import step as step_module
from selfens.training.components import Components
from selfens.training.distributed import Group
from selfens.training.overrides import Overrides
from selfens.training.prepare import prepare
from selfens.training.step import Step

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
STEPS = 20
PERTURBATIONS = 3
CYCLES = 5_000_000  # of a GPU's clock, some milliseconds


@pytest.fixture(autouse=True)
def same_draws():
    import torch._inductor.config

    torch._dynamo.reset()
    with torch._inductor.config.patch(fallback_random=True), torch._dynamo.config.patch(error_on_recompile=True):
        yield  # what changes with time must not make the compiler begin again


def made_up_images(rows=400, kind=np.float32):
    random = np.random.default_rng(0)
    labels = np.arange(rows) % 10
    images = random.normal(labels[:, None, None, None] / 10, 1, (rows, 3, 16, 16)).astype(np.float32)
    if kind == np.uint8:
        images = (images * 40 + 128).clip(0, 255).astype(np.uint8)
    return Dataset.from_arrays(images, labels, layout="NCHW")


# Kept: labels from predictions that are certain enough. A threshold would be a step in the loss, which amplifies without end.
OF_METHOD = {
    "mean-teacher": ["method.decay=0.9"],
    "fixmatch": ["method.decay=0.9", "method.threshold=0", "views.operations=0", "views.cutout=0"],
    "committee": ["method.threshold=0"],
}
SMALL = ["network.name=small", "network.width=8", "training.kernels=off"]
PLAIN = ["training.compile=off", "training.capture=off", "training.kernels=off"]
STRONG = ["views.operations=2", "views.cutout=0.5", "views.flip=true", "views.translation=2"]
STRONG += ["preprocess.kind=channel", "training.labeled_per_batch=20"]


def switched(compile, capture):
    return [f"training.compile={compile}", f"training.capture={capture}"]


def parts_after(overrides, *, method, device, network=None, steps=STEPS, perturbed=0.0, draw=0, **images):
    """The components of a run after some steps with changing rates, its warnings, and the losses per epoch.

    perturbed  relative size of a random change to the initial weights
    draw       which random change
    """
    warnings, losses, device = [], [], torch.device(device)
    config = presets.get("cifar10-temporal").with_overrides(
        [f"method.name={method}", "labels.count=100", "preprocess.kind=none", "views.flip=false"]
        + ["views.translation=0", "optimizer.epsilon=0.001", *OF_METHOD.get(method, []), *overrides]
    )
    with torch_settings(config.training.precision, config.training.threads, device, 0):
        prepared = prepare(config, device, made_up_images(**images))
        parts = Components(prepared, Overrides(network=network), Group(), warnings.append)
        if perturbed:
            factors = 1 + perturbed * np.random.default_rng(draw).standard_normal(len(parts.optimizer.flat))
            parts.optimizer.flat.mul_(torch.from_numpy(factors).float().to(device))
        done = 0
        while done < steps:
            for rows in islice(parts.visit(done), steps - done):
                parts.step.set(**rates_at(done, parts))
                parts.step(rows)
                done += 1
            parts.method.end_epoch()
            losses.append(float(parts.step.take_means()["total"]))
    return parts, warnings, losses


def rates_at(done, parts):
    rates = {"learning_rate": 1e-3 / (1 + done), "beta1": 0.9 - 0.01 * done, "weight": 0.1 * done}
    return {name: value for name, value in rates.items() if name in parts.step.rates}


def differences(one, other):
    """Of the parameters, running means, what the method remembers and the losses per epoch of two runs' components."""
    (first, _, first_losses), (second, _, second_losses) = one, other
    means = [name for name, _ in first.network.named_buffers() if "running_mean" in name]
    assert means

    def relative(part):
        mine, theirs = (torch.cat([tensor.flatten() for tensor in part(each)]) for each in (first, second))
        return float((mine - theirs).norm() / theirs.norm())

    result = {
        "parameters": relative(lambda parts: [parts.optimizer.flat]),
        "running means": relative(lambda parts: [parts.network.get_buffer(name) for name in means]),
        "losses": max(abs(a - b) / abs(b) for a, b in zip(first_losses, second_losses, strict=True)),
    }
    if first.method.ensemble:
        result["ensemble"] = relative(lambda parts: [parts.method.ensemble.all().probabilities])
    if first.method.teacher:
        result["teacher"] = relative(lambda parts: parts.method.teacher.network.parameters())
    return result


def assert_same(common, changed, *, method, device, rounding=1e-6):
    """As close to the plain steps as plain steps from initial weights changed by `rounding`: training amplifies both."""
    against = [*common, *PLAIN]
    plain = parts_after(against, method=method, device=device)
    ours = parts_after([*common, *changed], method=method, device=device)
    assert ours[1] == []
    assert_close(ours, plain, amplified(against, plain, method=method, device=device, rounding=rounding))


def amplified(settings, plain, *, method, device, rounding=1e-6):
    """What becomes of a change of the initial weights: the largest of a few, because one alone may be small by luck."""
    changed = (
        parts_after(settings, method=method, device=device, perturbed=rounding, draw=draw)
        for draw in range(PERTURBATIONS)
    )
    tries = [differences(one, plain) for one in changed]
    return {what: max(each[what] for each in tries) for what in tries[0]}


def assert_close(ours, theirs, allowed):
    assert allowed["parameters"] < 0.05  # else the comparison would say nothing
    # A prediction near a tie may become another label, by luck only in one of them.
    least = 2e-3 if "strong" in ours[0].method.views else 1e-6
    for what, difference in differences(ours, theirs).items():
        assert difference < 3 * allowed[what] + least, f"{what}: {difference:.1e}, allowed {allowed[what]:.1e}"


def without_unshared_draws(device, method="temporal"):
    """Settings without what is drawn differently when compiled: by this version of torch, `fallback_random` or not; or
    because a compiler may draw for the second pass before it draws for the first, whatever the views.
    """
    if len(METHODS.find(method).views) > 1 or method in ("ict", "gamma", "vat"):
        return ["network.noise=0", "network.dropout=0"]

    def draw(x):
        return torch.randn_like(x), functional.dropout(x, 0.5)

    x, pairs = torch.ones(64, 64, device=device), []
    for function in (draw, torch.compile(draw)):
        torch.manual_seed(0)
        pairs.append(function(x))
    names = ("network.noise=0", "network.dropout=0")
    return [name for name, one, other in zip(names, *pairs, strict=True) if not torch.equal(one, other)]


@pytest.fixture
def traced_only(monkeypatch):
    """Compiled steps are traced and taken apart as ever, but run by torch's own kernels: seconds instead of half a minute."""
    original = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: original(function, backend="aot_eager", **options)
    )


# The same in each mode


@pytest.mark.parametrize("method", METHODS)
def test_compiled_on_a_cpu_is_the_same(method):
    same = ["network.name=mlp", "network.width=8", *without_unshared_draws("cpu", method)]
    assert_same(same, ["training.compile=on"], method=method, device="cpu")


@needs_gpu
@pytest.mark.parametrize(
    ("method", "network", "compile", "capture"),
    [
        *((method, SMALL, compile, "on") for method in METHODS for compile in ("off", "on")),
        *(("temporal", ["training.kernels=off"], "on", capture) for capture in ("off", "on")),
    ],
)
def test_compiled_and_captured_steps_are_the_same_on_a_gpu(method, network, compile, capture):
    """Of the small network for every method, and of the paper's."""
    same = ["training.precision=fp32", *network]
    same += without_unshared_draws("cuda", method) if compile == "on" else []
    assert_same(same, switched(compile, capture), method=method, device="cuda")


@needs_gpu
@pytest.mark.parametrize(
    ("method", "network", "normalization", "precision", "rounding"),
    [
        *((method, "small", "mean", "fp32", 1e-6) for method in METHODS),
        ("temporal", "conv13", "mean", "fp32", 1e-6),
        ("pi", "conv13", "mean", "tf32", 5e-4),
        ("temporal", "conv13", "mean", "bf16", 4e-3),
        *((method, "small", "full", "fp32", 1e-6) for method in ("temporal-teacher", "pi", "mean-teacher")),
        ("temporal-teacher", "conv13", "full", "bf16", 2**-7),  # a unit in the last place
    ],
)
def test_our_kernels_are_the_same_on_a_gpu(method, network, normalization, precision, rounding):
    """Compiled and captured, too, as steps are on a GPU by default."""
    same = [f"network.name={network}", f"network.normalization={normalization}", f"training.precision={precision}"]
    same += ["network.dropout=0", "network.noise=0"]
    assert_same(same, ["training.kernels=on"], method=method, device="cuda", rounding=rounding)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compile", ["off", "on"])
def test_strong_views_of_bytes_are_trained_on_in_each_mode(request, device, compile):
    """Which numbers are drawn depends on the mode, so the values are not compared; the views have tests of their own."""
    if device == "cpu":
        request.getfixturevalue("traced_only")
    settings = [*SMALL, *STRONG, f"training.compile={compile}"]
    parts, warnings, losses = parts_after(settings, method="fixmatch", device=device, kind=np.uint8)
    assert warnings == []
    assert parts.step.compiled == (compile == "on")
    assert (parts.step.graph is not None) == (device == "cuda")
    assert parts.loader.inputs.dtype == torch.uint8
    assert np.isfinite(losses).all()


# What is not possible


@pytest.mark.parametrize(
    ("failing", "method", "compile"),
    [("compiler", "pi", "on"), ("kernels", "pi", "off"), ("kernels", "pi", "on"), ("kernels", "mean-teacher", "off")],
)
def test_a_step_whose_compiler_or_kernels_fail_goes_on_without_them_and_says_so_once(
    monkeypatch, traced_only, failing, method, compile
):
    def fails(*inputs, **options):
        raise RuntimeError("no such instruction\nmore of it")

    if failing == "compiler":
        monkeypatch.setattr(torch, "compile", lambda function, **options: fails)
    else:
        monkeypatch.setattr(NormalizedConv2d, "forward_fused", fails)
        genuine = Step.__init__
        monkeypatch.setattr(Step, "__init__", lambda self, **parts: genuine(self, **(parts | {"kernels": True})))
    settings = [*SMALL, f"training.compile={compile}"]
    parts, (warning,), losses = parts_after(settings, method=method, device="cpu", steps=3)
    why = "one of them failed (RuntimeError: no such instruction)"
    assert f"runs uncompiled and without our kernels, because {why}" in warning
    assert not parts.step.compiled
    for network in (parts.network, parts.method.evaluated(parts.network)):
        assert not any(getattr(module, "fused", False) for module in network.modules())
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("compile", ["off", "on"])
def test_a_network_that_fails_in_every_way_says_why_itself(compile):
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 10)

        def forward(self, x):  # in evaluation, which is tried before the step, it works
            return self.layer(x.flatten(1)) if self.training else x.new_zeros(len(x), 10)

    with pytest.raises(RuntimeError, match="^mat1 and mat2 shapes cannot be multiplied"):
        parts_after([f"training.compile={compile}"], method="pi", device="cpu", network=Wrong())


def test_a_warning_of_the_compiler_is_no_error_even_if_warnings_are(monkeypatch):
    """As they are in these tests. On a GPU the compiler has several."""

    def compiled(function, **options):
        def warns(*arguments):
            warnings.warn("of the compiler", UserWarning, stacklevel=2)
            return function(*arguments)

        return warns

    monkeypatch.setattr(torch, "compile", compiled)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))
    parts, said, _ = parts_after(["training.compile=on"], method="pi", device="cpu", steps=1, network=network)
    assert (parts.step.compiled, said) == (True, [])


@needs_gpu
@pytest.mark.parametrize("compile", ["off", "on"])
def test_a_network_that_cannot_be_captured_still_trains(compile):
    class AsksTheHost(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3 * 16 * 16, 10)

        def forward(self, x):
            y = functional.dropout(self.layer(x.flatten(1)), 0.1)
            return y if y.abs().max().item() < 1e9 else y * 0

    settings = [f"training.compile={compile}"]
    _, (warning,), losses = parts_after(settings, method="temporal", device="cuda", network=AsksTheHost())
    assert "could not be captured" in warning
    assert np.isfinite(losses).all()


# The compiler


def test_a_compiler_that_cannot_be_loaded_ahead_is_left_to_the_first_step(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(step_module.importlib, "import_module", missing)
    step_module.start_compiler().join()  # what it raised would fail the test


def test_the_compiler_is_loaded_when_the_thread_is_done():
    program = """
import sys
from selfens.training.step import start_compiler
assert "torch._inductor.compile_fx" not in sys.modules
start_compiler().join()
assert "torch._inductor.compile_fx" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(("device", "available", "taken"), [("cpu", 16, 16), ("cuda", 16, 4), ("cuda", 2, 2)])
def test_beside_a_gpu_a_few_threads_are_enough(device, available, taken):
    assert suitable_threads(available, torch.device(device)) == taken


def test_the_steps_of_many_trainings_in_one_process_are_all_compiled(monkeypatch):
    """The compiler gives up on a piece of code after eight variants, and other numbers of rows are such variants."""
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: original(function, backend=counting, **options))
    settings = ["network.name=mlp", "network.width=4", "training.compile=on", "training.batch_size=20"]
    for rows in range(100, 110):
        before = len(graphs)
        parts_after(settings, method="temporal", device="cpu", steps=1, rows=rows)
        assert len(graphs) > before, f"with {rows} rows the step was not compiled"


# Nothing waits for the device


@needs_gpu
@pytest.mark.parametrize(
    ("method", "switch"), [*((method, "off") for method in METHODS), ("temporal", "on"), ("fixmatch", "on")]
)
def test_nothing_in_an_epoch_waits_for_the_device(method, switch):
    """Strong views, a teacher and targets included."""
    settings = [*SMALL, *(STRONG if method == "fixmatch" else ["views.flip=true", "views.translation=2"])]
    parts, _, _ = parts_after([*settings, *switched(switch, switch)], method=method, device="cuda", kind=np.uint8)
    try:
        torch.cuda.set_sync_debug_mode("error")
        for epoch in (8, 9):
            for rows in parts.visit(epoch):
                parts.step.set(**rates_at(epoch, parts))
                parts.step(rows)
            parts.method.end_epoch()
            parts.step.take_means()
    finally:
        torch.cuda.set_sync_debug_mode("default")


class ReadByTheHost(TorchDispatchMode):
    """Operations whose result the host must know before it can go on, as they are called."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2")

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        by_mask = name == "index" and any(each is not None and each.dtype == torch.bool for each in args[1])
        if name in self.WAITING or by_mask:
            self.seen.append(name)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", METHODS)
def test_nothing_in_an_epoch_is_read_by_the_host(method):
    """The same on a CPU, where waiting does not show."""
    settings = [*SMALL, *PLAIN, *(STRONG if method == "fixmatch" else [])]
    parts, _, _ = parts_after(settings, method=method, device="cpu", steps=3, kind=np.uint8)
    with ReadByTheHost() as operations:
        for rows in parts.visit(9):
            parts.step.set(**rates_at(9, parts))
            parts.step(rows)
        parts.step.take_means()
    assert operations.seen == []
    with operations:
        parts.method.end_epoch()
        float(parts.step.sums[-1])
    assert {*operations.seen} == {"_local_scalar_dense"}  # targets that are on a CPU are looked at, and no others


@pytest.mark.parametrize("device", DEVICES)
def test_looking_for_neighbors_draws_nothing_from_the_runs_random_numbers(device):
    """Else their state would be the same whatever the seed, on a GPU too."""
    source = generator(torch.device(device))
    source.manual_seed(3)
    before = source.get_state()
    project(lambda: [torch.ones(40, 80, device=device).cumsum(dim=0)], 40)  # more features than are compared
    assert torch.equal(source.get_state(), before)


# Our kernels by themselves

SHAPES = [(3, 24, 6, 8), (100, 128, 16, 16), (7, 512, 6, 6), (2, 100, 4, 4), (5, 3, 2, 2), (9, 129, 4, 6)]


def values_and_channels(shape, kind, mean=0.0):
    """Images of values around means of either sign, and gains, some negative and one zero, and shifts of their channels."""
    torch.manual_seed(0)
    means = mean * torch.randn(shape[1], device="cuda").sign()[None, :, None, None]
    x = (torch.randn(shape, device="cuda") + means).to(kind).contiguous(memory_format=torch.channels_last)
    gain, shift = torch.randn(2, shape[1], device="cuda").unbind()
    gain[0] = 0
    return x, gain.clone(), shift.clone()


@needs_gpu
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_the_normalize_kernel_is_the_plain_operations(shape, kind, pool):
    from selfens.networks.kernels import normalize

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
    from selfens.networks.kernels import normalize

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


def plain_batch_norm(x, gain, shift, running, training, pool):
    y = functional.leaky_relu(functional.batch_norm(x, *running, gain, shift, training, 0.1), 0.1)
    return functional.max_pool2d(y, 2) if pool else y


@needs_gpu
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_batch_norm_kernels_are_the_plain_operations(shape, kind, pool):
    """In float64, so that only our own rounding counts and equal values are pooled from the same pixel."""
    from selfens.networks.batch_norm_kernels import normalize

    ours = [each.requires_grad_() for each in values_and_channels(shape, kind)]
    theirs = [each.detach().double().requires_grad_() for each in ours]
    norm, running = BatchNorm(shape[1], momentum=0.9).cuda(), torch.zeros(2, shape[1], device="cuda").double()
    running[1] = 1
    out, mean, variance = normalize(*ours, 0.1, pool)
    norm.follow(mean, variance, shape[0] * shape[2] * shape[3])
    plain = plain_batch_norm(*theirs, running, training=True, pool=pool)
    gradient = torch.randn(plain.shape, device="cuda").to(kind)
    out.backward(gradient)
    plain.backward(gradient.double())
    assert share_that_differs(out, plain, 1e-4 if kind == torch.float32 else 1e-2) == 0
    for mine, other in ((norm.running_mean, running[0]), (norm.running_variance, running[1])):
        torch.testing.assert_close(mine.double(), other, atol=1e-6, rtol=1e-4)  # the inputs have deviation 1
    for mine, other in zip(ours, theirs, strict=True):  # a value at zero may be beyond the leaky ReLU's bend
        tolerance = 1e-4 if mine is ours[0] and kind == torch.float32 else 1e-2
        assert share_that_differs(mine.grad, other.grad, tolerance) <= 1e-5


def share_that_differs(mine, other, tolerance):
    """Of the values, by more than a share of the largest one."""
    return float(((mine.double() - other).abs() > tolerance * other.abs().max()).double().mean().detach())


@needs_gpu
@pytest.mark.parametrize("pool", [False, True])
def test_the_batch_norm_kernels_pool_the_first_of_equal_values(pool):
    from selfens.networks.batch_norm_kernels import normalize

    x, gain, shift = values_and_channels((9, 20, 8, 8), torch.float32)
    x = (2 * x).round().requires_grad_()
    other = x.detach().clone().requires_grad_()
    gradient = torch.randn_like(functional.max_pool2d(x, 2) if pool else x)
    normalize(x, gain, shift, 0.1, pool)[0].backward(gradient)
    plain_batch_norm(other, gain, shift, (None, None), training=True, pool=pool).backward(gradient)
    torch.testing.assert_close(x.grad, other.grad, atol=1e-4, rtol=1e-4)


@needs_gpu
@pytest.mark.parametrize("pool", [False, True])
def test_the_variance_of_a_channel_far_from_zero_is_accurate(pool):
    from selfens.networks.batch_norm_kernels import normalize

    x, gain, shift = values_and_channels((100, 128, 16, 16), torch.float32, mean=30.0)
    _, mean, variance = normalize(x, gain, shift, 0.1, pool)
    torch.testing.assert_close(mean.double(), x.double().mean((0, 2, 3)), atol=0, rtol=1e-6)
    torch.testing.assert_close(variance.double(), x.double().var((0, 2, 3), unbiased=False), atol=0, rtol=5e-5)


@needs_gpu
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_for_evaluation_is_the_plain_operations(shape, kind):
    from selfens.networks.batch_norm_kernels import evaluate

    x, gain, shift = values_and_channels(shape, kind)
    running = torch.randn(shape[1], device="cuda"), torch.rand(shape[1], device="cuda") + 0.1
    x[0, 1, 0, 0] = torch.nan  # must not be pooled away
    out = evaluate(x, gain, shift, *running, 0.1)
    plain = plain_batch_norm(x.float(), gain, shift, running, training=False, pool=True)
    assert out[0, 1, 0, 0].isnan()
    tolerance = 1e-5 if kind == torch.float32 else 1e-2
    torch.testing.assert_close(out.float(), plain, atol=tolerance, rtol=tolerance, equal_nan=True)


def passes(network, x):
    """What two training passes, an evaluation with gradients and one without make, and what becomes of the buffers."""
    made = [network.train()(x), network(x * 0.9)]
    (made[0] + made[1]).square().sum().backward()
    made += [*(each.grad for each in network.parameters()), *network.buffers(), network.eval()(x)]
    assert made[-1].requires_grad
    with torch.no_grad():
        return [*made, network(x)]


@needs_gpu
@pytest.mark.parametrize("stride", [1, 2])
def test_layers_with_full_batch_normalization_use_the_kernels_or_say_what_torch_says(stride):
    """A pixel alone has no variance, which torch refuses."""
    torch.manual_seed(0)
    layers = [BatchNormConv2d(3, 12, 3), BatchNormConv2d(12, 10, 3, stride=stride), nn.MaxPool2d(2), nn.Dropout(0.0)]
    plain = FusedSequential(*layers, BatchNormConv2d(10, 6, 1)).cuda()
    ours, x = copy.deepcopy(plain), torch.randn(4, 3, 16, 24, device="cuda")
    fuse(ours, True)
    with torch_settings("fp32", None, x.device, 0):
        results = [passes(network, x) for network in (plain, ours)]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4 * other.abs().max().item(), rtol=1e-4)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ours.train()[-1](torch.randn(1, 10, 1, 1, device="cuda"))
