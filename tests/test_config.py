"""Configs: to JSON and back, overrides, errors that name the setting, and the presets of the paper."""

import json
import math
import re
import statistics
from dataclasses import fields, replace
from pathlib import Path
from types import UnionType
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from selfens import presets
from selfens.config import REGISTRIES, SECTIONS, Config, ScheduleConfig, same_experiment
from selfens.data.sources import SOURCES, options_for
from selfens.encoders import ENCODERS
from selfens.errors import ConfigError
from selfens.methods import METHODS, MethodOptions
from selfens.settings import field_types

ROOT = Path(__file__).parents[1]
KINDS = {(section, None): kind for section, kind in SECTIONS.items() if section not in REGISTRIES} | {
    (section, name): registry.find(name).Options for section, registry in REGISTRIES.items() for name in registry
}
"""Every class of settings, by its section and its name in a registry."""
BETWEEN = {  # settings that depend on others, or are parsed further
    "schedule.epochs": st.integers(100, 1000),
    "schedule.rampdown_epochs": st.none() | st.floats(0, 100),
    "schedule.warmup_epochs": st.floats(0, 100),
    "training.batch_size": st.integers(100, 10**5),
    "training.labeled_per_batch": st.none() | st.integers(1, 99),
    "optimizer.multipliers": st.sampled_from(["", "body:0.1", "body.1:0.1, head:1"]),
    "method.class_shares": st.sampled_from(["auto", "equal", "no=0.9,yes=0.1"]),
    "encoder.model": st.sampled_from(["", "timm:lite", "my.module:factory"]),
    "encoder.models": st.sampled_from(["timm:lite", "my.module:factory"]),
    "network.groups": st.sampled_from(["", "6,3"]),
    "source.extra": st.sampled_from([None, "svhn", "/folder/more=rows.npz"]),
    "source.id": st.sampled_from([None, "number", "a=b"]),
}


def values(kind, item):
    """Any value that a setting takes, by its type and its bounds."""
    path, hint, bounds = f"{kind.section}.{item.name}", field_types(kind)[item.name], item.metadata["bounds"]
    if path in BETWEEN:
        return BETWEEN[path]
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    least, most = bounds.get("at_least", bounds.get("above")), bounds.get("at_most", bounds.get("below"))
    texts = ["/data", "/x y/a=b.npz"] if item.metadata["is_path"] else ["größe", "a=b", "my.module:factory"]
    known = {
        bool: st.booleans(),
        int: st.integers(least, 10**6 if most is None else most),
        float: st.floats(
            least, 1e6 if most is None else most, exclude_min="above" in bounds, exclude_max="below" in bounds
        ),
        str: st.sampled_from(texts),
        tuple[str, ...]: st.sampled_from(texts),  # one of them may be given as text
        type(None): st.none(),
    }
    return st.one_of(*(known[each] for each in alternatives(hint)))


def alternatives(hint):
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def consistent(section, drawn):
    """Return the values, changed so that none excludes another."""
    if section == "labels":
        drawn["file"] = "/rows.csv" if drawn["choice"] in ("file", "added") else None
    if section == "training" and drawn["labeled_per_batch"] is not None:
        drawn |= {"rows": "all", "unlabeled_per_epoch": None}
    assume(drawn.get("label") is None or drawn["label"] != drawn.get("id"))
    assume(drawn.get("text") is None or drawn["text"] not in (drawn.get("label"), drawn.get("id")))
    return drawn


def value_at(config, path):
    section, name = path.split(".")
    return getattr(getattr(config, section), name)


def from_dict_at(path, value):
    section, name = path.split(".")
    return Config.from_dict({section: {name: value}})


# round trip


@pytest.mark.parametrize(("section", "name"), KINDS)
@given(data=st.data())
def test_every_option_can_be_set_by_overrides_in_any_order_and_read_back_from_json(section, name, data):
    kind = KINDS[section, name]
    drawn = data.draw(st.fixed_dictionaries({item.name: values(kind, item) for item in fields(kind)}))
    drawn = consistent(section, drawn)
    named = {} if name is None else {"name": name}
    texts = [f"{section}.{key}={value}" for key, value in (named | drawn).items()]
    for key in {"file", "text", "texts", "models"} & drawn.keys():  # several names, of which one is given as text
        if drawn[key] is not None and tuple[str, ...] in alternatives(field_types(kind)[key]):
            drawn[key] = (drawn[key],)
    if section != "seed":
        texts.append("seed.base=3")
    config = Config().with_overrides(data.draw(st.permutations(texts)))
    for key, value in drawn.items():
        assert (value_at(config, f"{section}.{key}"), type(value_at(config, f"{section}.{key}"))) == (
            value,
            type(value),
        )
    others = {other: getattr(config, other) for other in SECTIONS if other not in (section, "seed")}
    assert others == {other: getattr(Config(), other) for other in others}
    assert (type(getattr(config, section)), config.seed.base) == (kind, drawn.get("base", 3))
    assert json.loads(config.to_json())[section] == json.loads(json.dumps(named | drawn))
    assert Config.from_dict(json.loads(config.to_json())) == config


