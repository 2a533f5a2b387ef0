"""Configs: to JSON and back, overrides, refusals that say where, and the presets of the paper."""

import json
import math
import re
import statistics
import typing
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfens import presets
from selfens.config import AugmentConfig, Config, DataConfig, MethodConfig, ScheduleConfig
from selfens.errors import ConfigError

momentum = st.floats(0, 1, exclude_max=True)
positive = st.floats(1e-6, 1e6)
seeds = st.integers(0, 2**32 - 1)
DRAWN = {
    "data.name": st.sampled_from(["digits", "svhn", "my data.npz", "a=b.npz", "none"]),
    "data.folder": st.sampled_from([None, "/data", "~/x y"]),
    "data.labels": st.none() | st.integers(1, 10**6),
    "data.image_size": st.integers(4, 1024),
    "data.label_noise": st.floats(0, 100),
    "data.validation": momentum,
    "augment.flip": st.booleans(),
    "augment.shared_flip": st.booleans(),
    "augment.shared_translation": st.booleans(),
    "augment.translation": st.integers(0, 100),
    "data.extra_per_epoch": st.none() | st.integers(1, 10**6),
    "network.name": st.sampled_from(["conv13", "small", "my.module:factory"]),
    "network.noise": st.floats(0, 10),
    "network.dropout": momentum,
    "network.mean_momentum": momentum,
    "network.width": st.none() | st.integers(1, 1000),
    "method.name": st.sampled_from(["supervised", "pi", "temporal"]),
    "method.weight_max": st.floats(0, 1e6),
    "method.decay": momentum,
    "method.certainty": st.booleans(),
    "method.variance": st.booleans(),
    "method.targets": st.sampled_from(["device", "ram", "folder/z.targets"]),
    "optimizer.learning_rate": positive,
    "optimizer.beta1": momentum,
    "optimizer.beta1_end": momentum,
    "optimizer.beta2": momentum,
    "optimizer.epsilon": positive,
    "schedule.epochs": st.integers(100, 1000),
    "schedule.rampup_epochs": st.none() | st.floats(0, 1e4),
    "schedule.rampdown_epochs": st.none() | st.floats(0, 100),
    "schedule.rampup_constant": st.floats(0.1, 100),
    "schedule.rampdown_constant": st.floats(0.1, 100),
    "training.batch_size": st.integers(2, 10**5),
    "training.threads": st.none() | st.integers(1, 64),
    "training.checkpoint_every": st.integers(1, 100),
    "training.report": st.booleans(),
    "seed.base": seeds,
    "seed.labels": st.none() | seeds,
    "seed.split": st.none() | seeds,
    "seed.training": st.none() | seeds,
}


def choices():
    """The fields that take one of a few words, from their types."""
    found = {}
    for section in fields(Config):
        for name, hint in typing.get_type_hints(type(getattr(Config(), section.name))).items():
            if typing.get_origin(hint) is typing.Literal:
                found[f"{section.name}.{name}"] = st.sampled_from(
                    sorted(set(typing.get_args(hint)) - {"file", "added"})
                )
    return found


VALUES = DRAWN | choices()
overrides = st.fixed_dictionaries({}, optional=VALUES)


def value_at(config, path):
    section, name = path.split(".")
    return getattr(getattr(config, section), name)


def every_path():
    return [f"{s.name}.{f.name}" for s in fields(Config) for f in fields(getattr(Config(), s.name))]


def from_dict_at(path, value):
    section, name = path.split(".")
    return Config.from_dict({section: {name: value}})


# there and back


def test_every_field_is_drawn_below():
    assert set(VALUES) == set(every_path()) - {"data.labels_file", "data.extra", "data.extra_index", "data.extra_rows"}


@given(overrides)
def test_any_overrides_arrive_and_survive_json(drawn):
    config = Config().with_overrides([f"{path}={value}" for path, value in drawn.items()])
    for path, value in drawn.items():
        assert value_at(config, path) == value
        assert type(value_at(config, path)) is type(value)
    assert Config.from_json(config.to_json()) == config
    untouched = set(every_path()) - set(drawn)
    assert all(value_at(config, path) == value_at(Config(), path) for path in untouched)


def test_json_is_sections_of_fields():
    raw = json.loads(Config().to_json())
    assert [f"{section}.{name}" for section, values in raw.items() for name in values] == every_path()


def test_json_may_leave_fields_out():
    config = Config.from_json('{"method": {"name": "pi"}}')
    assert config == Config(method=MethodConfig(name="pi"))
    assert Config.from_json("{}") == Config()


