"""Networks and methods of a user's own: they train and resume like ours, and what cannot work is refused in a sentence."""

import copy
import pickle
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from support import CLASSES, FEATURES, ROWS, At, config, crash, crashed, differences, features, left_behind
from torch import nn

from selfens import EnsembleTargets, SelfEnsemblingClassifier, load_run, resume, train
from selfens.core.losses import cross_entropy, squared_difference, supervised
from selfens.core.teacher import EmaTeacher
from selfens.errors import ConfigError, RunError
from selfens.methods import Losses, Method, MethodOptions, WeightedOptions
from selfens.report.comparison import compare
from selfens.report.page import write_report
from selfens.training.progress import Lines

# Networks


def plain_network():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES))


def without_shapes_yet():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(CLASSES))


class Tied(nn.Module):
    """One weight under two names, as in an autoencoder."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.two.weight = self.one.weight
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.last(self.two(self.one(x).relu()).relu())


@pytest.mark.parametrize("make", [plain_network, without_shapes_yet, Tied])
def test_a_module_is_trained_resumed_to_the_same_bits_and_loaded(tmp_path, make):
    first, data, settings = make(), features(), config("temporal", "training.checkpoint_every=1")
    train(settings, tmp_path / "whole", dataset=data, network=copy.deepcopy(first))
    with crashed():
        train(settings, tmp_path / "cut", dataset=data, network=first, progress=At(2, 3, crash))
    run = resume(tmp_path / "cut", dataset=data, network=make())
    assert differences(left_behind(tmp_path / "whole"), left_behind(tmp_path / "cut")) == []
    assert load_run(tmp_path / "cut", network=make()).evaluate(data)["test_error"] == run.test_error


def test_another_module_than_the_one_trained_is_refused(tmp_path):
    train(config(), tmp_path / "run", dataset=features(), network=plain_network())
    with pytest.raises(RunError, match="do not fit"):
        _ = load_run(tmp_path / "run", network=nn.Linear(FEATURES, CLASSES)).network
    with pytest.raises(RunError, match="does not fit"):
        resume(tmp_path / "run", dataset=features(), network=nn.Linear(FEATURES, CLASSES))


def test_a_factory_by_name_is_trained_resumed_and_loaded(tmp_path, monkeypatch):
    (tmp_path / "my_factory.py").write_text(
        "from torch import nn\n\ndef build(input_shape, num_classes):\n    return nn.Linear(input_shape[0], num_classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = config("pi", "network.name=my_factory:build")
    train(settings, tmp_path / "whole", dataset=features())
    with crashed():
        train(settings, tmp_path / "cut", dataset=features(), progress=At(1, 2, crash))
    resume(tmp_path / "cut", dataset=features(), trust_code=True)
    assert differences(left_behind(tmp_path / "whole"), left_behind(tmp_path / "cut")) == []
    assert isinstance(load_run(tmp_path / "cut", trust_code=True).network, nn.Linear)


def test_parts_of_a_module_that_are_frozen_stay_frozen(tmp_path):
    frozen = nn.BatchNorm1d(FEATURES).eval()
    network = nn.Sequential(frozen, nn.Linear(FEATURES, CLASSES))
    network.training = True
    train(config("supervised", epochs=2), tmp_path / "run", dataset=features(), network=network)
    assert not frozen.training
    assert network.training
    assert torch.equal(frozen.running_mean, torch.zeros(FEATURES))


def test_predicting_with_the_teacher_leaves_the_module_that_was_trained(tmp_path):
    network = plain_network()
    run = train(config("mean-teacher", epochs=2), tmp_path / "run", dataset=features(), network=network)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    load_run(run.path, network=network).predict(features().raw[:5])
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_a_fitted_module_is_pickled_once():
    module = nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(20)), nn.Linear(FEATURES, CLASSES))
    alone, data = len(pickle.dumps(module)), features(test_rows=0)
    model = SelfEnsemblingClassifier("supervised", module, epochs=1, device="cpu").fit(data.raw, data.labels)
    assert len(pickle.dumps(model.model_.network)) < 2 * alone


class Growing(nn.Linear):
    """A buffer that changes its shape with every step."""

    def __init__(self):
        super().__init__(FEATURES, CLASSES)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen = torch.cat([self.seen, torch.zeros(1)])
        return super().forward(x)


def test_tensors_that_change_their_shape_are_noticed_at_the_next_checkpoint(tmp_path):
    with pytest.raises(ConfigError, match="network/seen has changed since training began"):
        train(config("supervised", epochs=2), tmp_path / "run", dataset=features(), network=Growing())


class WithExtraState(nn.Linear):
    def get_extra_state(self):
        return {"calls": 3}


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (nn.Linear(FEATURES, CLASSES + 1), "the network returned shape .* expected logits of shape"),
        (nn.Sequential(nn.Linear(FEATURES, 1), nn.Flatten(0)), "the network returned shape"),
        (nn.LSTM(FEATURES, CLASSES), "the network returned a tuple"),
        (nn.Linear(FEATURES + 1, CLASSES), "the network cannot take inputs of shape"),
        (nn.Linear(FEATURES, CLASSES).requires_grad_(False), "no trainable parameters"),
        (WithExtraState(FEATURES, CLASSES), "network/_extra_state cannot be saved"),
        ("mlp", r"network is 'mlp' \(str\); expected a module"),
    ],
)
def test_a_network_that_cannot_be_trained_is_refused_before_a_run_is_made(tmp_path, network, sentence):
    with pytest.raises(ConfigError, match=sentence):
        train(config("supervised", epochs=1), tmp_path / "run", dataset=features(), network=network)
    assert list(tmp_path.iterdir()) == []


# Methods


class Halved(Method):
    """Supervised-only with half the loss, under a name of its own: nothing to save, so no file could tell."""

    parts = ("half",)
    uses_unlabeled = False

    def losses(self, network, batch, targets, weight):
        logits = network(batch.views[0])
        loss = cross_entropy(logits, batch.labels, batch.labeled) / 2
        return Losses(loss, {"half": loss}, logits.detach().softmax(dim=1))


class Remembering(Method):
    """Keeps a plain tensor that each step changes and the next one uses, and names the loss's parts as it likes."""

    parts = ("cost",)

    @dataclass(frozen=True, kw_only=True)
    class Options(MethodOptions):
        storage: Literal["soft", "hard"] = "soft"  # no setting()

    def setup(self, network, rows):
        self.mean = torch.zeros(rows.num_classes)

    def losses(self, network, batch, targets, weight):
        logits = network(batch.views[0])
        z = logits.softmax(dim=1)
        total = supervised(logits, batch) + (z.mean(dim=0) - self.mean).square().sum()
        return Losses(total, {"cost": total}, z.detach())

    def after_step(self, network, rows, predictions):
        self.mean.lerp_(predictions.mean(dim=0), 0.3)