def test_json_is_sections_of_fields_and_may_leave_some_out():
    assert [*json.loads(Config().to_json())] == [*SECTIONS]
    assert Config.from_dict(json.loads('{"method": {"name": "pi"}}')) == Config(method=METHODS.options("pi"))
    assert Config.from_dict(json.loads("{}")) == Config()


def test_a_labels_file_goes_with_its_choice():
    config = Config().with_overrides(["labels.choice=file", "labels.file=rows.txt"])
    assert config.labels.file == (str(Path("rows.txt").absolute()),)
    several = Config().with_values("labels", choice="added", file=("rows.txt", "/more.txt"))
    assert several.labels.file == (str(Path("rows.txt").absolute()), "/more.txt")
    assert Config.from_dict(json.loads(several.to_json())) == several
    for change in ({"choice": "file"}, {"choice": "added"}, {"file": "rows.txt"}):
        with pytest.raises(ConfigError, match=r"labels\.choice is .* labels\.file is"):
            Config().with_values("labels", **change)


def test_the_last_of_two_overrides_counts_and_spaces_do_not():
    assert Config().with_overrides(["seed.base=1", " seed.base = 2 "]).seed.base == 2


def test_none_is_a_value_only_where_it_may_be_and_all_labels_are_none():
    few = Config().with_values("labels", count=50)
    for word in ("None", "all", "ALL", "null"):
        config = few.with_overrides([f"labels.count={word}", "preprocess.kind=none"])
        assert (config.labels.count, config.preprocess.kind) == (None, "none")


def test_with_values_changes_one_section_and_checks_it():
    assert Config().with_values("schedule", epochs=10) == Config(schedule=ScheduleConfig(epochs=10))
    with pytest.raises(ConfigError, match=r"schedule\.epochs is 0"):
        Config().with_values("schedule", epochs=0)


def test_another_method_brings_its_own_options():
    config = Config().with_values("method", decay=0.9)
    assert config.with_values("method", name="temporal") == config
    assert config.with_values("method", name="pi", weight_max=3) == Config(method=METHODS.options("pi", weight_max=3.0))
    assert config.with_overrides(["method.decay=0.5", "method.name=mean-teacher"]).method.decay == 0.5


def test_another_source_or_encoder_brings_its_own_options():
    config = Config().with_overrides(["source.name=table", "source.path=a.csv", "source.label=kind"])
    assert config.source == SOURCES.options("table", path="a.csv", label="kind")
    assert config.with_values("source", name="digits").source == Config().source
    assert Config().with_values("encoder", name="backbone", model="timm:lite").encoder.model == "timm:lite"


def test_multipliers_are_read_by_the_beginnings_of_names():
    config = Config().with_overrides(["optimizer.multipliers=backbone.1:0.1, head : 2"])
    assert config.optimizer.learning_rate_multipliers == {"backbone.1": 0.1, "head": 2.0}


def test_seeds_not_set_are_the_base_seed():
    seed = Config().with_overrides(["seed.base=7", "seed.labels=0"]).seed
    assert [seed.of(part) for part in ("labels", "split", "training")] == [0, 7, 7]


def test_an_experiment_is_the_same_wherever_it_runs_and_wherever_its_files_are():
    config = Config(source=options_for("cifar10"))
    moved = ["source.folder=/elsewhere", "training.device=cpu", "training.threads=2", "training.checkpoint_every=3"]
    assert same_experiment(config, config.with_overrides([*moved, "training.evaluate_every=2"]))
    for other in ("source.dataset=svhn", "seed.base=1", "method.decay=0.5", "training.batch_size=50"):
        assert not same_experiment(config, config.with_overrides([other])), other