def test_labels_file_goes_with_its_choice():
    config = Config().with_overrides(["data.label_choice=file", "data.labels_file=rows.txt"])
    assert Config.from_json(config.to_json()) == config
    for change in ({"label_choice": "file"}, {"label_choice": "added"}, {"labels_file": "rows.txt"}):
        with pytest.raises(ConfigError, match=r"data\.label_choice is .* data\.labels_file is"):
            Config(data=DataConfig(**change))


def test_whole_numbers_are_welcome_where_numbers_are_expected():
    config = from_dict_at("method.weight_max", 30)
    assert config == Config(method=MethodConfig(weight_max=30.0))
    assert config.to_json() == Config(method=MethodConfig(weight_max=30.0)).to_json()


@pytest.mark.parametrize(("text", "value"), [("true", True), ("Yes", True), ("1", True), ("off", False), ("0", False)])
def test_yes_and_no_in_many_words(text, value):
    assert Config().with_overrides([f"augment.flip={text}"]).augment.flip is value


def test_spaces_around_an_override_do_not_matter():
    assert Config().with_overrides([" optimizer.beta2 = 0.99 "]).optimizer.beta2 == 0.99


def test_the_last_of_two_overrides_counts():
    assert Config().with_overrides(["seed.base=1", "seed.base=2"]).seed.base == 2


def test_none_is_a_value_only_where_it_may_be():
    config = Config(data=DataConfig(labels=50)).with_overrides(["data.labels=None", "data.preprocess=none"])
    assert (config.data.labels, config.data.preprocess) == (None, "none")


def test_configs_are_frozen_and_equal_by_value():
    assert Config() == Config()
    with pytest.raises(AttributeError):
        Config().data.name = "other"  # type: ignore[misc]


def test_with_values_changes_one_section_and_checks_it():
    config = Config().with_values("schedule", epochs=10)
    assert config == Config(schedule=ScheduleConfig(epochs=10))
    with pytest.raises(ConfigError, match=r"schedule\.epochs is 0"):
        Config().with_values("schedule", epochs=0)


def test_seeds_not_set_are_the_base_seed():
    seed = Config().with_overrides(["seed.base=7", "seed.labels=0"]).seed
    assert [seed.of(part) for part in ("labels", "split", "training")] == [0, 7, 7]


