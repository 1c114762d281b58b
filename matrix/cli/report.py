"""`megatrix report`."""

from __future__ import annotations

import argparse
from dataclasses import replace

from matrix.ask.check.table import build_table
from matrix.cli import results
from matrix.ground.catalog import loading
from matrix.ground.catalog.folders import FAILURES
from matrix.ground.verdicts.trend import NO_PASTS
from matrix.prove.execution import runner
from matrix.prove.store import stored_run as runs
from matrix.prove.store.history import History, with_history
from matrix.prove.store.paths import NIGHT, Paths
from matrix.prove.store.stored_run import Night, StoredRun
from matrix.show import site
from matrix.show.stack_map import stack_map
from matrix.show.terminal import json_object, plain, warn


def report_command(parsed: argparse.Namespace) -> int:
    """Write the pages and print the summary; return the exit status of the run."""
    if parsed.site:
        return publish(parsed)
    paths = Paths(parsed.out)
    folder = paths.run(parsed.run or results.newest(parsed.out, NIGHT))

    def render(history: History) -> Night:
        return site.render(StoredRun(folder), parsed.out, history, loading.load())

    night = with_history(paths.history, render, warn)
    if parsed.json:
        print(json_object("records/1", (record.to_json() for record in night.records)))
    else:
        results.print_summary(night, parsed.out)
    return runner.exit_status(night)


def publish(parsed: argparse.Namespace) -> int:
    """Write the site, with the results of a run where there is one.

    The failures of a site's own folders are not published by default.
    """
    catalog = loading.load() if parsed.private else loading.load(loading.FACTS, FAILURES)
    paths = Paths(parsed.out)
    run_id = parsed.run or (results.newest(parsed.out, NIGHT) if paths.runs() else "")
    night = runs.read(paths.run(run_id)) if run_id else Night("", ())
    night = replace(night, records=tuple(site.published(catalog, night.records)))
    site.write_site(parsed.site, stack_map(catalog, build_table(catalog), night.records, NO_PASTS), night)
    print(plain(str(parsed.site / "index.html")))
    return 0
