"""The commands that label data: suggest, label."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from selfens import console
from selfens.cli.options import (
    BackboneOption,
    DataOption,
    EncoderOption,
    IdColumn,
    LabelColumn,
    TextColumns,
    TrustOption,
    WeightsOption,
    encoder_of,
)
from selfens.cli.use import page_for
from selfens.console import complain, say
from selfens.errors import ConfigError, RunError, plural


def suggest(
    source: Annotated[Path, typer.Argument(metavar="DATA|RUN", help="Data without labels or with a few; or a run.")],
    count: Annotated[int, typer.Option("--count", "-n", help="How many rows.")] = 50,
    at_random: Annotated[
        bool, typer.Option("--random", help="Draw them: errors can be measured on such rows.")
    ] = False,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The CSV to fill in; or for other tools .json, .jsonl or a folder."),
    ] = Path("suggestions.csv"),
    label: LabelColumn = None,
    id_column: IdColumn = None,
    text: TextColumns = None,
    backbone: BackboneOption = None,
    weights: WeightsOption = None,
    encoder: EncoderOption = None,
    data: DataOption = None,
    trust_code: TrustOption = False,
) -> None:
    """Suggest which rows to label next: typical ones of data, or those that teach a run the most."""
    from selfens.data import interchange
    from selfens.files.tables import check_replaceable
    from selfens.labeling import project as projects
    from selfens.report.page import write_suggestions_page
    from selfens.tools import audit as auditing

    page = page_for(output)
    if interchange.is_for_tool(output):
        interchange.check_new(output)
    else:
        check_replaceable(output, auditing.SUGGESTION_COLUMNS, labels={})
    of_data = {"--label": label, "--id": id_column, "--text": text, "--backbone": backbone, "--encoder": encoder}
    novelty = None
    if projects.is_run(source):
        if given := [name for name, value in of_data.items() if value]:
            raise ConfigError(f"{given[0]} is for data, and {source} is a run, which knows it; leave it out.")
        trained = console.loaded(source, trust_code)
        encoded = trained.data(source=data)
        result = auditing.suggest_run(trained, count, at_random=at_random)
        novelty = None if trained.novelty is None else trained.novelty.score(encoded.inputs)
    else:
        if data is not None:
            raise ConfigError(f"--data says where the data of a run are now, and {source} is not a run; leave it out.")
        chosen = encoder_of(backbone, weights, encoder)
        columns = {"label": label, "id": id_column, "text": tuple(text or ()) or None}
        project = projects.open_project(source, encoder=chosen, columns=columns)
        with console.progress("encoding", len(project.rows)) as tell:
            encoded, usable = projects.encode(project, tell)
        result = projects.suggest(encoded, usable, count, way="random" if at_random else "cover")
    auditing.write_suggestions(output, result, encoded.dataset, novelty)
    write_suggestions_page(page, result, encoded)
    try:
        auditing.note_suggestions(result, encoded.dataset, at_random=at_random)
    except RunError as error:
        if not at_random:
            complain(f"warning: errors will also be measured on these rows, which are harder than others: {error}")
    all_rows = ", all that differ," if len(result.rows) < count else ""
    say(f"{plural(len(result.rows), 'row')} to label next{all_rows} written to {output}; {page} shows them")


def label(
    source: Annotated[Path, typer.Argument(metavar="DATA|RUN", help="A folder, table, text file, arrays, or a run.")],
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    text: TextColumns = None,
    backbone: BackboneOption = None,
    weights: WeightsOption = None,
    encoder: EncoderOption = None,
    every: Annotated[int, typer.Option(help="How many labels between two trainings.", min=1)] = 20,
    port: Annotated[int | None, typer.Option(help="Default: 8137, or a free one.", min=1, max=65535)] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    allow_others: Annotated[
        bool, typer.Option("--allow-others", help="Let others see and label the data, without encryption.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    trust_code: TrustOption = False,
) -> None:
    """Label data on a page in the browser; a model chooses the rows, and learns from the labels meanwhile."""
    from selfens.errors import require
    from selfens.labeling import project as projects

    require("label", "the page for labeling")
    from selfens.labeling import server

    if not server.is_loopback(host) and not allow_others:
        meaning = "anybody who sees the traffic or the address could see and label the data"
        raise ConfigError(f"--host {host} is open to other machines: {meaning}; add --allow-others if that is meant.")
    of_data = {"--label": label_column, "--id": id_column, "--text": text}
    if projects.is_run(source) and (given := [name for name, value in of_data.items() if value]):
        raise ConfigError(f"{given[0]} is for data, and {source} is a run, which knows it; leave it out.")
    columns = {"label": label_column, "id": id_column, "text": tuple(text or ()) or None}
    chosen = encoder_of(backbone, weights, encoder)
    project = projects.open_project(source, encoder=chosen, columns=columns, trust_code=trust_code)
    for note in project.data.notes:
        complain(f"note: {note}")

    def tell(address: str) -> None:
        say(f"{plural(len(project.rows), 'row')}; labels are kept in {project.journal}")
        if allow_others:
            say("others can see and label the data if they have this address; the traffic is not encrypted")
        say(f"label at {address}")
        say("Ctrl-C ends it; nothing is lost, and the same command goes on")
        if browser:
            import webbrowser

            with contextlib.suppress(Exception):  # without a browser, the address is there to be opened
                webbrowser.open(address)

    with console.interruptible():
        server.serve(project, host=host, port=port, every=every, tell=tell)
