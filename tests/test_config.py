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

from selfens import methods, presets
from selfens.config import AugmentConfig, Config, DataConfig, ScheduleConfig
from selfens.errors import ConfigError
from selfens.methods import METHODS
from selfens.settings import field_types

ROOT = Path(__file__).parents[1]

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
    "data.preprocess_after_views": st.booleans(),
    "augment.flip": st.booleans(),
    "augment.shared_flip": st.booleans(),
    "augment.translation": st.integers(0, 100),
    "augment.operations": st.integers(0, 9),
    "augment.cutout": st.floats(0, 1),
    "augment.noise": st.floats(0, 10),
    "augment.feature_dropout": momentum,
    "network.name": st.sampled_from(["conv13", "small", "my.module:factory"]),
    "network.noise": st.floats(0, 10),
    "network.dropout": momentum,
    "network.mean_momentum": momentum,
    "network.width": st.none() | st.integers(1, 1000),
    "optimizer.learning_rate": positive,
    "optimizer.beta1": momentum,
    "optimizer.beta1_end": momentum,
    "optimizer.beta2": momentum,
    "optimizer.epsilon": positive,
    "optimizer.weight_decay": st.floats(0, 1),
    "optimizer.momentum": momentum,
    "optimizer.multipliers": st.sampled_from(["", "body:0.1", "body:0.1, head:1"]),
    "schedule.epochs": st.integers(100, 1000),
    "schedule.rampup_epochs": st.none() | st.floats(0, 1e4),
    "schedule.rampdown_epochs": st.none() | st.floats(0, 100),
    "schedule.rampup_constant": st.floats(0.1, 100),
    "schedule.rampdown_constant": st.floats(0.1, 100),
    "schedule.warmup_epochs": st.floats(0, 100),
    "schedule.weight_rampup_epochs": st.none() | st.floats(0, 1e4),
    "training.batch_size": st.integers(2, 10**5),
    "training.threads": st.none() | st.integers(1, 64),
    "training.evaluate_every": st.integers(1, 100),
    "training.checkpoint_every": st.integers(1, 100),
    "seed.base": seeds,
    "seed.labels": st.none() | seeds,
    "seed.split": st.none() | seeds,
    "seed.training": st.none() | seeds,
}


METHOD_DRAWN = {
    "weight_max": st.floats(0, 1e6),
    "decay": momentum,
    "threshold": st.floats(0, 1, exclude_max=True),  # which the temporal teacher refuses
    "memory": st.floats(0, 0.9999),
    "neighbors": st.floats(0, 1),
    "temperature": st.floats(0.01, 1),
    "variance": st.booleans(),
    "alignment": st.booleans(),
    "targets": st.sampled_from(["device", "ram", "/folder/z.targets"]),
}
"""Options of any method, by name."""
TOGETHER = {"data.labels_file", "data.extra", "data.extra_per_epoch", "data.label_column", "data.id_column"}
TOGETHER |= {"data.backbone", "data.backbone_weights", "data.backbone_size", "data.feature_cache"}
TOGETHER |= {"training.labeled_per_batch", "training.min_steps_per_epoch"}
"""Settings that go only with others."""


def choices(section):
    """The settings that take one of a few words, from their types."""
    words = {name: set(typing.get_args(hint)) - {"file", "added"} for name, hint in field_types(section).items()}
    literal = [name for name, hint in field_types(section).items() if typing.get_origin(hint) is typing.Literal]
    return {name: st.sampled_from(sorted(words[name])) for name in literal}


SECTIONS = {section.name: type(getattr(Config(), section.name)) for section in fields(Config)}
VALUES = DRAWN | {
    f"{section}.{name}": values
    for section, kind in SECTIONS.items()
    if section != "method"
    for name, values in choices(kind).items()
}


@st.composite
def overrides(draw):
    """Any settings, with the options of one of the methods."""
    method = draw(st.sampled_from(sorted(METHODS)))
    drawn = draw(st.fixed_dictionaries({}, optional={k: v for k, v in VALUES.items() if k != "training.batches"}))
    kind = methods.find(method).Options
    own = {f"method.{name}": (METHOD_DRAWN | choices(kind))[name] for name in field_types(kind)}
    return {"method.name": method} | drawn | draw(st.fixed_dictionaries({}, optional=own))


def value_at(config, path):
    section, name = path.split(".")
    return getattr(getattr(config, section), name)