# refused


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimiser.beta2=0.9", "no section 'optimiser'; did you mean 'optimizer'"),
        ("data.labels=40", "no section 'data'"),
        ("optimizer.beta_2=0.9", "no optimizer field 'beta_2'; did you mean 'beta2'"),
        ("labels.cuont=4", "no labels field 'cuont'; did you mean 'count'"),
        ("source.folder=x", "no digits option 'folder'"),
        ("preprocess.rows=labelled", r"no choice for preprocess\.rows 'labelled'; did you mean 'labeled'"),
        ("preprocess.kind=zac", r"no choice for preprocess\.kind 'zac'; did you mean 'zca'"),
        ("method.consistency=square", r"method\.consistency 'square'; did you mean 'squared'"),
        ("training.device=gpu", r"training\.device 'gpu'.*Known: auto, cpu, cuda"),
        ("method.name=temporale", "no method 'temporale'; did you mean 'temporal'"),
        ("method.name=custom", "no method 'custom'"),
        ("source.name=digist", "no source 'digist'; did you mean 'digits'"),
        ("encoder.name=colums", "no encoder 'colums'; did you mean 'columns'"),
        ("method.threshold=0.9", "no temporal option 'threshold'"),
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
        ("schedule.epochs=none", r"schedule\.epochs is 'none'; expected a whole number"),
        ("labels.count=many", r"labels\.count is 'many'; expected a whole number or all"),
        ("schedule.rampup_epochs=long", r"schedule\.rampup_epochs is 'long'; expected a number or none"),
        ("views.flip=", r"views\.flip is ''; expected true or false"),
        ("optimizer.multipliers=head", "optimizer.multipliers holds 'head'; expected entries such as"),
        ("optimizer.multipliers=head:-1", "optimizer.multipliers holds 'head:-1'"),
        ("optimizer.multipliers=head:inf", "optimizer.multipliers holds 'head:inf'"),
        ("optimizer.multipliers=head:nan", "optimizer.multipliers holds 'head:nan'"),
        ("optimizer.multipliers=head:x", "optimizer.multipliers is 'x'; expected a number"),
        ("source.extra= ", "source.extra is empty; give a path"),
        ("training.labeled_per_batch=100", "labeled_per_batch is 100 and training.batch_size 100; expected fewer"),
    ],
)
def test_mistyped_overrides_are_refused_with_their_path(override, message):
    with pytest.raises(ConfigError, match=message):
        Config().with_overrides([override])


def wrong_values(hint):
    """Values of every type that a setting does not take."""
    takes = {str if get_origin(kind) is Literal else kind for kind in alternatives(hint)}
    takes |= {int} if float in takes else set()
    takes |= {str} if tuple[str, ...] in takes else set()  # a path alone
    return [value for value in ("text", 1.5, 3, True, None, [1], {}) if type(value) not in takes]


def test_a_value_of_another_type_is_refused_with_its_path():
    for (section, name), kind in KINDS.items():
        for option, hint in field_types(kind).items():
            for value in wrong_values(hint):
                raw = {option: value} | ({} if name is None else {"name": name})
                with pytest.raises(ConfigError, match=rf"{section}\.{option} is .*; expected"):
                    Config.from_dict({section: raw})
    for section in REGISTRIES:
        for value in (3, None, ["pi"], {}):
            with pytest.raises(ConfigError, match=rf"{section}\.name is .* expected text"):
                from_dict_at(f"{section}.name", value)