class WithEnsemble(Remembering):
    def setup(self, network, rows):
        super().setup(network, rows)
        self.ensemble = EnsembleTargets(rows.num_rows, rows.num_classes)

    def after_step(self, network, rows, predictions):
        super().after_step(network, rows, predictions)
        self.ensemble.write(rows, predictions)

    def end_epoch(self):
        self.ensemble.commit()


class WithTeacher(Method):
    """Targets from an average of the weights, which is evaluated."""

    Options = WeightedOptions
    views = ("weak", "weak")

    def setup(self, network, rows):
        self.teacher = EmaTeacher(network, 0.9)

    def losses(self, network, batch, targets, weight):
        logits = network(batch.views[0])
        z = logits.softmax(dim=1)
        parts = {
            "supervised": cross_entropy(logits, batch.labels, batch.labeled),
            "unsupervised": squared_difference(z, self.average.probabilities(batch.views[1])),
        }
        return Losses(parts["supervised"] + weight * parts["unsupervised"], parts, z.detach())

    def after_step(self, network, rows, predictions):
        self.average.update()

    @property
    def average(self):
        return self.teacher


class WithTeacherBesideTheNetwork(WithTeacher):
    """The network itself is evaluated."""

    def evaluated(self, network):
        return network


class WithTeacherOfAnotherName(WithTeacher):
    average = None

    def setup(self, network, rows):
        self.average = EmaTeacher(network, 0.9)


