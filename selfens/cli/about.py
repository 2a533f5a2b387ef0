"""The commands about selfens itself: presets, methods, demo, bench."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from selfens.cli.options import Device
from selfens.console import complain, say


def presets(name: Annotated[str | None, typer.Argument(help="Print the full config of this preset.")] = None) -> None:
    """List the presets, or print one."""
    from selfens.presets import PRESETS, about, get

    if name is not None:
        for line in get(name).to_json().splitlines():
            say(line)
        return
    for preset in PRESETS:
        say(f"{preset:<20} {about(preset)}")
    say("To train one: selfens train NAME")


def methods(name: Annotated[str | None, typer.Argument(help="List this method's options.")] = None) -> None:
    """List the methods, or the options of one. Set an option with --set method.OPTION=VALUE."""
    from selfens.methods import METHODS

    if name is None:
        for method in METHODS:
            say(f"{method:<16} {_summary(METHODS.find(method))}")
        return
    options = METHODS.find(name).Options.describe()
    say(f"{name}: {_summary(METHODS.find(name))}")
    for option, default, expected, doc in options:
        say(f"  method.{option} = {default}   ({expected})")
        say(f"      {doc}")
    if not options:
        say("  no options")


def demo(
    directory: Annotated[Path, typer.Option("--runs", help="Directory of the runs; finished ones are kept.")] = Path(
        "runs/demo"
    ),
    jobs: Annotated[int | None, typer.Option(help="Parallel processes; default: one per core.")] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 5,
) -> None:
    """Compare four methods on real digits with 50 labels."""
    from selfens.demo import run_demo

    run_demo(directory, jobs=jobs, num_seeds=seeds)


def bench(
    device: Annotated[Device, typer.Option(help="Device to measure.")] = "auto",
    methods: Annotated[str, typer.Option(help="Methods to time, separated by commas.")] = "temporal,pi,supervised",
    modes: Annotated[str | None, typer.Option(help="Such as plain,compiled+captured; default: all.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of CIFAR-10, to use real images on a GPU.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps to time; by default 500 on a GPU, 60 on a CPU.")] = None,
    batch: Annotated[int, typer.Option(help="Rows per step.")] = 100,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the results to this file, as JSON.")
    ] = None,
) -> None:
    """Measure the speed of training steps on this machine."""
    from selfens import bench as measuring

    result = measuring.bench(
        device,
        methods=[name.strip() for name in methods.split(",")],
        modes=None if modes is None else [name.strip() for name in modes.split(",")],
        data_dir=str(data_dir) if data_dir else None,
        steps=steps,
        batch=batch,
        say=complain,
    )
    measuring.print_table(result)
    if output is not None:
        measuring.write_json(output, result)
        say(f"results written to {output}")


def _summary(kind: type) -> str:
    """Return the first line of the docstring of a class's module, or else of the class."""
    text = sys.modules[kind.__module__].__doc__ or kind.__doc__ or ""
    return next(iter(text.strip().splitlines()), "")
