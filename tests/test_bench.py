"""selfens bench on a CPU: what it reports, and the scripts in benchmarks/ that are built on it."""

import argparse
import colorsys
import hashlib
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import operations
from support import encoded, training_rows
from torch import nn

from selfens import bench, presets
from selfens.core.batch import Batch
from selfens.core.views import VIEWS, Views, ViewsConfig
from selfens.data.labels import LabelChoice
from selfens.data.sources import load, options_for
from selfens.errors import ConfigError, MissingPackageError, RunError
from selfens.experiments.records import Record
from selfens.methods import METHODS
from selfens.methods.temporal import Temporal
from selfens.methods.temporal_teacher import TemporalTeacher
from selfens.training.loop import train
from selfens.training.progress import WarningsOnly
from selfens.training.step import Step

CPU = torch.device("cpu")
SCRIPTS = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(SCRIPTS))  # so that scripts can import each other


def script(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits():
    return load(options_for("digits"))


@pytest.fixture(scope="module")
def few():
    """benchmarks/few_labels.py, which adds the view `crop`."""
    module = script("few_labels")
    yield module
    VIEWS.pop("crop")


def build(method, data, *overrides):
    config = bench.config_for(method, data, CPU).with_overrides(list(overrides))
    with bench.settings(config, CPU):
        return bench.build(config, data, CPU, [])


def test_the_command_prints_a_table_and_writes_all_figures(typed, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "WARM_UP", 1)
    names, output = ",".join(METHODS), tmp_path / "out.json"
    words = ("--device", "cpu", "--methods", names, "--modes", "plain", "--steps", 1, "-o", output)
    code, out, _ = typed("bench", *words)
    assert code == 0
    result = json.loads(output.read_text())
    assert [row["method"] for row in result["measurements"]] == list(METHODS)
    for row in result["measurements"]:
        assert row["method"] in out
        assert row["images_per_second"] == pytest.approx(100 / (row["microseconds_per_step"] / 1e6))
        assert row["notes"] == []
        assert row["peak_memory_gib"] is None
    assert result["environment"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--steps", "0"], "--steps is 0; expected at least 1"),
        (["--methods", "temporel"], "there is no method 'temporel'; did you mean 'temporal'"),
        (["--modes", "plane"], "there is no mode 'plane'; did you mean 'plain'"),
        (["--modes", ""], "there is no mode ''"),
        (["--data-dir", "there"], "--data-dir is there, but a CPU is measured on digits"),
    ],
)
def test_bad_words_get_one_sentence(words, sentence, typed):
    code, _, err = typed("bench", "--device", "cpu", *words)
    assert code == 1
    assert sentence in err
    assert err.count("\n") == 1


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    with pytest.raises(RunError, match=r"could not be written \(Is a directory\)"):
        bench.write_json(tmp_path, {})


def test_on_a_gpu_the_paper_s_network_sees_images_of_cifar_10_s_shape():
    gpu, data = torch.device("cuda"), bench.random_images(20)
    assert data.raw.shape == (20, 3, 32, 32)
    for method in METHODS:
        config = bench.config_for(method, data, gpu)
        assert (config.network.name, config.method.name, config.preprocess.kind) == ("conv13", method, "channel")
        assert config.training.batch_size == 100
        assert config.preprocess.is_after_views(METHODS.find(method).views) == ("strong" in METHODS.find(method).views)


def test_a_mode_is_three_switches():
    config = bench.config_for("pi", bench.random_images(20), CPU)
    found = [bench.with_mode(config, mode).training for mode in bench.MODES]
    switches = [" ".join((each.compile, each.capture, each.kernels)) for each in found]
    assert switches == ["off off off", "on off off", "off on off", "on on off", "on on on"]


# The scripts in benchmarks/


PARTS = ("lite0", "mixed_tables")  # of other scripts


