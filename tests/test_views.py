"""Views: each operation against a twin that works pixel by pixel, what is shared between views, and which inputs get which."""

import numpy as np
import pytest
import torch
import torch._inductor.config
from hypothesis import given
from hypothesis import strategies as st
from reference import operations
from reference.images import flip_and_shift as twin

from selfens.core.views import (
    COLORS,
    GEOMETRIC,
    OPERATIONS,
    VIEWS,
    Views,
    ViewsConfig,
    apply_operations,
    cut_out,
    flip_and_shift,
)
from selfens.errors import ConfigError


def views_of(shape, pixels=False, **options):
    return Views(shape, ViewsConfig(**options), pixels=pixels)


# weak


def numbered(count, channels, height, width):
    """Images in which every pixel is different."""
    return torch.arange(count * channels * height * width, dtype=torch.float32).view(count, channels, height, width)


@pytest.mark.parametrize(("height", "width", "largest"), [(4, 4, 2), (5, 3, 2), (3, 6, 1), (4, 7, 3), (2, 9, 1)])
def test_all_flips_and_shifts_of_a_batch_are_pad_mirror_crop(height, width, largest):
    steps = range(-largest, largest + 1)
    draws = [(flip, down, right) for flip in (False, True) for down in steps for right in steps]
    images = numbered(len(draws), 2, height, width)
    flips, down, right = (torch.tensor(column) for column in zip(*draws, strict=True))
    result = flip_and_shift(images, flips, down, right)
    for i, draw in enumerate(draws):
        np.testing.assert_array_equal(result[i], twin(images[i].numpy(), *draw, largest))


def drawn(count, **options):
    """Return (flip, down, right) of each of two weak views of the same image, for many draws."""
    torch.manual_seed(0)
    image, views = numbered(1, 1, 8, 7), views_of((1, 8, 7), **options)
    largest = options.get("translation", 0)
    steps = range(-largest, largest + 1)
    each = [(flip, down, right) for flip in (False, True) for down in steps for right in steps]
    known = {twin(image[0].numpy(), *draw, largest).tobytes(): draw for draw in each}
    assert len(known) == len(each)
    pairs = zip(*views.make(image.expand(count, -1, -1, -1), ("weak", "weak")), strict=True)
    return [[known[view.numpy().tobytes()] for view in pair] for pair in pairs]


def test_flip_is_shared_by_the_views_and_the_shift_is_not():
    draws = drawn(200, flip=True, translation=2)
    assert {(a[0], b[0]) for a, b in draws} == {(False, False), (True, True)}
    for coordinate in (1, 2):
        assert len({(a[coordinate], b[coordinate]) for a, b in draws}) == 25
    assert len({(a[1], a[2]) for a, _ in draws}) == 25


def test_what_is_not_asked_for_is_not_done():
    assert {view[0] for row in drawn(60, translation=2) for view in row} == {False}
    assert {view for row in drawn(60, flip=True) for view in row} == {(False, 0, 0), (True, 0, 0)}


def test_draws_of_an_image_are_uniform_and_independent_of_each_other():
    draws = drawn(2_000, flip=True, shared_flip=False, translation=2)
    columns = torch.tensor([[number for view in row for number in view] for row in draws], dtype=torch.float64).T
    correlations = torch.corrcoef(columns) - torch.eye(6)
    assert correlations.abs().max() < 5 / np.sqrt(2_000)
    assert abs(columns[0].mean() - 0.5) < 5 * np.sqrt(0.25 / 2_000)
    counts = torch.bincount(columns[1].long() + 2, minlength=5)
    assert (counts - 400).abs().max() < 5 * np.sqrt(400)


# strong


def textured(count, channels, height, width, seed=0):
    """Return bytes scaled to 0..1."""
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.integers(0, 256, (count, channels, height, width)) / 255).float()


@pytest.mark.parametrize("pixels", [True, False])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (3, 6, 9), (4, 9, 6)])
def test_each_operation_is_its_twin_for_every_image_of_a_batch(shape, pixels):
    names = OPERATIONS if pixels else GEOMETRIC
    strengths = [-1.0, -0.7, -0.15, 0.15, 0.45, 0.7, 1.0]
    cases = [(name, strength) for name in names for strength in strengths]
    images = textured(len(cases), *shape)
    which, strength = (torch.tensor(column) for column in zip(*[(names.index(n), s) for n, s in cases], strict=True))
    result = apply_operations(images, which, strength, pixels)
    for i, (name, size) in enumerate(cases):
        expected = operations.apply(name, images[i].double().numpy(), size, 0.5 if pixels else 0.0)
        np.testing.assert_allclose(result[i], expected, atol=2e-5, err_msg=f"{name} {size}")
        if name == "identity":
            assert torch.equal(result[i], images[i])
        single = apply_operations(images[i : i + 1], which[i : i + 1], strength[i : i + 1], pixels)
        torch.testing.assert_close(single[0], result[i], rtol=0, atol=1e-6)