def every_path(config=None):
    """Every setting; of those of methods, the ones of temporal ensembling unless told otherwise."""
    return [f"{s.name}.{f.name}" for s in fields(Config) for f in fields(getattr(config or Config(), s.name))]


def from_dict_at(path, value):
    section, name = path.split(".")
    return Config.from_dict({section: {name: value}})


# there and back


def test_every_setting_is_drawn_above():
    assert set(VALUES) == {path for path in every_path() if not path.startswith("method.")} - TOGETHER


@given(overrides(), st.randoms())
def test_any_overrides_arrive_in_any_order_and_survive_json(drawn, order):
    texts = [f"{path}={value}" for path, value in drawn.items()]
    order.shuffle(texts)
    config = Config().with_overrides(texts)
    for path, value in drawn.items():
        assert value_at(config, path) == value
        assert type(value_at(config, path)) is type(value)
    assert Config.from_json(config.to_json()) == config
    default = Config(method=methods.options(drawn["method.name"]))
    assert all(value_at(config, path) == value_at(default, path) for path in set(every_path(default)) - set(drawn))


def test_json_is_sections_of_fields():
    raw = json.loads(Config().to_json())
    found = [f"{section}.{name}" for section, values in raw.items() for name in values]
    assert [path for path in found if path != "method.name"] == every_path()
    assert raw["method"]["name"] == "temporal"


def test_json_may_leave_fields_out():
    config = Config.from_json('{"method": {"name": "pi"}}')
    assert config == Config(method=methods.options("pi"))
    assert Config.from_json("{}") == Config()


def test_labels_file_goes_with_its_choice():
    config = Config().with_overrides(["data.label_choice=file", "data.labels_file=rows.txt"])
    assert Config.from_json(config.to_json()) == config
    for change in ({"label_choice": "file"}, {"label_choice": "added"}, {"labels_file": "rows.txt"}):
        with pytest.raises(ConfigError, match=r"data\.label_choice is .* data\.labels_file is"):
            Config(data=DataConfig(**change))


def test_whole_numbers_are_welcome_where_numbers_are_expected():
    config = from_dict_at("method.weight_max", 30)
    assert config == Config(method=methods.options("temporal", weight_max=30.0))
    assert config.to_json() == Config(method=methods.options("temporal", weight_max=30.0)).to_json()


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


def test_another_method_brings_its_own_options():
    config = Config().with_values("method", decay=0.9)
    assert config.with_values("method", name="temporal") == config
    assert config.with_values("method", name="pi", weight_max=3) == Config(method=methods.options("pi", weight_max=3.0))
    assert config.with_overrides(["method.decay=0.5", "method.name=mean-teacher"]).method.decay == 0.5


def test_multipliers_are_read_by_the_beginnings_of_names():
    config = Config().with_overrides(["optimizer.multipliers=backbone.1:0.1, head : 2"])
    assert config.optimizer.learning_rate_multipliers == {"backbone.1": 0.1, "head": 2.0}


def test_seeds_not_set_are_the_base_seed():
    seed = Config().with_overrides(["seed.base=7", "seed.labels=0"]).seed
    assert [seed.of(part) for part in ("labels", "split", "training")] == [0, 7, 7]


# refused


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimiser.beta2=0.9", "no section 'optimiser'; did you mean 'optimizer'"),
        ("optimizer.beta_2=0.9", "no optimizer field 'beta_2'; did you mean 'beta2'"),
        ("data.lables=4", "'lables'; did you mean 'labels'"),
        ("data.preprocess_rows=labelled", r"no choice for data\.preprocess_rows 'labelled'; did you mean 'labeled'"),
        ("data.preprocess=zac", r"no choice for data\.preprocess 'zac'; did you mean 'zca'"),
        ("method.consistency=square", r"method\.consistency 'square'; did you mean 'squared'"),
        ("training.device=gpu", r"training\.device 'gpu'.*Known: auto, cpu, cuda"),
        ("method.name=temporale", "no method 'temporale'; did you mean 'temporal'"),
        ("method.threshold=0.9", "no temporal option 'threshold'"),
        ("training.report=false", "no training field 'report'"),
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
        (
            "optimizer.multipliers=head",
            "optimizer.multipliers holds 'head'; expected the beginning of a parameter's name",
        ),
        ("optimizer.multipliers=head:-1", "optimizer.multipliers holds 'head:-1'"),
        ("optimizer.multipliers=head:inf", "optimizer.multipliers holds 'head:inf'"),
        ("optimizer.multipliers=head:nan", "optimizer.multipliers holds 'head:nan'"),
        ("optimizer.multipliers=head:x", "optimizer.multipliers is 'x'; expected a number"),
        ("method.targets=RAM", "method.targets is 'RAM'; expected device, ram or the path of a file"),
        ("training.labeled_per_batch=100", "labeled_per_batch is 100 and training.batch_size 100; expected fewer"),
    ],
)
def test_mistyped_overrides_are_refused_with_their_path(override, message):
    with pytest.raises(ConfigError, match=message):
        Config().with_overrides([override])


