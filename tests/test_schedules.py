"""Learning rate, beta1 and w against the paper's curves and against values worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import schedules as twin

from selfens.config import Config, ScheduleConfig
from selfens.core import schedules
from selfens.training.components import rates_at

PAPER = Config().with_values("method", weight_max=30)
EPOCHS = [0, 1, 40, 79, 80, 249, 250, 299]
# exp(-5 (1 - t/80)^2) and exp(-12.5 ((t - 250)/50)^2), the exponents worked out by hand
UP = dict(zip(EPOCHS, [-5.0, -5 * (79 / 80) ** 2, -1.25, -1 / 1280, 0, 0, 0, 0], strict=True))
DOWN = dict(zip(EPOCHS, [0, 0, 0, 0, 0, 0, 0, -12.5 * 0.98**2], strict=True))


def rates(*overrides, maximum=1.0):
    """The rates of a config, as a function of progress."""
    config = PAPER.with_overrides(["optimizer.learning_rate=0.003", *overrides])
    return lambda progress: rates_at(progress, config, maximum)


@pytest.mark.parametrize("epoch", EPOCHS)
def test_paper_values_at_the_corners_of_the_ramps(epoch):
    up, down = math.exp(UP[epoch]), math.exp(DOWN[epoch])
    assert schedules.gaussian_rampup(80)(epoch) == pytest.approx(up, rel=1e-14)
    assert schedules.gaussian_rampdown(300, 50)(epoch) == pytest.approx(down, rel=1e-12)
    found = rates(maximum=8.0)(epoch)
    assert found["learning_rate"] == pytest.approx(0.003 * up * down, rel=1e-12)
    assert found["beta1"] == pytest.approx(0.5 + 0.4 * down, rel=1e-14)
    assert found["weight"] == pytest.approx(8.0 * up if epoch else 0.0, rel=1e-14)


@given(
    epochs=st.integers(1, 1000), fraction=st.floats(0, 1), maximum=st.floats(1e-4, 100), up=st.floats(0.1, 500),
    share=st.floats(0.01, 1), within=st.floats(0, 0.99),
)  # fmt: skip
def test_the_papers_schedule_follows_the_twin_for_any_lengths_and_is_constant_within_an_epoch(
    epochs, fraction, maximum, up, share, within
):
    epoch, down = int(fraction * (epochs - 1)), share * epochs
    config = PAPER.with_values("schedule", epochs=epochs, rampup_epochs=up, rampdown_epochs=down)
    config = config.with_values("optimizer", learning_rate=maximum, beta1=0.8, beta1_end=0.3)
    found = rates_at(epoch + within, config, maximum)
    assert found["learning_rate"] == pytest.approx(twin.learning_rate(epoch, maximum, epochs, up, down), rel=1e-9)
    assert found["beta1"] == pytest.approx(twin.beta1(epoch, 0.8, 0.3, epochs, down), rel=1e-9)
    assert found["weight"] == pytest.approx(twin.weight(epoch, maximum, up), rel=1e-9)


@given(epochs=st.integers(1, 1000), share=st.floats(0, 1), fraction=st.floats(0, 1.2))
def test_warmup_and_cosine_follow_the_twin_at_every_step(epochs, share, fraction):
    progress, warmup = fraction * epochs, share * epochs
    expected = twin.warmup_cosine(progress, epochs, warmup)
    assert schedules.warmup_cosine(epochs, warmup)(progress) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    config = PAPER.with_values("schedule", name="cosine", epochs=epochs, warmup_epochs=warmup)
    found = rates_at(progress, config.with_values("optimizer", learning_rate=0.5), 1.0)
    assert found["learning_rate"] == pytest.approx(0.5 * expected, rel=1e-9, abs=1e-9)
    assert found["beta1"] == 0.9


def test_the_weights_ramp_has_a_length_of_its_own():
    cosine = ("schedule.name=cosine", "schedule.epochs=10")
    ramped = rates(*cosine, "schedule.weight_rampup_epochs=4", maximum=8.0)
    assert [ramped(epoch)["weight"] for epoch in (0, 0.9)] == [0, 0]
    assert ramped(2.7)["weight"] == pytest.approx(8 * math.exp(-5 / 4))
    assert ramped(4)["weight"] == 8
    at_once = rates(*cosine, "schedule.weight_rampup_epochs=0", maximum=8.0)
    assert [at_once(progress)["weight"] for progress in (0, 0.1, 9)] == [8, 8, 8]


@pytest.mark.parametrize("name", ["paper", "cosine"])
def test_each_optimizer_is_told_its_own_rates(name):
    for optimizer, expected in (("sgd", set()), ("adamw", {"beta1"}), ("adam", {"beta1"})):
        found = rates(f"optimizer.name={optimizer}", f"schedule.name={name}")
        assert set(found(0)) == {"learning_rate", "weight"} | expected
        if optimizer == "adamw":
            assert found(299)["beta1"] == pytest.approx(0.9)  # the ramp-down of beta1 is the authors' Adam's


@given(epoch=st.integers(0, 59))
def test_sixty_epochs_are_the_papers_three_hundred_five_times_as_fast(epoch):
    short = rates("schedule.epochs=60")(epoch)["learning_rate"]
    assert short == pytest.approx(rates()(5 * epoch)["learning_rate"], rel=1e-12)


def test_lengths_are_in_proportion_unless_given():
    assert (ScheduleConfig().rampup, ScheduleConfig().rampdown) == (80, 50)
    assert (ScheduleConfig(epochs=60).rampup, ScheduleConfig(epochs=60).rampdown) == (16, 10)
    given_lengths = ScheduleConfig(epochs=60, rampup_epochs=80, rampdown_epochs=5)
    assert (given_lengths.rampup, given_lengths.rampdown, given_lengths.weight_rampup) == (80, 5, 80)
    assert ScheduleConfig(epochs=60, weight_rampup_epochs=3).weight_rampup == 3


def test_lengths_of_zero_mean_no_ramp():
    flat = rates("schedule.epochs=10", "schedule.rampup_epochs=0", "schedule.rampdown_epochs=0", maximum=4.0)
    found = [flat(epoch) for epoch in range(10)]
    assert {each["learning_rate"] for each in found} == {0.003}
    assert {each["beta1"] for each in found} == {0.9}
    assert [each["weight"] for each in found] == [0.0] + [4.0] * 9


def test_constants_of_the_ramps_can_be_changed():
    changed = rates("schedule.rampup_constant=2", "schedule.rampdown_constant=2")
    assert changed(40)["learning_rate"] == changed(275)["learning_rate"] == pytest.approx(0.003 * math.exp(-0.5))
    assert changed(40)["weight"] == pytest.approx(math.exp(-0.5))
    assert changed(275)["beta1"] == pytest.approx(0.5 + 0.4 * math.exp(-0.5))
