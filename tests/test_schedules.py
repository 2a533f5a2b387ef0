"""Learning rate, beta1 and w against the paper's curves and against values worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import schedules as twin

from selfens.config import OptimizerConfig, ScheduleConfig
from selfens.core import schedules

PAPER = ScheduleConfig()
EPOCHS = [0, 1, 40, 79, 80, 249, 250, 299]
# exp(-5 (1 - t/80)^2) and exp(-12.5 ((t - 250)/50)^2), the exponents worked out by hand
UP = dict(zip(EPOCHS, [-5.0, -5 * (79 / 80) ** 2, -1.25, -1 / 1280, 0, 0, 0, 0], strict=True))
DOWN = dict(zip(EPOCHS, [0, 0, 0, 0, 0, 0, 0, -12.5 * 0.98**2], strict=True))


@pytest.mark.parametrize("epoch", EPOCHS)
def test_paper_values_at_the_corners_of_the_ramps(epoch):
    up, down = math.exp(UP[epoch]), math.exp(DOWN[epoch])
    assert schedules.gaussian_rampup(80)(epoch) == pytest.approx(up, rel=1e-14)
    assert schedules.gaussian_rampdown(300, 50)(epoch) == pytest.approx(down, rel=1e-12)
    assert schedules.learning_rate(PAPER, 0.003)(epoch) == pytest.approx(0.003 * up * down, rel=1e-12)
    assert schedules.beta1(PAPER, OptimizerConfig())(epoch) == pytest.approx(0.5 + 0.4 * down, rel=1e-14)
    assert schedules.unsupervised_weight(PAPER, 8.0)(epoch) == pytest.approx(8.0 * up if epoch else 0.0, rel=1e-14)


@pytest.mark.parametrize(("epoch", "value"), [(0, 0.00674), (1, 0.00763), (10, 0.0218), (20, 0.0601), (60, 0.7316)])
def test_ramp_up_has_the_values_of_the_facts_sheet(epoch, value):
    assert schedules.gaussian_rampup(80)(epoch) == pytest.approx(value, abs=0.00005)


@pytest.mark.parametrize(("epoch", "value"), [(251, 0.995), (260, 0.6065), (270, 0.1353), (280, 0.0111), (299, 6.1e-6)])
def test_ramp_down_has_the_values_of_the_facts_sheet(epoch, value):
    assert schedules.gaussian_rampdown(300, 50)(epoch) == pytest.approx(value, rel=0.005)


def test_learning_rate_is_not_zero_in_epoch_0():
    assert schedules.learning_rate(PAPER, 0.003)(0) == pytest.approx(2.0e-5, rel=0.02)


def test_weight_is_zero_in_epoch_0_and_in_no_other():
    weight = schedules.unsupervised_weight(PAPER, 30.0)
    assert weight(0) == 0
    assert all(weight(epoch) > 0 for epoch in range(1, 300))


def test_weight_never_ramps_down():
    weight = schedules.unsupervised_weight(PAPER, 30.0)
    values = [weight(epoch) for epoch in range(300)]
    assert values == sorted(values)
    assert values[80:] == [30.0] * 220


def test_beta1_goes_from_0_9_to_0_5():
    beta1 = schedules.beta1(PAPER, OptimizerConfig())
    assert [beta1(epoch) for epoch in (0, 100, 250)] == [0.9] * 3
    assert beta1(299) == pytest.approx(0.5, abs=1e-5)


@given(
    epochs=st.integers(1, 1000), fraction=st.floats(0, 1), maximum=st.floats(1e-4, 100), up=st.floats(0.1, 500),
    share=st.floats(0.01, 1),
)  # fmt: skip
def test_all_schedules_follow_the_twin_for_any_lengths(epochs, fraction, maximum, up, share):
    epoch, down = int(fraction * (epochs - 1)), share * epochs
    options = ScheduleConfig(epochs=epochs, rampup_epochs=up, rampdown_epochs=down)
    rate = schedules.learning_rate(options, maximum)(epoch)
    assert rate == pytest.approx(twin.learning_rate(epoch, maximum, epochs, up, down), rel=1e-9)
    beta1 = schedules.beta1(options, OptimizerConfig(beta1=0.8, beta1_end=0.3))(epoch)
    assert beta1 == pytest.approx(twin.beta1(epoch, 0.8, 0.3, epochs, down), rel=1e-9)
    assert schedules.unsupervised_weight(options, maximum)(epoch) == pytest.approx(
        twin.weight(epoch, maximum, up), rel=1e-9
    )


@given(epoch=st.integers(0, 59))
def test_sixty_epochs_are_the_papers_three_hundred_five_times_as_fast(epoch):
    short, long = (schedules.learning_rate(ScheduleConfig(epochs=n), 1.0) for n in (60, 300))
    assert short(epoch) == pytest.approx(long(5 * epoch), rel=1e-12)


def test_lengths_are_in_proportion_unless_given():
    assert (PAPER.rampup, PAPER.rampdown) == (80, 50)
    assert (ScheduleConfig(epochs=60).rampup, ScheduleConfig(epochs=60).rampdown) == (16, 10)
    given_lengths = ScheduleConfig(epochs=60, rampup_epochs=80, rampdown_epochs=5)
    assert (given_lengths.rampup, given_lengths.rampdown) == (80, 5)


def test_lengths_of_zero_mean_no_ramp():
    flat = ScheduleConfig(epochs=10, rampup_epochs=0, rampdown_epochs=0)
    rate, beta1 = schedules.learning_rate(flat, 0.1), schedules.beta1(flat, OptimizerConfig())
    weight = schedules.unsupervised_weight(flat, 4.0)
    assert {rate(epoch) for epoch in range(10)} == {0.1}
    assert {beta1(epoch) for epoch in range(10)} == {0.9}
    assert [weight(epoch) for epoch in range(10)] == [0.0] + [4.0] * 9


def test_constants_of_the_ramps_can_be_changed():
    assert schedules.gaussian_rampup(80, constant=2.0)(40) == pytest.approx(math.exp(-0.5))
    assert schedules.gaussian_rampdown(300, 50, constant=2.0)(275) == pytest.approx(math.exp(-0.5))
    options = ScheduleConfig(rampup_constant=2.0, rampdown_constant=2.0)
    assert schedules.learning_rate(options, 1.0)(40) == pytest.approx(math.exp(-0.5))
    assert schedules.learning_rate(options, 1.0)(275) == pytest.approx(math.exp(-0.5))
    assert schedules.unsupervised_weight(options, 1.0)(40) == pytest.approx(math.exp(-0.5))
    assert schedules.beta1(options, OptimizerConfig())(275) == pytest.approx(0.5 + 0.4 * math.exp(-0.5))