def wrong_values(hint):
    """Values of every type that a setting does not take."""
    hint = str(hint)
    takes = {
        "text": "str" in hint or "Literal" in hint, "number": "float" in hint, "whole": "int" in hint or "float" in hint,
        "bool": "bool" in hint, "none": "None" in hint,
    }  # fmt: skip
    candidates = {"text": "text", "number": 1.5, "whole": 3, "bool": True, "none": None}
    return [value for kind, value in candidates.items() if not takes[kind]] + [[1], {}]


def test_a_value_of_another_type_is_refused_with_its_path():
    for section, kind in SECTIONS.items():
        for method in sorted(METHODS) if section == "method" else [None]:
            kind = methods.find(method).Options if method else kind
            for name, hint in field_types(kind).items():
                for value in wrong_values(hint):
                    with pytest.raises(ConfigError, match=rf"{section}\.{name} is .*; expected"):
                        Config.from_dict({section: {name: value} | ({"name": method} if method else {})})
    for value in (3, None, ["pi"], {}):
        with pytest.raises(ConfigError, match=r"method\.name is .* expected text"):
            Config.from_dict({"method": {"name": value}})


OUT_OF_RANGE = [
    ("data.labels", 0), ("data.labels", -5), ("data.label_noise", -1.0), ("data.label_noise", 100.5),
    ("data.validation", -0.1), ("data.validation", 1.0), ("augment.translation", -1), ("network.noise", -0.1),
    ("network.dropout", 1.0), ("network.dropout", -0.5), ("network.mean_momentum", 1.0), ("network.width", 0),
    ("method.weight_max", -1.0), ("method.decay", 1.0), ("method.decay", -0.1), ("optimizer.learning_rate", 0.0),
    ("optimizer.learning_rate", -1.0), ("optimizer.beta1", 1.0), ("optimizer.beta1_end", 1.0),
    ("optimizer.beta2", 1.0), ("optimizer.beta2", -0.1), ("optimizer.epsilon", 0.0), ("schedule.epochs", 0),
    ("schedule.rampup_epochs", -1.0), ("schedule.rampdown_epochs", -1.0), ("schedule.rampdown_epochs", 301.0),
    ("training.batch_size", 1), ("training.threads", 0), ("training.checkpoint_every", 0), ("seed.base", -1),
    ("training.evaluate_every", 0), ("seed.labels", 2**32), ("seed.split", -1), ("seed.training", -1),
    ("data.image_size", 3), ("data.image_size", 1025),
    ("data.extra_per_epoch", 0), ("augment.operations", -1), ("augment.cutout", 1.5),
    ("augment.noise", -0.1), ("augment.feature_dropout", 1.0), ("optimizer.weight_decay", -0.1),
    ("optimizer.momentum", 1.0), ("schedule.warmup_epochs", 301.0), ("schedule.weight_rampup_epochs", -1.0),
    ("schedule.rampup_constant", -5.0), ("schedule.rampdown_constant", -5.0), ("training.labeled_per_batch", 0),
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


@pytest.mark.parametrize(
    ("method", "option", "value"),
    [
        ("mean-teacher", "decay", 1.0),
        ("fixmatch", "threshold", 1.1),
        ("fixmatch", "decay", -0.1),
        ("pi", "weight_max", -1.0),
    ],
)
def test_an_option_out_of_range_is_refused_with_its_path(method, option, value):
    with pytest.raises(ConfigError, match=rf"method[.]{option} is {value}; expected"):
        methods.options(method, **{option: value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the configuration is not JSON"),
        ("", "the configuration is not JSON"),
        ("[1]", "the configuration is a list; expected sections of fields"),
        ("null", "the configuration is a NoneType"),
        ('{"data": 3}', "section 'data' holds 3; expected its fields"),
        ('{"datum": {}}', "no section 'datum'; did you mean 'data'"),
        ('{"data": {"nmae": "x"}}', "no data field 'nmae'; did you mean 'name'"),
    ],
)
def test_json_that_is_no_config_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_json(text)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.labeled_per_batch=5", "training.rows=labeled"], "leave training.rows at all"),
        (["training.labeled_per_batch=5", "data.extra_per_epoch=9"], "are both set"),
        (
            ["data.extra=digits", "training.rows=labeled"],
            "training.rows is 'labeled', which visits no unlabeled rows",
        ),
    ],
)
def test_settings_that_exclude_each_other_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        Config().with_overrides(overrides)