@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem not in PARTS))
def test_each_script_says_what_it_does(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        script(name).main()
    assert not end.value.code
    said = capsys.readouterr().out
    assert {"own_data": "--cache", "honest": "--cache", "text": "--cache", "few_labels": "--held-out"}.get(
        name, "--output"
    ) in said


def test_the_hand_written_loop_computes_what_our_step_computes(digits):
    """Otherwise comparing speeds would mean nothing. There is a tolerance because Adam adds epsilon in a different place."""
    overrides = ("network.dropout=0", "network.noise=0", "method.unseen_rows=zero")
    ours = build("temporal", digits, *overrides)
    start = ours.optimizer.flat.clone()
    loop = script("plain_loop").PlainLoop(ours)
    order = ours.loader.order(0)[:5]
    for rows in order:
        ours.step(rows)
        loop.step(rows)
    theirs = torch.cat([p.detach().reshape(-1) for p in loop.network.parameters()])
    assert (ours.optimizer.flat - theirs).norm() < 0.01 * (ours.optimizer.flat - start).norm()
    for name, buffer in ours.network.named_buffers():
        torch.testing.assert_close(loop.network.get_buffer(name), buffer, rtol=0.01, atol=1e-4)
    visited = order.flatten()
    loop_predictions, predictions = loop.predictions[visited], ours.method.ensemble.pending[visited]
    torch.testing.assert_close(loop_predictions, predictions, rtol=0.01, atol=1e-3)
    assert (loop_predictions.sum(dim=1) - 1).abs().max() < 1e-5


def test_the_comparison_alternates(digits, monkeypatch):
    """Our steps are made to take 2 ms and the loop's 1 ms."""
    turns, plain_loop = [], script("plain_loop")

    def taking(name, seconds):
        return lambda *arguments: turns.append(name) or seconds

    monkeypatch.setattr(plain_loop, "time_steps", taking("ours", 0.002))
    monkeypatch.setattr(plain_loop.PlainLoop, "time_steps", taking("loop", 0.001))
    result = plain_loop.compare(digits, steps=3, alternations=5)
    assert turns == ["ours", "loop"] * 6
    assert (result["median_ratio"], result["ratios"], result["steps_per_turn"]) == (2, [2.0] * 5, 3)


def test_growth_covers_each_size_and_times_every_step_and_the_end_of_the_epoch(monkeypatch, tmp_path):
    """Only steps (by 3 s) and ends of epochs (by 50 s) advance the clock."""
    clock, growth, output = [0.0], script("growth"), tmp_path / "growth.json"

    def taking(seconds):
        def work(*arguments):
            clock[0] += seconds

        return work

    monkeypatch.setattr(growth.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Step, "__call__", taking(3))
    monkeypatch.setattr(Temporal, "end_epoch", taking(50))
    monkeypatch.setattr(growth, "CPU_SIZES", ((200, 2), (400, 20)))
    monkeypatch.setattr(sys, "argv", ["growth", "--device", "cpu", "--epochs", "2", "--output", str(output)])
    growth.main()
    small, large = json.loads(output.read_text())["growth"]
    assert (small["rows"], small["classes"], large["rows"], large["classes"]) == (200, 2, 400, 20)
    assert (small["seconds_per_epoch"], large["seconds_per_epoch"]) == (2 * 3 + 50, 4 * 3 + 50)
    for row in (small, large):
        assert row["microseconds_per_row"] == pytest.approx(1e6 * row["seconds_per_epoch"] / row["rows"])
        assert row["last_epoch_over_first"] == 1


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "convolutions, forward"),
        ("cutlass_tensorop_bf16_s16816wgrad_optimized_bf16_128x128_32x4_nhwc", "convolutions, weight gradient"),
        ("_add_up_gradient", "our kernels, backward"),
        ("_write_input_gradient", "our kernels, backward"),
        ("_scale_and_activate", "our kernels, forward"),
        ("Memset (Device)", "clearing memory"),
        ("triton_poi_fused_add_mul_3", "kernels of the compiler"),
        ("nvjet_tst_64x32_64x16_2x1_v_bz_TNN", "matrix products"),
        ("void at::native::something_new<float>", "everything else"),
    ],
)
def test_kernels_are_told_apart_by_name(kernel, kind):
    assert script("kernel_times").kind_of(kernel) == kind


