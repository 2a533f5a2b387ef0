"""Whitening and normalization against numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import whitening as twin
from support import FEATURES, blobs, config

from selfens.data import preprocess
from selfens.data.dataset import Dataset
from selfens.errors import DataError, RunError
from selfens.tools.predict import predict_file
from selfens.training.loop import train


def images(rows=60, shape=(2, 3, 4), seed=0, kind="uint8"):
    """Neighboring pixels alike, as in photographs."""
    raw = np.random.default_rng(seed).normal(size=(rows, *shape)).cumsum(axis=-1).cumsum(axis=-2)
    scaled = np.clip(128 + 25 * raw, 0, 255)
    return scaled.astype(np.uint8) if kind == "uint8" else (scaled / 255).astype(np.float32)


def applied(fitted, inputs):
    return preprocess.apply(fitted, inputs, "cpu").numpy()


def unit(inputs):
    return inputs / 255 if inputs.dtype == np.uint8 else inputs


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_zca_is_numpys(kind):
    train, test = images(kind=kind), images(20, seed=1, kind=kind)
    mean, matrix = twin.zca(unit(train))
    fitted = preprocess.fit("zca", train)
    # Single precision inputs leave 1e-9 in the covariance, beside the regularizer of 1e-5: that is 1e-4 of a value.
    np.testing.assert_allclose(fitted.mean.numpy(), mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(fitted.matrix.numpy(), matrix, atol=1e-4 * np.abs(matrix).max())
    for inputs in (train, test):
        np.testing.assert_allclose(applied(fitted, inputs), twin.whitened(unit(inputs), mean, matrix), atol=1e-4)


def test_zca_of_many_rows_is_that_of_chunks(monkeypatch):
    train = images(100)
    mean, matrix = twin.zca(unit(train))
    monkeypatch.setattr(preprocess, "CHUNK", 7)
    fitted = preprocess.fit_zca(train)
    np.testing.assert_allclose(applied(fitted, train), twin.whitened(unit(train), mean, matrix), atol=1e-4)


def test_whitened_training_images_have_unit_covariance():
    train = images(400)
    flat = applied(preprocess.fit("zca", train), train).reshape(400, -1).astype(np.float64)
    np.testing.assert_allclose(flat.mean(axis=0), 0, atol=1e-4)
    _, values, _ = np.linalg.svd(np.cov((unit(train)).reshape(400, -1), rowvar=False, bias=True))
    whitened = np.sort(np.linalg.eigvalsh(np.cov(flat, rowvar=False, bias=True)))
    np.testing.assert_allclose(whitened, np.sort(values / (values + 1e-5)), atol=1e-3)
    np.testing.assert_allclose(np.cov(flat, rowvar=False, bias=True), np.eye(flat.shape[1]), atol=0.02)


def test_zca_matrix_is_symmetric_so_images_stay_images():
    fitted = preprocess.fit("zca", images())
    torch.testing.assert_close(fitted.matrix, fitted.matrix.T, rtol=1e-5, atol=1e-4)


def test_zca_with_fewer_rows_than_pixels_is_finite():
    train = images(5, shape=(1, 4, 4))
    assert np.isfinite(applied(preprocess.fit("zca", train), train)).all()


@pytest.mark.parametrize("kind", ["zca", "channel"])
def test_what_is_fitted_depends_on_the_training_inputs_alone(kind):
    train, test = images(), images(20, seed=1)
    alone = applied(preprocess.fit(kind, train), test)
    together = applied(preprocess.fit(kind, np.concatenate([train, test])), test)
    np.testing.assert_allclose(applied(preprocess.fit(kind, train), test[:3]), alone[:3], rtol=1e-4, atol=1e-4)
    assert not np.allclose(alone, together, atol=1e-3)


# the other kinds


@given(st.integers(0, 2**32 - 1), st.sampled_from([(1, 4, 4), (3, 5, 2), (9,)]))
def test_per_image_is_numpys(seed, shape):
    x = np.random.default_rng(seed).normal(3, 2, (4, *shape)).astype(np.float32)
    np.testing.assert_allclose(applied(preprocess.fit("image", x), x), twin.per_image(x), rtol=1e-4, atol=2e-5)


def test_per_image_of_bytes_has_zero_mean_and_unit_variance_over_all_channels():
    x = images(10, shape=(3, 8, 8))
    flat = applied(preprocess.fit("image", x), x).reshape(10, -1)
    np.testing.assert_allclose(flat.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose((flat**2).mean(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(flat.reshape(x.shape), twin.per_image(x), atol=1e-4)


@pytest.mark.parametrize("value", [0, 1, 77, 200, 255])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_a_blank_image_stays_blank(value, shape):
    x = np.full((2, *shape), value, dtype=np.uint8)
    np.testing.assert_allclose(applied(preprocess.fit("image", x), x), 0, atol=1e-3)


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_per_channel_is_numpys(kind):
    train, test = images(shape=(3, 4, 4), kind=kind), images(9, shape=(3, 4, 4), seed=1, kind=kind)
    fitted = preprocess.fit("channel", train)
    result = applied(fitted, test)
    for channel in range(3):
        values = unit(train)[:, channel].astype(np.float64)
        expected = (unit(test)[:, channel] - values.mean()) / values.std()
        np.testing.assert_allclose(result[:, channel], expected, rtol=1e-5, atol=1e-5)


def test_per_channel_of_features_is_per_feature():
    train = np.random.default_rng(0).normal([0, 5, -100], [1, 0.1, 30], (500, 3)).astype(np.float32)
    result = applied(preprocess.fit("channel", train), train)
    expected = (train.astype(np.float64) - train.mean(axis=0, dtype=np.float64)) / train.std(axis=0, dtype=np.float64)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 123.456, -7e-3])
@pytest.mark.parametrize("rows", [3, 1000])
def test_a_constant_feature_stays_at_zero_and_a_new_value_stays_of_its_size(value, rows):
    train = np.column_stack([np.full(rows, value), np.arange(rows)]).astype(np.float32)
    fitted = preprocess.fit("channel", train)
    assert not applied(fitted, train)[:, 0].any()
    new = applied(fitted, np.array([[value + 1, 0]], dtype=np.float32))
    assert new[0, 0] == pytest.approx(1, rel=1e-4)


def test_nothing_leaves_floats_and_takes_bytes_as_0_to_1():
    bytes_, floats = images(), np.random.default_rng(0).normal(0, 9, (5, 3)).astype(np.float32)
    nothing = preprocess.fit("none", bytes_)
    np.testing.assert_allclose(applied(nothing, bytes_), bytes_ / 255, rtol=1e-6)
    np.testing.assert_array_equal(applied(nothing, floats), floats)


@pytest.mark.parametrize("kind", preprocess.KINDS)
def test_bytes_and_the_same_values_as_floats_are_treated_alike(kind):
    bytes_ = images()
    floats = (bytes_ / 255).astype(np.float32)
    a, b = (applied(preprocess.fit(kind, x), x) for x in (bytes_, floats))
    np.testing.assert_allclose(a, b, atol=1e-3)


@pytest.mark.parametrize("kind", preprocess.KINDS)
def test_every_kind_keeps_the_shape_and_returns_float32(kind):
    train = images()
    fitted = preprocess.fit(kind, train)
    result = preprocess.apply(fitted, train, "cpu")
    assert (result.shape, result.dtype) == (train.shape, torch.float32)
    assert preprocess.apply(fitted, train[:0], "cpu").shape == (0, 2, 3, 4)
    np.testing.assert_allclose(applied(fitted, train[3:4])[0], result[3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", preprocess.KINDS)
def test_saved_and_loaded_it_gives_the_same_numbers(kind, tmp_path):
    train = images()
    fitted = preprocess.fit(kind, train)
    preprocess.save_preprocess(tmp_path / "p.safetensors", kind, fitted)
    loaded = preprocess.load_preprocess(tmp_path / "p.safetensors")
    assert type(loaded) is type(fitted)
    np.testing.assert_array_equal(applied(loaded, train), applied(fitted, train))


def test_file_of_another_kind_is_refused(tmp_path):
    preprocess.save_tensors(tmp_path / "p.safetensors", {"x": torch.ones(1)}, {"kind": "pca"})
    with pytest.raises(RunError, match=r"kind 'pca'; expected one of none, image, channel, zca"):
        preprocess.load_preprocess(tmp_path / "p.safetensors")


@pytest.mark.parametrize("kind", ["none", "image", "zca", "channel"])
@pytest.mark.parametrize("of", ["training", "test"])
@pytest.mark.parametrize("later", [False, True])
def test_values_too_large_to_compute_with_are_refused_by_row(tmp_path, kind, of, later):
    x, y = np.random.default_rng(0).normal(size=(20, 2, 3)).astype(np.float32), np.arange(20) % 2
    large = x.copy()
    large[7], large[9, 0, 0], large[11:] = 3e38, -3e38, -2e38
    data = Dataset.from_arrays(*((large, y, x, y) if of == "training" else (x, y, large, y)))
    settings = config("pi", f"data.preprocess={kind}", f"data.preprocess_after_views={later}", "data.labels=4")
    with pytest.raises(
        DataError, match=rf"^the {of} inputs hold values too large to compute with in 1?\d rows? \(the first is"
    ):
        train(settings, tmp_path / "run", dataset=data)
    assert not (tmp_path / "run").exists()


def test_large_features_that_become_small_are_no_fault(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    data = Dataset.from_arrays(1e25 + 1e24 * x, y)
    run = train(config("pi", "data.labels=4", epochs=1), tmp_path / "run", dataset=data)
    assert np.isfinite(run.predict_proba(1e25 + 1e24 * x)).all()


def test_a_feature_of_the_smallest_numbers_is_a_constant_one():
    tiny = np.array([[1e-40, 1.0], [1.1e-40, 2.0]], dtype=np.float32) * np.float32([1e-5, 1])
    assert np.isfinite(applied(preprocess.fit("channel", tiny), tiny)).all()


def test_predictions_name_rows_of_which_the_network_makes_nothing(tmp_path):
    x, y = blobs()
    run = train(config(epochs=1), tmp_path / "run", dataset=Dataset.from_arrays(x / 1000, y))
    x = np.zeros((8000, FEATURES), dtype=np.float32)
    x[[6001, 7000]] = 1e38
    for rows, first in ((None, 6001), (np.array([7000, 3]), 7000)):
        with pytest.raises(DataError, match=rf"too large for the network in \d rows? \(the first is row {first}\)"):
            run.predict_rows(x, rows)
    with pytest.raises(DataError, match=r"in 2 rows \(the first is row 6001\); fill, remove or rescale them"):
        run.predict(x)
    np.savez(tmp_path / "x.npz", x=x)
    with pytest.raises(DataError, match="row 6001"):
        predict_file(run, tmp_path / "x.npz", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