def test_options_of_a_method_without_a_name_are_refused():
    with pytest.raises(ConfigError, match=r"no method has these options by name; pass a method of your own"):
        Config(method=methods.Options())


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


@pytest.mark.parametrize(
    "name", [name for name in presets.PRESETS if not name.startswith("digits") and not presets.PRESETS[name].method]
)
def test_what_all_of_the_papers_runs_share(name):
    config = presets.get(name)
    schedule, optimizer, network = config.schedule, config.optimizer, config.network
    assert (schedule.epochs, schedule.rampup, schedule.rampdown) == (300, 80, 50)
    assert (schedule.rampup_constant, schedule.rampdown_constant) == (5, 12.5)
    assert (optimizer.beta1, optimizer.beta1_end, optimizer.beta2, optimizer.epsilon) == (0.9, 0.5, 0.999, 1e-8)
    assert (network.name, network.noise, network.dropout, network.mean_momentum) == ("conv13", 0.15, 0.5, 0.999)
    assert (config.augment.translation, config.augment.shared_flip) == (2, True)
    assert (config.training.batch_size, config.training.rows) == (100, "all")
    expected = {"decay": 0.6, "consistency": "squared", "weight_scale": "original"}
    assert {name: getattr(config.method, name, value) for name, value in expected.items()} == expected


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_are_whole_and_documented(name):
    config = presets.get(name)
    assert Config.from_json(config.to_json()) == config
    assert presets.PRESETS[name].time in presets.about(name)
    assert presets.PRESETS[name].ours in presets.about(name)
    assert config.method.name == presets.method_of(name)
    assert presets.get(name.partition("-")[0], config.method.name).method.name == config.method.name


@pytest.mark.parametrize("name", [name for name in presets.PRESETS if name.endswith("-supervised")])
def test_supervised_presets_differ_from_the_pi_model_only_in_the_method(name):
    supervised, other = presets.get(name), presets.get(name.replace("supervised", "pi"))
    assert replace(supervised, method=other.method) == other


def test_name_of_the_data_alone_means_temporal_ensembling():
    assert presets.get("digits") == presets.get("digits-temporal")
    assert presets.full_name("cifar10") == "cifar10-temporal"
    assert presets.full_name("nothing") is None


def test_unknown_preset_names_the_nearest():
    with pytest.raises(ConfigError, match="no preset 'cifar10-temporl'; did you mean 'cifar10-temporal'"):
        presets.get("cifar10-temporl")


@pytest.mark.parametrize("data", presets.DATA_SETS)
def test_another_method_brings_its_own_rates(data):
    for method in ("supervised", "pi", "temporal"):
        for start in ("supervised", "pi", "temporal"):
            assert presets.get(f"{data}-{start}", method) == presets.get(f"{data}-{method}")


@pytest.mark.parametrize("start", ["svhn-pi", "svhn-temporal"])
def test_a_method_without_a_preset_has_its_own_options_on_the_data_set(start):
    expected = presets.get("svhn-supervised").with_values("method", name="mean-teacher")
    assert presets.get(start, "mean-teacher") == expected


def test_another_method_on_data_of_ones_own_has_its_own_options_and_the_same_learning_rate():
    config = Config(data=DataConfig(name="mine.npz")).with_values("optimizer", learning_rate=0.1)
    assert presets.with_method(config, "pi", images=True) == replace(config, method=methods.options("pi"))