@pytest.mark.parametrize("name", ["50", "50-single-pass"])
def test_a_trial_is_tested_on_held_out_training_rows(digits, name, monkeypatch):
    trials = script("trials")
    small = ("network.width=8", "method.memory=0.6")
    monkeypatch.setattr(trials, "HELD_OUT", 200)
    monkeypatch.setitem(trials.TRIALS, name, ("digits-modern", 50, small))
    held_out = trials.held_out(digits)
    known = {row.tobytes() for row in np.asarray(held_out.raw)}
    assert np.bincount(held_out.test_labels).tolist() == [20] * 10
    assert not known & {row.tobytes() for row in np.asarray(digits.raw[digits.test_rows])}
    record = trials.run(name, argparse.Namespace(data_dir=None, epochs=8, seed=100, jobs=1))
    assert record["error"] == record["errors"][8] < 80
    assert record["epochs"] == 8
    assert record["overrides"] == list(small)


def test_trials_leave_each_part_out_at_both_numbers_of_labels():
    trials = script("trials")
    assert {f"{labels}{part}" for labels in (4000, 250) for part in trials.PARTS} <= {*trials.TRIALS}
    for preset, labels, overrides in trials.TRIALS.values():
        presets.get(preset).with_overrides([f"labels.count={labels}", *overrides])


def test_the_figure_has_times_of_runs_that_were_alone_and_the_peers(tmp_path, monkeypatch):
    figure, drawn = script("error_time"), []
    monkeypatch.setattr(figure, "draw", lambda *given: drawn.append(given))
    monkeypatch.setattr(sys, "argv", ["error_time", "--results", str(tmp_path)])
    with pytest.raises(SystemExit, match="no record to draw"):
        figure.main()
    (tmp_path / "peer.jsonl").write_text('{"ours": ')
    with pytest.raises(SystemExit, match="peer.jsonl is damaged"):
        figure.main()
    (tmp_path / "peer.jsonl").unlink()
    shutil.copytree(SCRIPTS.parent / "results/runs/cifar10", tmp_path / "runs/cifar10")
    figure.main()
    line = {"ours": {"config": {"labels": {"count": 4000}}}, "peer": {"seconds": 200.0, "error": 15.0}}
    (tmp_path / "peer.jsonl").write_text(json.dumps(line) + "\n")
    figure.main()
    (before, _), (after, _) = drawn
    assert [*before] == [figure.PI, figure.TEMPORAL]
    assert [point.error for point in before[figure.PI]] == [12.4, 12.96]
    assert all(round(point.seconds) == 403 for point in before[figure.PI])  # computed, because they shared a GPU
    assert len(before[figure.TEMPORAL]) == 4  # two more shared a GPU
    assert all(240 <= point.seconds < 265 for point in before[figure.TEMPORAL])
    assert after == {**before, figure.PEER: [(200, 15)]}


def test_a_run_with_few_labels_is_pretrained_and_then_the_temporal_teacher(few, digits, monkeypatch):
    decays, genuine = [], few.Pretrained.end_epoch
    monkeypatch.setattr(few.Pretrained, "end_epoch", lambda self: (decays.append(float(self.decay)), genuine(self)))
    changed = ["labels.count=30", "schedule.epochs=10", "network.width=8", "training.threads=1"]
    changed += ["training.evaluate_every=5"]
    record = few.run(presets.get("digits-modern").with_overrides(changed), digits, 0.6)
    assert (record["pretraining_epochs"], len(record["contrast"])) == (6, 6)
    assert record["contrast"][5] < 0.9 * record["contrast"][0]  # it learns which crops belong together
    assert record["error"] == record["errors"][10] < 60
    assert decays == [pytest.approx(0.99)] * 6 + [pytest.approx(0.999)] * 4


