"""Flips and translations against numpy.pad, and what is shared between views."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.images import flip_and_shift as twin

from selfens.config import AugmentConfig
from selfens.core import views as augment
from selfens.errors import ConfigError


def numbered(count, channels, height, width):
    """Images in which every pixel is different."""
    return torch.arange(count * channels * height * width, dtype=torch.float32).view(count, channels, height, width)


@pytest.mark.parametrize(("height", "width", "largest"), [(4, 4, 2), (5, 3, 2), (3, 6, 1), (4, 7, 3)])
@pytest.mark.parametrize("flip", [False, True])
def test_all_shifts_are_pad_mirror_crop(height, width, largest, flip):
    steps = range(-largest, largest + 1)
    shifts = [(down, right) for down in steps for right in steps]
    images = numbered(len(shifts), 2, height, width)
    down, right = torch.tensor(shifts).T
    result = augment.flip_and_shift(images, torch.full((len(shifts),), flip), down, right)
    for i, shift in enumerate(shifts):
        np.testing.assert_array_equal(result[i], twin(images[i].numpy(), flip, *shift, largest))


@given(st.data(), st.integers(2, 9), st.integers(2, 9), st.integers(1, 5))
def test_each_image_has_its_own_flip_and_shift(data, height, width, count):
    largest = min(height, width) - 1
    shift = st.integers(-largest, largest)
    draws = data.draw(st.lists(st.tuples(st.booleans(), shift, shift), min_size=count, max_size=count))
    images = numbered(count, 1, height, width)
    flips, down, right = (torch.tensor(column) for column in zip(*draws, strict=True))
    result = augment.flip_and_shift(images, flips, down, right)
    for i, (flip, *shifts) in enumerate(draws):
        np.testing.assert_array_equal(result[i], twin(images[i].numpy(), flip, *shifts, largest))


def found(image, original, largest):
    """All (flip, down, right) that turn the original into the image."""
    steps = range(-largest, largest + 1)
    return [
        (flip, down, right)
        for flip in (False, True)
        for down in steps
        for right in steps
        if np.array_equal(twin(original.numpy(), flip, down, right, largest), image.numpy())
    ]


def drawn(options, count, num_views):
    """The one (flip, down, right) of each view of each image."""
    images = numbered(count, 1, 8, 7)
    views = augment.views(images, num_views, options)
    each = [[found(view[i], images[i], options.translation) for view in views] for i in range(count)]
    assert all(len(matches) == 1 for row in each for matches in row)
    return [[matches[0] for matches in row] for row in each]


def test_flip_is_shared_by_the_views_and_the_shift_is_not():
    torch.manual_seed(0)
    draws = drawn(AugmentConfig(flip=True, translation=2), 200, 2)
    flips = [(a[0], b[0]) for a, b in draws]
    assert set(flips) == {(False, False), (True, True)}
    for coordinate in (1, 2):
        pairs = {(a[coordinate], b[coordinate]) for a, b in draws}
        assert len(pairs) == 25
    assert len({(a[1], a[2]) for a, _ in draws}) == 25


def test_flips_are_independent_when_asked():
    torch.manual_seed(0)
    draws = drawn(AugmentConfig(flip=True, shared_flip=False, translation=1), 200, 2)
    pairs = [(a[0], b[0]) for a, b in draws]
    for pair in [(False, False), (False, True), (True, False), (True, True)]:
        assert pairs.count(pair) > 25  # 50 expected, deviation 6


@pytest.mark.parametrize("shared", [False, True])
def test_without_flip_nothing_is_mirrored(shared):
    draws = drawn(AugmentConfig(flip=False, shared_flip=shared, translation=2), 60, 2)
    assert {view[0] for row in draws for view in row} == {False}


def test_translations_are_shared_when_asked():
    torch.manual_seed(0)
    draws = drawn(AugmentConfig(shared_translation=True, translation=2), 200, 2)
    assert all(first == second for first, second in draws)
    assert len({first for first, _ in draws}) == 25


def test_without_translation_images_are_at_most_mirrored():
    torch.manual_seed(0)
    draws = drawn(AugmentConfig(flip=True), 60, 2)
    assert {view for row in draws for view in row} == {(False, 0, 0), (True, 0, 0)}


def test_no_augmentation_returns_the_inputs():
    for inputs in (torch.randn(4, 3, 5, 5), torch.randn(4, 7)):
        views = augment.views(inputs, 2, AugmentConfig())
        assert len(views) == 2
        assert all(torch.equal(view, inputs) for view in views)


def test_inputs_are_not_changed():
    images = numbered(20, 1, 6, 6)
    before = images.clone()
    augment.views(images, 2, AugmentConfig(flip=True, translation=2))
    assert torch.equal(images, before)


@pytest.mark.parametrize("largest", [1, 2, 3])
def test_shifts_are_uniform(largest):
    torch.manual_seed(1)
    draws = augment.shifts(torch.rand(20_000), AugmentConfig(translation=largest))
    counts = torch.bincount(draws + largest, minlength=2 * largest + 1)
    expected = 20_000 / (2 * largest + 1)
    assert len(counts) == 2 * largest + 1
    assert (counts - expected).abs().max() < 5 * np.sqrt(expected)


def test_half_of_the_images_are_flipped():
    torch.manual_seed(1)
    flips = augment.flips(torch.rand(20_000), AugmentConfig(flip=True))
    assert abs(int(flips.sum()) - 10_000) < 5 * np.sqrt(5_000)


def test_draws_of_an_image_are_independent_of_each_other():
    torch.manual_seed(2)
    draws = drawn(AugmentConfig(flip=True, shared_flip=False, translation=2), 2_000, 2)
    columns = torch.tensor([[number for view in row for number in view] for row in draws], dtype=torch.float64).T
    correlations = torch.corrcoef(columns) - torch.eye(6)
    assert correlations.abs().max() < 5 / np.sqrt(2_000)


@pytest.mark.parametrize("options", [AugmentConfig(flip=True), AugmentConfig(translation=1)])
def test_features_cannot_be_augmented(options):
    with pytest.raises(ConfigError, match=r"augment\.flip.*augment\.translation.*need images.*\(64,\)"):
        augment.check(options, (64,))


@pytest.mark.parametrize("shape", [(1, 4, 9), (1, 9, 4)])
def test_shift_must_be_smaller_than_the_image(shape):
    augment.check(AugmentConfig(translation=3), shape)
    for translation in (4, 7):
        with pytest.raises(ConfigError, match=rf"augment\.translation is {translation}.*smaller than the image"):
            augment.check(AugmentConfig(translation=translation), shape)


def test_features_and_images_pass_without_augmentation():
    augment.check(AugmentConfig(), (64,))
    augment.check(AugmentConfig(flip=True), (1, 1, 1))
