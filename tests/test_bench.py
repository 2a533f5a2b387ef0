"""selfens bench on a CPU: what it reports, and that its hand-written loop computes what our step computes."""

import json

import pytest
import torch

from selfens import bench
from selfens.bench import growth, kernel_times, plain_loop, steps
from selfens.cli import main
from selfens.core.device import torch_settings
from selfens.data import sources
from selfens.methods.temporal import Temporal
from selfens.training.step import Step

CPU = torch.device("cpu")


def test_the_command_prints_a_table_and_writes_all_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "against_plain_loop", lambda data, steps: {"median_ratio": 0.9, "ratios": [0.9] * 5})
    output = tmp_path / "deep" / "out.json"
    with pytest.raises(SystemExit) as stopped:
        main(
            [
                "bench",
                "--device",
                "cpu",
                "--methods",
                "pi,temporal",
                "--modes",
                "plain",
                "--steps",
                "2",
                "-o",
                str(output),
            ]
        )
    assert not stopped.value.code
    out = capsys.readouterr().out
    assert "temporal" in out
    assert "0.900 (median of 5 alternations)" in out
    result = json.loads(output.read_text())
    assert [(row["method"], row["mode"]) for row in result["measurements"]] == [("pi", "plain"), ("temporal", "plain")]
    pi, temporal = result["measurements"]
    for row in (pi, temporal):
        assert row["images_per_second"] == pytest.approx(100 / (row["microseconds_per_step"] / 1e6))
        assert 0 < row["share_of_matrix_rate"] < 1
        assert row["notes"] == []
        assert 0.05 < row["peak_memory_gib"] < 20
        assert (row["graphs_compiled"], row["graphs_from_cache"]) == (0, 0)
    assert result["environment"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--steps", "0"], "0 steps; expected at least 1"),
        (["--methods", "temporel"], "did you mean 'temporal'"),
        (["--modes", "plane"], "did you mean 'plain'"),
        (["--kernels"], "measured on a GPU only"),
        (["--modes", ""], "there is no mode ''"),
        (["--precision", "tf32"], "precision 'tf32' was asked for on a cpu"),
        (["--data-dir", "there"], "CIFAR-10's files were given (there), but a CPU is measured on digits"),
        (["--output", "."], ". cannot be written (Is a directory)"),
    ],
)
def test_bad_words_get_one_sentence(words, sentence, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--device", "cpu", *words])
    assert stopped.value.code == 1
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def session():
    data = sources.load("digits")
    config = steps.config_for("temporal", data, CPU).with_overrides(
        ["network.dropout=0", "network.noise=0", "method.unseen_rows=zero"]
    )
    with torch_settings(config.training, CPU, 0):
        return steps.build_session(config, data, CPU, [])


def test_the_hand_written_loop_computes_what_our_step_computes():
    """Else the comparison of their speeds would mean nothing. Adam's epsilon stands elsewhere, hence the tolerance."""
    ours = session()
    loop = plain_loop.PlainLoop(ours)
    order = ours.loader.order(0)[:5]
    for rows in order:
        ours.step(rows)
        loop.step(rows)
    theirs = torch.cat([p.detach().reshape(-1) for p in loop.network.parameters()])
    moved = ours.optimizer.flat - session().optimizer.flat
    assert (ours.optimizer.flat - theirs).norm() < 0.01 * moved.norm()
    for name, buffer in ours.network.named_buffers():
        torch.testing.assert_close(loop.network.get_buffer(name), buffer, rtol=0.01, atol=1e-4)
    visited = order.flatten()
    loop_predictions, predictions = loop.predictions[visited], ours.method.ensemble.pending[visited]
    torch.testing.assert_close(loop_predictions, predictions, rtol=0.01, atol=1e-3)
    assert (loop_predictions.sum(dim=1) - 1).abs().max() < 1e-5


def test_the_comparison_times_both_in_turns(monkeypatch):
    """Our steps are made to take 2 ms and the loop's 1 ms."""
    turns = []

    def passing(name, seconds):
        def time_steps(*arguments):
            turns.append(name)
            return seconds

        return time_steps

    monkeypatch.setattr(plain_loop, "time_steps", passing("ours", 0.002))
    monkeypatch.setattr(plain_loop.PlainLoop, "time_steps", passing("loop", 0.001))
    result = plain_loop.against_plain_loop(sources.load("digits"), steps=3)
    assert turns == ["ours", "loop"] * 6
    assert (result["median_ratio"], result["ratios"], result["steps_per_turn"]) == (2, [2.0] * 5, 3)


def test_operations_are_counted_per_view():
    ours = session()
    once = steps.step_flops(ours)
    ours.method.num_views = 2
    assert steps.step_flops(ours) == 2 * once
    # conv1b alone: 100 images x 64 pixels x 24 x 24 x 9 products, two operations each, three passes
    assert once > 3 * 2 * 100 * 64 * 24 * 24 * 9


def test_growth_covers_each_size_and_times_every_step_and_the_end_of_the_epoch(monkeypatch):
    """On a clock that only steps and the ends of epochs move: 3 and 50 seconds."""
    clock = [0.0]

    def taking(seconds, then):
        def work(self, *arguments):
            clock[0] += seconds
            return then(self, *arguments)

        return work

    monkeypatch.setattr(growth.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Step, "__call__", taking(3, lambda self, rows: None))
    monkeypatch.setattr(Temporal, "end_epoch", taking(50, lambda self: None))
    monkeypatch.setattr(growth, "CPU_SIZES", ((200, 2), (400, 20)))
    monkeypatch.setattr(growth, "EPOCHS", 2)
    small, large = growth.time_epochs(CPU)
    assert (small["rows"], small["classes"], large["rows"], large["classes"]) == (200, 2, 400, 20)
    assert (small["seconds_per_epoch"], large["seconds_per_epoch"]) == (2 * 3 + 50, 4 * 3 + 50)
    for row in (small, large):
        assert row["microseconds_per_row"] == pytest.approx(1e6 * row["seconds_per_epoch"] / row["rows"])
        assert row["last_epoch_over_first"] == 1


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        (
            "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
            "convolutions, forward",
        ),
        ("cutlass_tensorop_bf16_s16816wgrad_optimized_bf16_128x128_32x4_nhwc", "convolutions, weight gradient"),
        ("_add_up_gradient", "our kernels, backward"),
        ("_add_up", "our kernels, forward"),
        ("Memset (Device)", "clearing memory"),
        ("triton_poi_fused_add_mul_3", "kernels of the compiler"),
        ("nvjet_tst_64x32_64x16_2x1_v_bz_TNN", "matrix products"),
        ("void at::native::something_new<float>", "everything else"),
    ],
)
def test_kernels_are_told_apart_by_name(kernel, kind):
    assert kernel_times.kind_of(kernel) == kind