def test_without_pretraining_its_loss_is_the_temporal_teachers(few):
    torch.manual_seed(0)
    network = few.TwoHeads(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    labels = torch.tensor([0, 1, 2, 1, -1, -1, -1, -1])
    batch = Batch(torch.arange(8), tuple(torch.randn(4, 8, 6)), labels, labels >= 0, 4)
    rows = training_rows(torch.zeros(8, 6), labels)

    def losses(method, used):
        method.setup(network, rows)
        return method.losses(network, used, None, torch.tensor(0.7))

    expected = losses(TemporalTeacher(), batch._replace(views=batch.views[:2]))
    ours = losses(few.Pretrained(), batch)
    torch.testing.assert_close(ours.total, expected.total)
    torch.testing.assert_close(ours.predictions[4:], expected.predictions[4:])
    pretraining = losses(few.Pretrained(few.Pretrained.Options(pretraining_epochs=1)), batch)
    gradients = torch.autograd.grad(pretraining.parts["supervised"], [*network.parameters()], allow_unused=True)
    learns = [gradient is not None and bool(gradient.any()) for gradient in gradients]
    assert learns == [False] * 2 + [True] * 2 + [False] * 4  # body, last layer, second head
    expected = pretraining.parts["supervised"] + pretraining.parts["contrast"]
    torch.testing.assert_close(pretraining.total, expected)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 9)])
def test_a_crop_is_its_twin(few, shape):
    """Area, shape and place from the smallest to the largest, mirrored or not."""
    corners = [
        (a, s, x, y, flip) for a in (0, 0.5, 1) for s in (0, 1) for x in (0, 0.7) for y in (0.2, 1) for flip in (0, 1)
    ]
    images, draws = torch.rand(len(corners), *shape), torch.tensor(corners).T
    result = few.crop(images, draws[:4], draws[4] > 0, fill=0.5)
    for i, corner in enumerate(corners):
        expected = operations.crop(images[i].double().numpy(), *corner, fill=0.5)
        np.testing.assert_allclose(result[i], expected, atol=2e-5, err_msg=str(corner))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_colors_of_a_crop_are_changed_as_the_twins(few, channels):
    images = torch.rand(30, channels, 5, 6)
    draws = torch.from_numpy(np.random.default_rng(1).random((4, 30))).float()
    result = few.change_colors(images, draws)
    for i, image in enumerate(images):
        expected = operations.colored(image.double().numpy(), *draws[:, i].tolist())
        np.testing.assert_allclose(result[i], expected, atol=2e-5)


@pytest.mark.parametrize("pixels", [True, False])
@pytest.mark.parametrize("flip", [True, False])
def test_a_whole_crop_view_is_the_twins(few, pixels, flip):
    """Ten numbers for each image: area, shape and place, whether mirrored, four of colors, and what becomes of them."""
    images, kinds = torch.rand(60, 3, 7, 6), set()
    torch.manual_seed(3)
    draws = torch.rand(10, 60).double().numpy().T
    torch.manual_seed(3)
    (result,) = Views((3, 7, 6), ViewsConfig(flip=flip), pixels).make(images, ("crop",))
    for image, draw, ours in zip(images.double().numpy(), draws, result, strict=True):
        expected = operations.crop(image, *draw[:4], flip and draw[4] < 0.5, fill=0.5 if pixels else 0.0)
        if pixels and draw[9] < 0.2:
            kinds.add("gray")
            expected = np.stack([operations.gray(expected)] * 3)
        elif pixels and draw[9] < 0.84:
            kinds.add("colored")
            expected = operations.colored(expected, *draw[5:9])
        np.testing.assert_allclose(ours, expected, atol=3e-5)
    assert kinds == ({"gray", "colored"} if pixels else set())