# refused


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimiser.beta2=0.9", "no section 'optimiser'; did you mean 'optimizer'"),
        ("optimizer.beta_2=0.9", "no field in section 'optimizer' 'beta_2'; did you mean 'beta2'"),
        ("data.lables=4", "'lables'; did you mean 'labels'"),
        ("data.preprocess=zac", r"no choice for data\.preprocess 'zac'; did you mean 'zca'"),
        ("method.consistency=square", r"method\.consistency 'square'; did you mean 'squared'"),
        ("training.device=gpu", r"training\.device 'gpu'.*Known: auto, cpu, cuda"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(override, message):
    with pytest.raises(ConfigError, match=message):
        Config().with_overrides([override])
    path, _, value = override.partition("=")
    with pytest.raises(ConfigError, match=message):
        from_dict_at(path, value)


@pytest.mark.parametrize("override", ["beta2=0.9", "optimizer.beta2", "", "optimizer", "=", "optimizer beta2 0.9"])
def test_what_is_not_an_override_is_refused(override):
    with pytest.raises(ConfigError, match=r"is not an override; write section\.field=value"):
        Config().with_overrides([override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("schedule.epochs=ten", r"schedule\.epochs is 'ten'; expected a whole number"),
        ("schedule.epochs=1.5", r"schedule\.epochs is '1\.5'; expected a whole number"),
        ("schedule.epochs=none", r"schedule\.epochs is 'none'; expected a whole number"),
        ("data.labels=many", r"data\.labels is 'many'; expected a whole number"),
        ("optimizer.beta2=high", r"optimizer\.beta2 is 'high'; expected a number"),
        ("schedule.rampup_epochs=long", r"schedule\.rampup_epochs is 'long'; expected a number"),
        ("augment.flip=maybe", r"augment\.flip is 'maybe'; expected true or false"),
        ("augment.flip=", r"augment\.flip is ''; expected true or false"),
    ],
)
def test_mistyped_overrides_are_refused_with_their_path(override, message):
    with pytest.raises(ConfigError, match=message):
        Config().with_overrides([override])


def wrong_values(path):
    """Values of every type that this field does not take."""
    section, name = path.split(".")
    hint = str(typing.get_type_hints(type(getattr(Config(), section)))[name])
    takes = {
        "text": "str" in hint or "Literal" in hint, "number": "float" in hint, "whole": "int" in hint or "float" in hint,
        "bool": "bool" in hint, "none": "None" in hint,
    }  # fmt: skip
    candidates = {"text": "text", "number": 1.5, "whole": 3, "bool": True, "none": None}
    return [value for kind, value in candidates.items() if not takes[kind]] + [[1], {}]


@pytest.mark.parametrize("path", every_path())
def test_a_value_of_another_type_is_refused_with_its_path(path):
    for value in wrong_values(path):
        with pytest.raises(ConfigError, match=path.replace(".", r"\.") + " is .*; expected"):
            from_dict_at(path, value)


OUT_OF_RANGE = [
    ("data.labels", 0), ("data.labels", -5), ("data.label_noise", -1.0), ("data.label_noise", 100.5),
    ("data.validation", -0.1), ("data.validation", 1.0), ("augment.translation", -1), ("network.noise", -0.1),
    ("network.dropout", 1.0), ("network.dropout", -0.5), ("network.mean_momentum", 1.0), ("network.width", 0),
    ("method.weight_max", -1.0), ("method.decay", 1.0), ("method.decay", -0.1), ("optimizer.learning_rate", 0.0),
    ("optimizer.learning_rate", -1.0), ("optimizer.beta1", 1.0), ("optimizer.beta1_end", 1.0),
    ("optimizer.beta2", 1.0), ("optimizer.beta2", -0.1), ("optimizer.epsilon", 0.0), ("schedule.epochs", 0),
    ("schedule.rampup_epochs", -1.0), ("schedule.rampdown_epochs", -1.0), ("schedule.rampdown_epochs", 301.0),
    ("training.batch_size", 1), ("training.threads", 0), ("training.checkpoint_every", 0), ("seed.base", -1),
    ("seed.labels", 2**32), ("seed.split", -1), ("seed.training", -1),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_with_its_path(path, value):
    message = rf"{path.replace('.', '[.]')} is {value}; expected"
    with pytest.raises(ConfigError, match=message):
        from_dict_at(path, value)
    with pytest.raises(ConfigError, match=message):
        Config().with_overrides([f"{path}={value}"])


NUMBERS = [path for path in every_path() if isinstance(value_at(Config(), path), float)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused_with_their_path(value):
    for path in [*NUMBERS, "schedule.rampup_epochs", "schedule.rampdown_epochs"]:
        with pytest.raises(ConfigError, match=path.replace(".", r"\.")):
            from_dict_at(path, value)


def test_a_whole_number_beyond_all_floats_is_refused_with_its_path():
    with pytest.raises(ConfigError, match=r"method\.weight_max"):
        from_dict_at("method.weight_max", 10**400)


@pytest.mark.parametrize("path", ["schedule.rampup_constant", "schedule.rampdown_constant"])
def test_ramps_cannot_overshoot(path):
    """exp(-c ...) with c below 0 would start above 1 and run to e^12 times the learning rate."""
    with pytest.raises(ConfigError, match=path.replace(".", r"\.")):
        from_dict_at(path, -5.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the configuration is not JSON"),
        ("", "the configuration is not JSON"),
        ("[1]", "the configuration is a list; expected sections of fields"),
        ("null", "the configuration is a NoneType"),
        ('{"data": 3}', "section 'data' holds 3; expected its fields"),
        ('{"datum": {}}', "no section 'datum'; did you mean 'data'"),
        ('{"data": {"nmae": "x"}}', "no field in section 'data' 'nmae'; did you mean 'name'"),
    ],
)
def test_json_that_is_no_config_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_json(text)


def test_section_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match=r"section 'data' is .*; expected a DataConfig"):
        Config(data=AugmentConfig())  # type: ignore[arg-type]


# presets: section 10 of the facts sheet

TABLE = {
    # name: labels, input, flip, lr_max, w_max
    "svhn-pi": (500, "image", False, 0.003, 100),
    "svhn-temporal": (500, "image", False, 0.001, 30),
    "cifar10-pi": (4000, "zca", True, 0.003, 100),
    "cifar10-temporal": (4000, "zca", True, 0.003, 30),
    "cifar100-pi": (10000, "zca", True, 0.003, 100),
    "cifar100-temporal": (10000, "zca", True, 0.003, 100),
}


@pytest.mark.parametrize("name", TABLE)
def test_presets_are_the_authors(name):
    config = presets.get(name)
    data, method = config.data, config.method
    row = (data.labels, data.preprocess, config.augment.flip, config.optimizer.learning_rate, method.weight_max)
    assert row == TABLE[name]
    assert (data.name, method.name) == tuple(name.split("-"))


@pytest.mark.parametrize("name", [name for name in presets.PRESETS if not name.startswith("digits")])
def test_what_all_of_the_papers_runs_share(name):
    config = presets.get(name)
    schedule, optimizer, network = config.schedule, config.optimizer, config.network
    assert (schedule.epochs, schedule.rampup, schedule.rampdown) == (300, 80, 50)
    assert (schedule.rampup_constant, schedule.rampdown_constant) == (5, 12.5)
    assert (optimizer.beta1, optimizer.beta1_end, optimizer.beta2, optimizer.epsilon) == (0.9, 0.5, 0.999, 1e-8)
    assert (network.name, network.noise, network.dropout, network.mean_momentum) == ("conv13", 0.15, 0.5, 0.999)
    assert network.initial_weights == "normal"
    assert (config.augment.translation, config.augment.shared_flip) == (2, True)
    assert (config.training.batch_size, config.training.rows) == (100, "all")
    assert (config.method.decay, config.method.consistency) == (0.6, "squared")
    assert config.method.weight_scale == "original"


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_are_whole_and_documented(name):
    config = presets.get(name)
    assert Config.from_json(config.to_json()) == config
    assert f"selfens train {name.removesuffix('-temporal')}" in presets.PRESETS[name].__doc__
    assert config.method.name == name.rpartition("-")[2]


@pytest.mark.parametrize("name", [name for name in presets.PRESETS if name.endswith("-supervised")])
def test_supervised_presets_differ_from_the_pi_model_only_in_the_method(name):
    supervised, other = presets.get(name), presets.get(name.replace("supervised", "pi"))
    assert replace(supervised, method=other.method) == other
    assert supervised.method.weight_max == 0


def test_name_of_the_data_alone_means_temporal_ensembling():
    assert presets.get("digits") == presets.get("digits-temporal")
    assert presets.full_name("cifar10") == "cifar10-temporal"
    assert presets.full_name("nothing") is None


def test_unknown_preset_names_the_nearest():
    with pytest.raises(ConfigError, match="no preset 'cifar10-temporl'; did you mean 'cifar10-temporal'"):
        presets.get("cifar10-temporl")


@pytest.mark.parametrize("data", presets.RATES)
@pytest.mark.parametrize("method", ["supervised", "pi", "temporal"])
def test_another_method_brings_its_own_rates(data, method):
    for start in ("supervised", "pi", "temporal"):
        assert presets.with_method(presets.get(f"{data}-{start}"), method) == presets.get(f"{data}-{method}")


def test_another_method_on_data_of_ones_own_keeps_the_rates():
    config = Config(data=DataConfig(name="mine.npz"), method=MethodConfig(weight_max=12.0))
    changed = presets.with_method(config, "pi")
    assert changed == replace(config, method=MethodConfig(name="pi", weight_max=12.0))


@pytest.mark.parametrize(
    ("side", "on_gpu", "network", "translation"),
    [
        (None, True, "mlp", 0),
        (8, True, "small", 0),
        (12, False, "small", 1),
        (23, True, "small", 1),
        (24, True, "conv13", 2),
        (24, False, "small", 2),
    ],
)
def test_settings_for_arrays_fit_their_size_and_the_device(side, on_gpu, network, translation):
    config = presets.for_arrays("mine", images_side=side, on_gpu=on_gpu)
    assert (config.network.name, config.augment.translation) == (network, translation)
    assert (config.data.name, config.data.preprocess) == ("mine", "channel")


OURS = re.compile(r"H200; ([\d.]+)(?: ± ([\d.]+))? % \(seeds? (\d+)(?:-(\d+))?")


@pytest.mark.parametrize("name", [name for name, preset in presets.PRESETS.items() if OURS.search(preset.__doc__)])
def test_the_error_that_a_preset_gives_as_ours_is_that_of_the_records(name):
    mean, deviation, first, last = OURS.search(presets.PRESETS[name].__doc__).groups()
    data, method = name.split("-")
    cell = Path(__file__).parents[1] / f"results/runs/{data}/{method}-aug-{presets.get(name).data.labels}"
    records = [json.loads(path.read_text()) for path in sorted(cell.iterdir())]
    assert [record["seed"] for record in records] == list(range(int(first), int(last or first) + 1))
    errors = [record["final_error"] for record in records]
    assert f"{statistics.mean(errors):.2f}" == mean
    assert (f"{statistics.stdev(errors):.2f}" if len(errors) > 1 else None) == deviation