def test_every_operation_has_a_twin_and_changes_an_image():
    assert set(operations.GEOMETRIC) == set(GEOMETRIC) - {"identity"}
    assert set(operations.COLORS) == set(COLORS)
    images = textured(1, 3, 8, 8) * 0.9
    for number, name in enumerate(OPERATIONS[1:], start=1):
        changed = apply_operations(images, torch.tensor([number]), torch.tensor([0.8]), True)
        assert (changed - images).abs().max() > 0.05, name


@pytest.mark.parametrize("side", [8, 32, 48])
def test_sizes_are_parts_of_the_images_side(side):
    """A bright left half, whose border a full shift moves by 0.3 of the side, and a square cut out of a quarter of it."""
    image = torch.zeros(1, 1, side, side)
    image[..., : side // 2] = 1
    shifted = apply_operations(image, torch.tensor([GEOMETRIC.index("shift_x")]), torch.tensor([-1.0]), False)
    middle = shifted[0, 0, side // 2]
    assert float(middle.sum()) == pytest.approx(side / 2, abs=0.5)
    assert float((middle * torch.arange(side)).sum() / middle.sum()) == pytest.approx(side * 0.55 - 0.5, abs=0.5)
    hole = cut_out(torch.ones_like(image), torch.full((2, 1), 0.5), 0.5, 0.0) == 0
    assert int(hole.sum()) == (side // 2) ** 2
    assert torch.equal(hole, hole.flip(2, 3))


@given(st.integers(3, 9), st.integers(3, 9), st.floats(0, 1), st.integers(0, 99))
def test_the_square_cut_out_is_the_twins(height, width, part, seed):
    images, at = textured(4, 2, height, width), np.random.default_rng(seed).random((2, 4))
    part = round(part, 2)
    result = cut_out(images, torch.from_numpy(at), part, 0.5)
    for i in range(4):
        np.testing.assert_array_equal(result[i], operations.cut_out(images[i].numpy(), *at[:, i], part, 0.5))


def strong(images, seed=0, **options):
    torch.manual_seed(seed)
    (view,) = views_of(tuple(images.shape[1:]), **options).make(images, ("strong",))
    return view


@pytest.mark.parametrize("channels", [1, 3])
def test_inputs_whose_range_is_not_known_get_no_color_operation(channels):
    """A constant image of any value is only moved, so that every pixel is its value, or near a border part of it."""
    constant = torch.full((300, channels, 8, 8), 7.0)
    view = strong(constant, operations=1, cutout=0.0)
    torch.testing.assert_close(view[:, :, 3:5, 3:5], constant[:, :, 3:5, 3:5])
    assert view.min() >= 0
    assert view.max() <= 7.0 + 1e-5
    pixels = strong(constant / 10, operations=1, cutout=0.0, pixels=True)
    assert (pixels[:, :, 3:5, 3:5] - 0.7).abs().max() > 0.1


def test_pixels_stay_pixels():
    view = strong(textured(300, 3, 8, 8), operations=4, pixels=True)
    assert view.min() >= 0
    assert view.max() <= 1


def test_all_operations_are_drawn_alike():
    images = textured(1, 3, 8, 8).expand(2_000, -1, -1, -1)
    untouched = (strong(images, operations=1, cutout=0.0, pixels=True) == images).flatten(1).all(dim=1)
    # identity always; posterize by 8 bits a fifth of the time; solarize of nothing rarely
    share = (1 + 0.2) / len(OPERATIONS)
    assert abs(float(untouched.float().mean()) - share) < 0.03
    same_draw = strong(images[:50], operations=2, pixels=True), strong(images[:50], operations=2, pixels=True)
    assert torch.equal(*same_draw)
    assert not torch.equal(same_draw[0], strong(images[:50], seed=1, operations=2, pixels=True))


def test_without_operations_and_square_a_strong_view_is_a_weak_one():
    images = numbered(100, 1, 8, 7)
    views = views_of((1, 8, 7), flip=True, translation=2, operations=0, cutout=0.0)
    drawn_views = []
    for name in ("weak", "strong"):
        torch.manual_seed(0)
        drawn_views += views.make(images, (name,))
    assert torch.equal(*drawn_views)
    assert not torch.equal(drawn_views[0], images)


def test_the_flip_is_shared_by_a_weak_and_a_strong_view():
    images = numbered(200, 1, 8, 7)
    weak, cut = views_of((1, 8, 7), flip=True, operations=0, cutout=0.4).make(images, ("weak", "strong"))
    hidden = cut != weak
    assert (cut[hidden] == 0).all()
    assert 0 < float(hidden.float().mean()) < 0.2
    apart = views_of((1, 8, 7), flip=True, shared_flip=False, operations=0, cutout=0.0).make(images, ("weak", "strong"))
    assert not torch.equal(*apart)


@pytest.mark.parametrize(
    ("backend", "options"), [("aot_eager", {"flip": True, "translation": 1}), ("inductor", {"operations": 1})]
)
def test_views_compile_to_the_same_values(backend, options):
    """With everything on it takes the default compiler half a minute on a CPU, so there it has one operation."""
    views, images = views_of((3, 8, 8), pixels=True, **options), textured(20, 3, 8, 8)

    def both(inputs):
        return views.make(inputs, ("weak", "strong"))

    torch._dynamo.reset()
    with torch._inductor.config.patch(fallback_random=True):
        compiled = torch.compile(both, fullgraph=True, backend=backend)
        for seed in (0, 1):
            torch.manual_seed(seed)
            expected = both(images)
            torch.manual_seed(seed)
            for ours, theirs in zip(compiled(images), expected, strict=True):
                # The last digit may put a pixel on the other side of a threshold.
                differs = (ours - theirs).abs() > 1e-4
                assert differs.float().mean() < 0.001


# vectors, noise, none


def test_vectors_are_varied_by_noise_and_dropout_only_in_a_strong_view():
    vectors = torch.ones(400, 50)
    torch.manual_seed(0)
    weak, strong_view = views_of((50,), noise=0.1, feature_dropout=0.25).make(vectors, ("weak", "strong"))
    assert torch.equal(weak, vectors)
    dropped = strong_view == 0
    assert float(dropped.float().mean()) == pytest.approx(0.25, abs=0.02)
    assert float(strong_view.mean()) == pytest.approx(1, abs=0.02)
    assert float(strong_view[~dropped].std()) == pytest.approx(0.1 / 0.75, rel=0.05)


@pytest.mark.parametrize("shape", [(3, 5, 5), (7,), (2, 3)])
def test_noise_and_none_do_what_they_say(shape):
    inputs = torch.zeros(500, *shape)
    torch.manual_seed(0)
    first, noisy, other, plain = views_of(shape, noise=0.3).make(inputs, ("none", "noise", "noise", "none"))
    assert torch.equal(first, inputs)
    assert torch.equal(plain, inputs)
    assert float(noisy.std()) == pytest.approx(0.3, rel=0.05)
    assert not torch.equal(noisy, other)


# refusals


@pytest.mark.parametrize(
    ("shape", "options", "sentence"),
    [
        ((64,), {"flip": True}, r"views\.flip and views\.translation need images, .* have shape \(64,\)"),
        ((64,), {"translation": 1}, r"views\.flip and views\.translation need images, .* have shape \(64,\)"),
        (
            (1, 4, 9),
            {"translation": 4},
            r"views\.translation is 4, but the images are 4x9; expected less than the smaller",
        ),
        (
            (1, 9, 4),
            {"translation": 7},
            r"views\.translation is 7, but the images are 9x4; expected less than the smaller",
        ),
    ],
)
def test_options_that_do_not_suit_the_inputs_are_refused(shape, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        views_of(shape, **options)


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("string", (7,), "no view 'string'; did you mean 'strong'"),
        ("strong", (2, 3), r"'strong' is for images .channels, height, width. or vectors, but .* shape \(2, 3\)"),
    ],
)
def test_views_that_inputs_do_not_have_are_refused(name, shape, sentence):
    with pytest.raises(ConfigError, match=sentence):
        views_of(shape).check(("weak", name))


@pytest.mark.parametrize(("name", "dimensions"), [(name, n) for name in VIEWS for n in VIEWS[name].dimensions])
def test_views_that_inputs_have_are_made_and_leave_them_as_they_were(name, dimensions):
    shape = {1: (7,), 2: (2, 3), 3: (3, 8, 8)}[dimensions]
    inputs = textured(20, *shape) if dimensions == 3 else torch.randn(20, *shape)
    before, images = inputs.clone(), dimensions == 3
    views = views_of(shape, pixels=images, flip=images, translation=7 * images)
    views.check((name, name))
    made = views.make(inputs, (name, name))
    assert torch.equal(inputs, before)
    assert [view.shape for view in made] == [inputs.shape] * 2