@pytest.mark.parametrize(
    ("side", "on_gpu", "network", "translation"),
    [
        (None, True, "committee", 0),
        (8, True, "small", 0),
        (8, False, "small", 0),
        (12, False, "tiny", 1),
        (23, True, "small", 1),
        (24, True, "conv13", 2),
        (24, False, "tiny", 2),
    ],
)
def test_settings_for_arrays_fit_their_size_and_the_device(side, on_gpu, network, translation):
    config = presets.for_arrays("mine", images_side=side, rows=1000, on_gpu=on_gpu)
    assert (config.network.name, config.augment.translation) == (network, translation)
    assert (config.data.name, config.data.preprocess) == ("mine", "channel")


@pytest.mark.parametrize("method", [name for name in METHODS if name != "committee"])
def test_other_methods_on_vectors_have_the_network_and_schedule_they_always_had(method):
    config = presets.for_arrays("mine", images_side=None, rows=1000, method=method)
    assert (config.method, config.network.name) == (methods.options(method), "mlp")
    assert (config.optimizer.name, config.schedule.name, config.schedule.epochs) == ("adam", "paper", 200)
    assert (config.training.batch_size, config.training.labeled_per_batch) == (100, None)


@pytest.mark.parametrize(("rows", "epochs"), [(2, 50), (150, 50), (5120, 50), (10_000, 25), (50_000, 10), (10**6, 10)])
def test_vectors_get_a_thousand_steps_and_ten_visits_or_more(rows, epochs):
    config = presets.for_arrays("mine", images_side=None, rows=rows)
    assert config.method == methods.options("committee")
    assert config.schedule.epochs == epochs
    each = max(rows // round(0.8 * config.training.batch_size), 20)
    assert each * epochs >= 950


def test_ramps_keep_their_proportion_if_the_epochs_are_set():
    config = Config().with_overrides(["schedule.epochs=40", "schedule.warmup_epochs=4", "schedule.rampdown_epochs=40"])
    shorter = config.with_overrides(["schedule.epochs=10", "schedule.weight_rampup_epochs=3"]).schedule
    assert (shorter.warmup_epochs, shorter.rampdown_epochs, shorter.weight_rampup_epochs) == (1, 10, 3)
    assert shorter.rampup_epochs is None
    for wrong in ("0", "-3", "1" + "0" * 400):
        with pytest.raises(ConfigError, match=r"schedule.epochs is .*; expected at least 1"):
            config.with_overrides([f"schedule.epochs={wrong}"])


OURS = re.compile(r"([\d.]+)(?: ± ([\d.]+))? % \(seeds? (\d+)(?:-(\d+))?")
MEASURED = [name for name, preset in presets.PRESETS.items() if preset.ours and not name.startswith("digits")]


def records_of(preset):
    (data, method), labels = preset.split("-"), presets.get(preset).data.labels
    cell = f"modern/{preset}-{labels}" if presets.PRESETS[preset].method else f"{data}/{method}-aug-{labels}"
    return [json.loads(path.read_text()) for path in sorted((ROOT / "results/runs" / cell).iterdir())]


@pytest.mark.parametrize("name", MEASURED)
def test_the_error_that_a_preset_gives_as_ours_is_that_of_the_records(name):
    mean, deviation, first, last = OURS.match(presets.PRESETS[name].ours).groups()
    records = records_of(name)
    assert [record["seed"] for record in records] == list(range(int(first), int(last or first) + 1))
    errors = [record["final_error"] for record in records]
    assert f"{statistics.mean(errors):.2f}" == mean
    assert (f"{statistics.stdev(errors):.2f}" if len(errors) > 1 else None) == deviation


def test_the_config_of_every_record_can_be_read_and_is_the_same_for_all_seeds_of_a_cell():
    cells = {}
    for path in sorted((ROOT / "results/runs").rglob("*.json")):
        record = json.loads(path.read_text())
        config = Config.from_dict(record["config"])
        assert Config.from_json(config.to_json()) == config
        assert config.seed.base == record["seed"]
        same = config.with_values("seed", base=0).with_values("training", device="auto", checkpoint_every=None)
        cells.setdefault(path.parent, set()).add(same.to_json())
    assert len(cells) > 10
    assert all(len(configs) == 1 for configs in cells.values())


@pytest.mark.parametrize("name", MEASURED)
def test_the_records_that_a_preset_is_held_to_are_of_its_config(name):
    config = presets.get(name)
    for record in records_of(name):
        found = Config.from_dict(record["config"])
        assert replace(found, seed=config.seed, training=config.training).with_values("data", folder=None) == config