class EvaluatedByAnotherName(WithTeacherOfAnotherName):
    def evaluated(self, network):
        return self.average.network


@pytest.mark.parametrize(
    "kind",
    [
        *(Halved, Remembering, WithEnsemble),
        *(WithTeacher, WithTeacherBesideTheNetwork, WithTeacherOfAnotherName, EvaluatedByAnotherName),
    ],
)
def test_a_method_is_trained_and_resumed_to_the_same_bits(tmp_path, kind):
    data, settings = features(), config("pi", "training.checkpoint_every=1", epochs=4)

    def passed():
        return {"dataset": data, "method": kind()}

    whole = train(settings, tmp_path / "whole", **passed())
    with crashed():
        train(settings, tmp_path / "cut", **passed(), progress=At(2, 1, crash))
    cut = resume(tmp_path / "cut", **passed())
    assert differences(left_behind(whole.path), left_behind(cut.path)) == []
    tensors, again = whole.directory.load_checkpoint().tensors, load_run(whole.path)
    assert ("evaluated" in tensors) == (kind in (WithTeacher, EvaluatedByAnotherName))
    assert again.evaluate(data)["test_error"] == whole.test_error
    used = tensors.get("evaluated", tensors["network"])
    assert all(torch.equal(value, used[name]) for name, value in again.network.state_dict().items())


def test_a_method_with_parts_of_its_own_reports_them_and_has_a_page(tmp_path, capsys):
    run = train(config(epochs=2), tmp_path / "run", dataset=features(), method=Halved(), progress=Lines())
    assert [record["half"] for record in run.history] == [record["total"] for record in run.history]
    assert f"loss {run.history[1]['total']:.4f}  test error" in capsys.readouterr().out
    page = write_report(run.path, tmp_path / "page.html", dataset=features()).read_text()
    assert "has not finished an epoch" not in page
    assert "Half" in page


def test_a_method_is_resumed_with_the_same_options(tmp_path):
    hard = Remembering.Options(storage="hard")
    with crashed():
        train(
            config("supervised"),
            tmp_path / "run",
            dataset=features(),
            method=Remembering(hard),
            progress=At(1, 0, crash),
        )
    with pytest.raises(RunError, match=r"storage='hard'\); resume it with the same, not .*storage='soft'"):
        resume(tmp_path / "run", dataset=features(), method=Remembering())
    assert resume(tmp_path / "run", dataset=features(), method=Remembering(hard)).finished


def test_runs_of_methods_with_other_options_are_no_seeds_of_each_other(tmp_path):
    def run(seed, storage):
        settings, method = config("supervised", f"seed.base={seed}", epochs=1), Remembering.Options(storage=storage)
        return train(settings, tmp_path / f"{seed}{storage}", dataset=features(), method=Remembering(method))

    runs = [run(0, "soft"), run(1, "hard"), run(1, "soft")]
    assert "other seed" not in compare(runs[:2])["sentence"]
    assert "other seed" in compare([runs[0], runs[2]])["sentence"]