OUT_OF_RANGE = [
    ("labels.count", 0), ("labels.count", -5), ("labels.noise", -1.0), ("labels.noise", 100.5),
    ("labels.validation", -0.1), ("labels.validation", 1.0), ("views.translation", -1), ("network.noise", -0.1),
    ("network.dropout", 1.0), ("network.dropout", -0.5), ("network.mean_momentum", 1.0), ("network.width", 0),
    ("method.weight_max", -1.0), ("method.decay", 1.0), ("method.decay", -0.1), ("optimizer.learning_rate", 0.0),
    ("optimizer.learning_rate", -1.0), ("optimizer.beta1", 1.0), ("optimizer.beta1_end", 1.0),
    ("optimizer.beta2", 1.0), ("optimizer.beta2", -0.1), ("optimizer.epsilon", 0.0), ("schedule.epochs", 0),
    ("schedule.rampup_epochs", -1.0), ("schedule.rampdown_epochs", -1.0), ("schedule.rampdown_epochs", 301.0),
    ("training.batch_size", 1), ("training.threads", 0), ("training.checkpoint_every", 0), ("seed.base", -1),
    ("training.evaluate_every", 0), ("seed.labels", 2**32), ("seed.split", -1), ("seed.training", -1),
    ("training.unlabeled_per_epoch", 0), ("views.operations", -1), ("views.cutout", 1.5), ("views.noise", -0.1),
    ("views.feature_dropout", 1.0), ("optimizer.weight_decay", -0.1), ("optimizer.momentum", 1.0),
    ("schedule.warmup_epochs", 301.0), ("schedule.weight_rampup_epochs", -1.0), ("schedule.rampup_constant", -5.0),
    ("schedule.rampdown_constant", -5.0), ("training.labeled_per_batch", 0), ("training.min_steps_per_epoch", 0),
]  # fmt: skip
"""These bounds exist; `test_settings` tests that bounds are enforced."""
OPTIONS_OUT_OF_RANGE = [
    (METHODS, "mean-teacher", "decay", 1.0),
    (METHODS, "fixmatch", "threshold", 1.1),
    (METHODS, "fixmatch", "decay", -0.1),
    (METHODS, "temporal-teacher", "threshold", 1.0),
    (METHODS, "temporal-teacher", "memory", 1.0),
    (METHODS, "committee", "temperature", 0.0),
    (METHODS, "pi", "weight_max", -1.0),
    (SOURCES, "images", "size", 3),
    (SOURCES, "images", "size", 1025),
    (ENCODERS, "backbone", "size", 3),
]