def test_crops_are_drawn_for_each_image_and_view(few):
    images = torch.rand(1, 3, 8, 8).expand(100, -1, -1, -1)
    made = torch.cat(Views((3, 8, 8)).make(images, ("crop", "crop")))
    assert len(torch.unique(made.flatten(1), dim=0)) == 200


def test_crops_compile_to_the_same_values(few):
    views, images = Views((3, 8, 8), ViewsConfig(flip=True), pixels=True), torch.rand(20, 3, 8, 8)
    torch._dynamo.reset()
    compiled = torch.compile(lambda inputs: views.make(inputs, ("crop", "crop")), fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    expected = views.make(images, ("crop", "crop"))
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(images), expected)


def test_vectors_have_no_crop(few):
    with pytest.raises(ConfigError, match=r"'crop' is for images .*width., but the inputs have shape \(7,\)\."):
        Views((7,)).check(("crop",))


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("trials", "--jobs 0", "--jobs is 0; expected at least 1"),
        ("trials", "--seed 3", "--seed is 3; expected 100 or more"),
        ("trials", "--output nowhere/t.jsonl", "there is no folder nowhere"),
        ("trials", "no-trial", "there is no trial 'no-trial'"),
        ("few_labels", "--seed 100", "--seed is 100; seeds from 100 on are for --held-out"),
        ("few_labels", "--seed 3 --held-out", "--seed is 3; seeds from 100 on are for --held-out"),
        ("few_labels", "--pretraining 1", "--pretraining is 1.0; expected a part of the epochs"),
        ("few_labels", "--epochs 0", "schedule.epochs is 0; expected"),
        ("error_time", f"--output {SCRIPTS}", "expected an .svg file in a folder that exists"),
    ],
)
def test_scripts_say_what_is_wrong_with_an_option(name, words, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, *words.split()])
    with pytest.raises(SystemExit) as ended:
        script(name).main()
    assert said in capsys.readouterr().err + str(ended.value)


def test_the_figure_has_all_our_runs_with_4000_labels_and_no_other():
    figure = script("error_time")
    results = SCRIPTS.parent / "results"
    runs = results / "runs/modern"
    cells = ("cifar10-modern-4000", "cifar10-modern-4000-420-epochs", "cifar10-fast-4000")
    records = [json.loads(path.read_text()) for cell in cells for path in (runs / cell).iterdir()]
    drawn = figure.measured(figure.Store(results))[figure.OURS]
    assert sorted(drawn) == sorted((record["seconds"], record["final_error"]) for record in records)


def test_published_points_of_the_figure_are_those_of_the_page():
    rows = (SCRIPTS.parent / "docs/modern.md").read_text().split("| | error % | time | source |")[1].splitlines()
    for each in script("error_time").PUBLISHED:
        found = [row for row in rows if row.startswith(f"| {each.name}, ") and f"| {each.time}" in row]
        assert len(found) == 1
        assert f"| {each.error} " in found[0]


def test_the_pace_of_the_pi_model_in_the_figure_is_the_measured_one():
    measured = (SCRIPTS.parent / "results/benchmarks/h200-conv13-cifar10.json").read_text()
    assert f'"images_per_second": {script("error_time").PI_IMAGES_PER_SECOND}.' in measured


# The peer, of which only semilearn's own part needs a GPU and semilearn


class Counted(WarningsOnly):
    def start(self, title, *, epochs, first_epoch, steps_per_epoch):
        self.steps = epochs * steps_per_epoch


@pytest.fixture(scope="module")
def finished(digits, tmp_path_factory):
    """A short run of the temporal teacher, its record, and how many steps it took."""
    config = presets.get("digits-modern").with_overrides(
        ["schedule.epochs=2", "schedule.warmup_epochs=0", "seed.base=3"]
    )
    run = train(config, tmp_path_factory.mktemp("peer") / "run", dataset=digits, progress=(counted := Counted()))
    record = Record(
        table="modern",
        cell="digits",
        seed=3,
        quick=False,
        config=config,
        labeled_rows=run.labels.digest(),
        data=encoded(digits).fingerprint,
        test_error=tuple(epoch["test_error"] for epoch in run.history),
        final_error=run.test_error,
        seconds=7.0,
        seconds_per_epoch=3.5,
        shared_device=False,
        environment={"device": "a card"},
        commit=None,
    )
    return run, record, counted.steps


