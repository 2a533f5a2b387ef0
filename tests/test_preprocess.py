"""Whitening and normalization against numpy, and values that are too large to compute with."""

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
from selfens.files.tensors import save_tensors
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
@pytest.mark.parametrize("chunk", [7, 5000])
def test_zca_is_numpys(kind, chunk, monkeypatch):
    monkeypatch.setattr(preprocess, "CHUNK", chunk)
    train, test = images(kind=kind), images(20, seed=1, kind=kind)
    mean, matrix = twin.zca(unit(train))
    fitted = preprocess.fit("zca", train)
    # Single precision inputs leave 1e-9 in the covariance, beside the regularizer of 1e-5: that is 1e-4 of a value.
    np.testing.assert_allclose(fitted.mean.numpy(), mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(fitted.matrix.numpy(), matrix, atol=1e-4 * np.abs(matrix).max())
    for inputs in (train, test):
        np.testing.assert_allclose(applied(fitted, inputs), twin.whitened(unit(inputs), mean, matrix), atol=1e-4)


def test_zca_with_fewer_rows_than_pixels_is_finite():
    train = images(5, shape=(1, 4, 4))
    assert np.isfinite(applied(preprocess.fit("zca", train), train)).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from([(1, 4, 4), (3, 5, 2), (9,)]))
def test_per_image_is_numpys(seed, shape):
    x = np.random.default_rng(seed).normal(3, 2, (4, *shape)).astype(np.float32)
    np.testing.assert_allclose(applied(preprocess.fit("image", x), x), twin.per_image(x), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("value", [0, 1, 77, 200, 255])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_a_blank_image_stays_blank(value, shape):
    x = np.full((2, *shape), value, dtype=np.uint8)
    np.testing.assert_allclose(applied(preprocess.fit("image", x), x), 0, atol=1e-3)


@pytest.mark.parametrize("kind", ["uint8", "float32", "features"])
def test_per_channel_is_numpys(kind):
    if kind == "features":
        train, test = np.random.default_rng(0).normal([0, 5, -100], [1, 0.1, 30], (2, 500, 3)).astype(np.float32)
    else:
        train, test = (images(rows, shape=(3, 4, 4), seed=rows, kind=kind) for rows in (60, 9))
    values, axes = unit(train).astype(np.float64), (0, 2, 3)[: 1 if kind == "features" else 3]
    mean, deviation = values.mean(axis=axes, keepdims=True), values.std(axis=axes, keepdims=True)
    result = applied(preprocess.fit("channel", train), test)
    np.testing.assert_allclose(result, (unit(test) - mean) / deviation, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 123.456, -7e-3])
@pytest.mark.parametrize("rows", [3, 1000])
def test_a_constant_feature_stays_at_zero_and_a_new_value_stays_of_its_size(value, rows):
    train = np.column_stack([np.full(rows, value), np.arange(rows)]).astype(np.float32)
    fitted = preprocess.fit("channel", train)
    assert not applied(fitted, train)[:, 0].any()
    new = applied(fitted, np.array([[value + 1, 0]], dtype=np.float32))
    assert new[0, 0] == pytest.approx(1, rel=1e-4)


def test_none_leaves_floats_and_takes_bytes_as_0_to_1():
    of_bytes, floats = images(), np.random.default_rng(0).normal(0, 9, (5, 3)).astype(np.float32)
    nothing = preprocess.fit("none", of_bytes)
    np.testing.assert_allclose(applied(nothing, of_bytes), of_bytes / 255, rtol=1e-6)
    np.testing.assert_array_equal(applied(nothing, floats), floats)


@pytest.mark.parametrize("kind", preprocess.KINDS)
def test_each_kind_is_the_same_for_bytes_and_floats_for_any_batch_and_after_saving(kind, tmp_path):
    of_bytes = images()
    floats = (of_bytes / 255).astype(np.float32)
    fitted = preprocess.fit(kind, of_bytes)
    result = applied(fitted, of_bytes)
    assert (result.shape, result.dtype) == (of_bytes.shape, np.float32)
    np.testing.assert_allclose(applied(preprocess.fit(kind, floats), floats), result, atol=1e-3)
    np.testing.assert_allclose(applied(fitted, of_bytes[3:4])[0], result[3], rtol=1e-4, atol=1e-4)
    assert applied(fitted, of_bytes[:0]).shape == (0, 2, 3, 4)
    preprocess.save_preprocess(tmp_path / "p.safetensors", kind, fitted)
    np.testing.assert_array_equal(applied(preprocess.load_preprocess(tmp_path / "p.safetensors"), of_bytes), result)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("pca", "kind 'pca'; expected one of none, image, channel, zca"), ("zca", "does not hold what .* 'zca' needs")],
)
def test_a_file_of_another_kind_is_refused(tmp_path, kind, message):
    save_tensors(tmp_path / "p.safetensors", {"x": torch.ones(1)}, {"kind": kind})
    with pytest.raises(RunError, match=message):
        preprocess.load_preprocess(tmp_path / "p.safetensors")


# Values that are too large


@pytest.mark.parametrize("kind", preprocess.KINDS)
@pytest.mark.parametrize("of", ["training", "test"])
@pytest.mark.parametrize("after_views", ["off", "on"])
def test_values_too_large_to_compute_with_are_refused_by_row(tmp_path, kind, of, after_views):
    x, y = np.random.default_rng(0).normal(size=(20, 2, 3)).astype(np.float32), np.arange(20) % 2
    large = x.copy()
    large[7], large[9, 0, 0], large[11:] = 3e38, -3e38, -2e38
    data = Dataset.from_arrays(*((large, y, x, y) if of == "training" else (x, y, large, y)))
    settings = config("pi", f"preprocess.kind={kind}", f"preprocess.after_views={after_views}", "labels.count=4")
    message = rf"^the {of} inputs hold NaN, or values too large to compute with in 1?\d rows? \(the first is"
    with pytest.raises(DataError, match=message):
        train(settings, tmp_path / "run", dataset=data)
    assert not (tmp_path / "run").exists()


def test_large_features_that_become_small_are_fine(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    data = Dataset.from_arrays(1e25 + 1e24 * x, y)
    run = train(config("pi", "labels.count=4", epochs=1), tmp_path / "run", dataset=data)
    assert np.isfinite(run.predict_proba(1e25 + 1e24 * x)).all()


def test_a_feature_of_the_smallest_numbers_counts_as_constant():
    tiny = np.array([[1e-40, 1.0], [1.1e-40, 2.0]], dtype=np.float32) * np.float32([1e-5, 1])
    assert np.isfinite(applied(preprocess.fit("channel", tiny), tiny)).all()


def test_rows_for_which_the_network_overflows_are_named(tmp_path):
    x, y = blobs()
    run = train(config(epochs=1), tmp_path / "run", dataset=Dataset.from_arrays(x / 1000, y))
    x = np.zeros((8000, FEATURES), dtype=np.float32)
    x[[6001, 7000]] = 1e38
    with pytest.raises(DataError, match=r"too large for the network in 1 row \(the first is row 7000\)"):
        run.model.predict_inputs(x, np.array([7000, 3]))
    with pytest.raises(DataError, match=r"in 2 rows \(the first is row 6001\); fill, remove or rescale them"):
        run.predict(x)
    np.savez(tmp_path / "x.npz", x=x)
    with pytest.raises(DataError, match="row 6001"):
        predict_file(run, tmp_path / "x.npz", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