@pytest.mark.parametrize(("path", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_with_its_path(path, value):
    message = rf"{path.replace('.', '[.]')} is {value}; expected"
    with pytest.raises(ConfigError, match=message):
        from_dict_at(path, value)
    with pytest.raises(ConfigError, match=message):
        Config().with_overrides([f"{path}={value}"])


@pytest.mark.parametrize(("registry", "name", "option", "value"), OPTIONS_OUT_OF_RANGE)
def test_an_option_out_of_range_is_refused_with_its_path(registry, name, option, value):
    with pytest.raises(ConfigError, match=rf"{registry.kind}[.]{option} is {value}; expected"):
        registry.options(name, **{option: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_numbers_that_are_not_finite_are_refused_with_their_path(value):
    for (section, name), kind in KINDS.items():
        for option, hint in field_types(kind).items():
            if float in alternatives(hint):
                with pytest.raises(ConfigError, match=rf"{section}\.{option} is -?(nan|inf)"):
                    Config.from_dict({section: {option: value} | ({} if name is None else {"name": name})})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"the configuration is \[1\] \(list\); expected sections of fields"),
        ("null", "the configuration is None"),
        ('{"source": 3}', r"section 'source' is 3 \(int\); expected its fields"),
        ('{"sourc": {}}', "no section 'sourc'; did you mean 'source'"),
        ('{"source": {"pth": "x"}}', "no digits option 'pth'"),
        ('{"seed": {"labls": 3}}', "no seed field 'labls'; did you mean 'labels'"),
    ],
)
def test_json_that_is_no_config_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_dict(json.loads(text))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.labeled_per_batch=5", "training.rows=labeled"], "set training.rows to 'all'"),
        (["training.labeled_per_batch=5", "training.unlabeled_per_epoch=9"], "are both set"),
        (
            ["source.extra=digits", "training.rows=labeled"],
            "training.rows is 'labeled', which visits no unlabeled rows",
        ),
        (["source.name=table", "source.label=a", "source.id=a"], "source.id and source.label are both 'a'"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        Config().with_overrides(overrides)


def test_a_section_of_another_kind_is_refused():
    with pytest.raises(
        ConfigError, match=r"method is MethodOptions, which is not registered in METHODS; pass a method"
    ):
        Config(method=MethodOptions())
    with pytest.raises(ConfigError, match=r"section 'labels' is .*; expected a LabelsConfig"):
        Config(labels=ScheduleConfig())  # type: ignore[arg-type]


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
    rate, weight = config.optimizer.learning_rate, config.method.weight_max
    assert (config.labels.count, config.preprocess.kind, config.views.flip, rate, weight) == TABLE[name]
    assert (config.source.title, config.method.name) == tuple(name.split("-"))


@pytest.mark.parametrize(
    "name", [name for name in presets.PRESETS if not name.startswith("digits") and presets.PRESETS[name].paper]
)
def test_what_all_of_the_papers_runs_share(name):
    config = presets.get(name)
    schedule, optimizer, network = config.schedule, config.optimizer, config.network
    assert (schedule.epochs, schedule.rampup, schedule.rampdown) == (300, 80, 50)
    assert (schedule.rampup_constant, schedule.rampdown_constant) == (5, 12.5)
    assert (optimizer.beta1, optimizer.beta1_end, optimizer.beta2, optimizer.epsilon) == (0.9, 0.5, 0.999, 1e-8)
    assert (network.name, network.noise, network.dropout, network.mean_momentum) == ("conv13", 0.15, 0.5, 0.999)
    assert (config.views.translation, config.views.shared_flip) == (2, True)
    assert (config.training.batch_size, config.training.rows) == (100, "all")
    expected = {"decay": 0.6, "consistency": "squared", "weight_scale": "original"}
    assert {name: getattr(config.method, name, value) for name, value in expected.items()} == expected


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_are_whole_and_documented(name):
    config = presets.get(name)
    assert Config.from_dict(json.loads(config.to_json())) == config
    assert presets.PRESETS[name].time in presets.about(name)
    assert presets.PRESETS[name].ours in presets.about(name)
    assert presets.get(name.partition("-")[0], config.method.name).method.name == config.method.name


@pytest.mark.parametrize("name", [name for name in presets.PRESETS if name.endswith("-supervised")])
def test_supervised_presets_differ_from_the_pi_model_only_in_the_method(name):
    supervised, other = presets.get(name), presets.get(name.replace("supervised", "pi"))
    assert replace(supervised, method=other.method) == other


def test_the_name_of_the_data_alone_means_temporal_ensembling():
    assert presets.get("digits") == presets.get("digits-temporal")
    assert (presets.full_name("cifar10"), presets.full_name("nothing")) == ("cifar10-temporal", None)
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


def test_ramps_keep_their_proportion_if_the_epochs_are_set():
    config = Config().with_overrides(["schedule.epochs=40", "schedule.warmup_epochs=4", "schedule.rampdown_epochs=40"])
    shorter = config.with_overrides(["schedule.epochs=10", "schedule.weight_rampup_epochs=3"])
    found = shorter.schedule
    assert (found.warmup_epochs, found.rampdown_epochs, found.weight_rampup_epochs) == (1, 10, 3)
    assert found.rampup_epochs is None
    assert shorter.with_values("schedule", weight_rampup_epochs=None) == config.with_epochs(10)
    for wrong in ("0", "-3", "1" + "0" * 400):
        with pytest.raises(ConfigError, match=r"schedule.epochs is .*; expected at least 1"):
            config.with_overrides([f"schedule.epochs={wrong}"])


OURS = re.compile(r"([\d.]+)(?: ± ([\d.]+))? % \(seeds? (\d+)(?:-(\d+))?")
MEASURED = [name for name, preset in presets.PRESETS.items() if preset.ours and not name.startswith("digits")]


def records_of(preset):
    (data, method), labels = preset.split("-"), presets.get(preset).labels.count
    cell = (
        f"modern/{preset}-{labels}"
        if presets.method_of(preset) == "temporal-teacher"
        else f"{data}/{method}-aug-{labels}"
    )
    return [json.loads(path.read_text()) for path in sorted((ROOT / "results/runs" / cell).iterdir())]


@pytest.mark.parametrize("name", MEASURED)
def test_the_error_that_a_preset_gives_as_ours_is_that_of_the_records_of_its_config(name):
    mean, deviation, first, last = OURS.match(presets.PRESETS[name].ours).groups()
    records, config = records_of(name), presets.get(name)
    assert [record["seed"] for record in records] == list(range(int(first), int(last or first) + 1))
    errors = [record["final_error"] for record in records]
    assert f"{statistics.mean(errors):.2f}" == mean
    assert (f"{statistics.stdev(errors):.2f}" if len(errors) > 1 else None) == deviation
    for record in records:
        found = Config.from_dict(record["config"])
        assert replace(found, seed=config.seed, training=config.training).with_values("source", folder=None) == config


def test_the_config_of_every_record_can_be_read_and_is_the_same_for_all_seeds_of_a_cell():
    cells = {}
    for path in sorted((ROOT / "results/runs").rglob("*.json")):
        record = json.loads(path.read_text())
        config = Config.from_dict(record["config"])
        assert Config.from_dict(json.loads(config.to_json())) == config
        assert config.seed.base == record["seed"]
        same = config.with_values("seed", base=0).with_values("training", device="auto", checkpoint_every=None)
        cells.setdefault(path.parent, set()).add(same.to_json())
    assert len(cells) > 10
    assert all(len(configs) == 1 for configs in cells.values())