def test_the_digest_of_labels_is_that_of_their_lines_by_row():
    choice = LabelChoice(rows=np.array([30, 4]), labels=np.array([1, 0]))
    assert choice.digest() == hashlib.sha256(b"4,0\n30,1\n").hexdigest()


def test_the_peer_gets_the_labels_of_our_run_and_counts_its_steps(digits, finished, tmp_path, monkeypatch):
    run, record, steps_taken = finished
    peer, path = script("peer"), tmp_path / "record.json"
    monkeypatch.setattr(peer.torch.cuda, "get_device_name", lambda: "a card")
    path.write_text(record.to_json())
    config, ours = peer.recorded(path, digits)
    labels = peer.labels_of(config, digits)
    assert labels.rows.tolist() == run.labels.rows.tolist()
    assert labels.labels.tolist() == run.labels.labels.tolist()
    assert peer.iterations_of(config, digits, labels) == steps_taken
    assert (ours["error"], ours["seconds"]) == (run.test_error, 7)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"shared_device": True}, "shared its device"),
        ({"environment": {"device": "another"}}, "was made on another, and this is a card"),
        ({"labeled_rows": "0" * 64}, "other images or labels"),
        ({"data": "0" * 64}, "other images or labels"),
        ({"seconds": -1.0}, "is not a record"),
    ],
)
def test_the_peer_refuses_a_record_that_it_cannot_be_compared_with(
    changes, sentence, digits, finished, tmp_path, monkeypatch
):
    peer, path = script("peer"), tmp_path / "record.json"
    monkeypatch.setattr(peer.torch.cuda, "get_device_name", lambda: "a card")
    path.write_text(json.dumps(json.loads(finished[1].to_json()) | changes))
    with pytest.raises(RunError, match=sentence):
        peer.recorded(path, digits)


def test_the_peer_trains_only_presets_of_its_data_set(digits):
    with pytest.raises(ConfigError, match="the preset cifar10-modern is for cifar10; expected one for digits"):
        script("peer").trained(argparse.Namespace(preset="cifar10-modern"), digits)


def test_the_peer_says_what_is_missing(monkeypatch):
    peer = script("peer")
    monkeypatch.setattr(sys, "argv", ["peer"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="error: semilearn trains on a GPU only"):
        peer.main()
    monkeypatch.setattr(peer, "UNUSED", ())
    monkeypatch.setitem(sys.modules, "semilearn", None)  # as if it were not installed
    with pytest.raises(MissingPackageError, match=r"pip install --no-deps semilearn==0\.3\.2"):
        peer.import_semilearn()


def test_packages_that_the_peer_does_not_use_need_not_be_installed(tmp_path, monkeypatch):
    """With a package that imports them as semilearn does."""
    lines = "import not_here\nimport not_here.part as part\nfrom elsewhere.part import Thing\n"
    lines += "from importlib.util import find_spec\nfind_spec('not_here')\nimport colorsys\nfaked = colorsys\n"
    (tmp_path / "semilearn.py").write_text(lines)
    peer = script("peer")
    missing = ("not_here", "not_here.part", "elsewhere.part")
    monkeypatch.setattr(peer, "UNUSED", (*missing, "colorsys"))
    monkeypatch.delitem(sys.modules, "semilearn", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    peer.import_semilearn()
    made = sys.modules.pop("semilearn")
    assert made.Thing
    assert made.faked is not colorsys  # installed, but not needed either
    assert sys.modules["colorsys"] is colorsys
    assert not {*missing} & {*sys.modules}