@pytest.mark.parametrize(("part", "make"), [("network", plain_network), ("method", Halved)])
def test_what_was_passed_must_be_passed_again_and_nothing_else_may_be(tmp_path, part, make):
    train(config(), tmp_path / "with", dataset=features(), **{part: make()})
    with pytest.raises(RunError, match=rf"started with a {part} of your own.*resume\(path, {part}="):
        resume(tmp_path / "with", dataset=features())
    if part == "network":
        with pytest.raises(RunError, match=r"load_run\(path, network="):
            _ = load_run(tmp_path / "with").network
    train(config(), tmp_path / "without", dataset=features())
    with pytest.raises(RunError, match=f"started without a {part} of your own"):
        resume(tmp_path / "without", dataset=features(), **{part: make()})


def a_method(base=Remembering, **attributes):
    return type("Own", (base,), attributes)()


def setup_with(**kept):
    """A `setup` that keeps these, each made of the rows it is told of."""

    def setup(self, network, rows):
        vars(self).update({name: make(rows) for name, make in kept.items()})

    return setup


def losses_with(**wrong):
    return lambda self, *arguments: Remembering.losses(self, *arguments)._replace(**wrong)


NAMES = [["weak"], (), (1,), None, "weak"]
REFUSED = [
    (Halved, r"method is .*Halved.*; expected an instance of a Method"),
    ("pi", r"method is 'pi' \(str\); expected an instance of a Method"),
    *((a_method(views=names), r"Own\.views is .*; expected a tuple of names") for names in NAMES),
    *((a_method(parts=names), r"Own\.parts is .*; expected a tuple of names") for names in NAMES),
    (
        a_method(parts=("learning_rate",)),
        "Own.parts has 'learning_rate', which the history uses itself; choose another name",
    ),
    (a_method(parts=("ensemble_variance",)), "choose another name"),
    (a_method(parts=("cost", "cost")), "expected each name once"),
    (a_method(views=("weak", "sideways")), "there is no view 'sideways'"),
    (a_method(__init__=lambda self: None), "method.options is None"),
    (a_method(setup=setup_with(others=lambda rows: [torch.zeros(2)])), "Own.others is a list, which is not saved"),
    (
        a_method(setup=setup_with(ensemble=lambda rows: EnsembleTargets(rows.num_rows + 1, rows.num_classes))),
        f"the method's ensemble has {ROWS + 1} rows on the cpu; expected {ROWS} rows on the cpu",
    ),
    (a_method(evaluated=lambda self, network: None), "`evaluated` returns is None"),
    (
        a_method(setup=setup_with(teacher=lambda rows: nn.Linear(2, 2))),
        r"Own\.teacher is Linear.*; expected an EmaTeacher",
    ),
]


@pytest.mark.parametrize(("method", "sentence"), REFUSED)
def test_a_method_that_cannot_be_trained_is_refused_before_a_run_is_made(tmp_path, method, sentence):
    with pytest.raises(ConfigError, match=sentence):
        train(config("supervised", epochs=1), tmp_path / "run", dataset=features(), method=method)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"predictions": None}, r"`Losses\.predictions` must be a tensor of 10 rows"),
        ({"predictions": torch.zeros(2, 3)}, r"`Losses\.predictions` must be a tensor of 10 rows"),
        ({"parts": {"cost": 0.0}}, r"`Losses\.parts\['cost'\]` is a float; expected a 0-d tensor"),
        ({"parts": {}}, r"`Losses\.parts\['cost'\]` is missing; expected a 0-d tensor, as `parts` lists it"),
        ({"total": 0.5}, r"`Losses\.total` is a float; expected a 0-d tensor with a gradient"),
    ],
)
def test_losses_that_are_not_as_they_should_be_are_refused(tmp_path, wrong, sentence):
    with pytest.raises(ConfigError, match=sentence):
        train(config("supervised"), tmp_path / "run", dataset=features(), method=a_method(losses=losses_with(**wrong)))


def test_a_reported_part_that_is_no_number_does_not_end_a_run_whose_loss_is(tmp_path):
    method = a_method(losses=losses_with(parts={"cost": torch.tensor(float("nan"))}))
    run = train(config("supervised", epochs=2), tmp_path / "run", dataset=features(), method=method)
    assert len(run.history) == 2
