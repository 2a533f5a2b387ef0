"""EmaTeacher against a naive twin, for any kind of network and with or without an optimizer's flat tensor."""

import copy

import numpy as np
import pytest
import torch
from reference.teacher import TeacherTwin
from torch import nn

from selfens import networks
from selfens.config import NetworkConfig
from selfens.core.evaluate import logits
from selfens.core.optim import Sgd
from selfens.core.teacher import EmaTeacher
from selfens.errors import ConfigError
from selfens.networks.layers import update_running_means


def mean_only():
    """Our layers, whose running means are updated by the step."""
    return networks.build(NetworkConfig(name="small", width=3), (1, 4, 4), 3)


def full():
    """torch's batch normalization, which updates its statistics in each pass, and a parameter that is not trained."""
    frozen = nn.Conv2d(4, 4, 1).requires_grad_(False)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), frozen, nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 3)
    )


NETWORKS = {"mean-only": mean_only, "full": full}


@pytest.fixture(params=NETWORKS)
def student(request):
    torch.manual_seed(0)
    return NETWORKS[request.param]().train()


def inputs(seed, rows=12):
    return torch.randn(rows, 1, 4, 4, generator=torch.Generator().manual_seed(seed)) + 1


def take_steps(student, teacher, steps, optimizer=None, seen=lambda: None):
    """Real steps of gradient descent; the teacher makes its own passes in training mode, as in mean teacher."""
    trained = [p for p in student.parameters() if p.requires_grad]
    for step in range(steps):
        loss = student(inputs(step)).square().mean() + (student(inputs(step))[:, 0] - 1).square().mean()
        teacher.probabilities(inputs(step + 100))
        gradients = torch.autograd.grad(loss, trained)
        if optimizer:
            optimizer.rates["learning_rate"].fill_(0.1)
            optimizer.step(gradients)
        else:
            with torch.no_grad():
                for parameter, gradient in zip(trained, gradients, strict=True):
                    parameter -= 0.1 * gradient
        update_running_means(student)
        seen()
        teacher.update()


@pytest.mark.parametrize("flattened", [False, True])
def test_with_decay_0_the_teacher_is_the_student_in_evaluation_to_the_bit(student, flattened):
    optimizer = Sgd(student) if flattened else None
    teacher = EmaTeacher(student, decay=0.0)
    take_steps(student, teacher, 4, optimizer)
    ours, theirs = teacher.network.state_dict(), student.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(logits(teacher.network, inputs(50)), logits(student, inputs(50)))


@pytest.mark.parametrize("flattened", ["no", "before", "after"])
def test_parameters_are_averaged_and_buffers_followed_as_by_the_twin(student, flattened):
    """The optimizer may make its flat tensor before the teacher is made, or after."""
    optimizer = Sgd(student) if flattened == "before" else None
    twin, teacher = TeacherTwin(numbers(student), decay=0.9), EmaTeacher(student, decay=0.9)
    optimizer = Sgd(student) if flattened == "after" else optimizer
    before = copy.deepcopy(numbers(student))
    trained = {name for name, p in student.named_parameters() if p.requires_grad}
    take_steps(student, teacher, 15, optimizer, lambda: twin.update(numbers(student), trained))
    found = numbers(teacher.network)
    for name, value in twin.values.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert any(not np.allclose(found[name], numbers(student)[name], rtol=1e-3) for name in trained)
    for name in set(before) - trained:
        np.testing.assert_array_equal(found[name], numbers(student)[name])


def numbers(network):
    return {name: value.detach().numpy().astype(np.float64) for name, value in network.state_dict().items()}


def test_the_first_weights_are_forgotten():
    student = nn.Linear(3, 2)
    teacher = EmaTeacher(student, decay=0.999)
    seen = []
    for value in (1.0, 2.0, 6.0):
        with torch.no_grad():
            student.weight.fill_(value)
        teacher.update()
        seen.append(float(teacher.network.weight[0, 0]))
    assert seen == pytest.approx([1.0, 1.5, 3.0])  # plain means, until 1/t is below 1 - decay


def test_no_gradient_flows_into_the_teacher_and_it_predicts_as_in_training(student):
    teacher = EmaTeacher(student)
    assert not any(parameter.requires_grad for parameter in teacher.network.parameters())
    assert all(module.training for module in teacher.network.modules())
    x = inputs(0).requires_grad_()
    predicted = teacher.probabilities(x)
    assert not predicted.requires_grad
    torch.testing.assert_close(predicted.sum(dim=1), torch.ones(12))
    assert not torch.equal(predicted, teacher.probabilities(x))  # noise and dropout of each pass's own


def test_the_teacher_shares_no_memory_with_the_student(student):
    Sgd(student)
    teacher = EmaTeacher(student)
    own = {tensor.data_ptr() for tensor in teacher.network.state_dict().values()}
    assert own.isdisjoint({tensor.data_ptr() for tensor in student.state_dict().values()})


def test_a_teacher_continues_from_its_state_to_the_bit(student):
    teacher = EmaTeacher(student, decay=0.9)
    take_steps(student, teacher, 3)
    resumed = EmaTeacher(student, decay=0.9)
    resumed.load_state_dict({name: tensor.clone() for name, tensor in teacher.state_dict().items()})
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(0.1)
    for each in (teacher, resumed):
        each.update()
    ours, theirs = resumed.state_dict(), teacher.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2.0, float("nan")])
def test_a_decay_that_cannot_be_is_refused(decay):
    with pytest.raises(ConfigError, match="the teacher's decay is .*expected at least 0 and below 1"):
        EmaTeacher(nn.Linear(2, 2), decay)


def test_networks_that_cannot_have_a_teacher_are_refused():
    with pytest.raises(ConfigError, match="no trainable parameters"):
        EmaTeacher(nn.Linear(2, 2).requires_grad_(False))
    network = nn.Linear(2, 2)
    for kept in (network(torch.ones(1, 2)), (number for number in range(3))):  # a tensor with a history, a generator
        network.kept = kept
        with pytest.raises(ConfigError, match="cannot be copied to make a teacher"):
            EmaTeacher(network)
