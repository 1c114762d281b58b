"""The results of cases that need no process: they are unavailable here, or cached with the same content."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from matrix.ground.cases.cells import on_python
from matrix.ground.cases.machine_requirements import lacks
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.folders import with_site
from matrix.ground.catalog.machine import Machine
from matrix.ground.catalog.model import Catalog
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.prove.execution.cache_key import case_key
from matrix.prove.execution.engine import Engine, offer_of
from matrix.prove.execution.reproduction import not_run
from matrix.prove.planning.rerun import reproduce_line
from matrix.prove.provision import configuration
from matrix.prove.provision.case_overlays import overlay_digest, overlay_specs
from matrix.prove.provision.host import ExecutionSite
from matrix.prove.store.history import History


class AtOnce:
    """Returns the records of cases that need no process.

    `run` is the name of the run that they belong to, `environ` its variables.
    """

    def __init__(
        self,
        catalog: Catalog,
        engine: Engine,
        site: ExecutionSite,
        history: History,
        run: str,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._catalog, self._site, self._history, self._run = catalog, site, history, run
        self._environ, self._settings = environ, configuration.load(environ)
        self._installed = cache(engine.installed)  # 20 ms per environment, which hundreds of cases share
        self._offer = cache(lambda base: offer_of(catalog, engine, base, self._settings))

    def unavailable(self, planned: Planned) -> Record | None:
        """Return the record of a case that lacks something, with all that it lacks; None if it can run."""
        offer = self._offer(planned.cell.base)
        lack = self._site.lack(self._catalog, planned, offer)
        if lack is None:
            return None
        complete = replace(offer, lack="", clones=None)  # what the site lacks when base and clones are there
        missing = [lack, *lacks(self._catalog, planned, offer, Machine())]
        missing += filter(None, [self._site.lack(self._catalog, planned, complete)])
        outcome = Outcome(OutcomeKind.UNAVAILABLE, lack.text, lacks=tuple(dict.fromkeys(missing)))
        return not_run(planned, self._catalog, outcome, self._run)

    def cached(self, planned: Planned) -> Record | None:
        """Return the cached record of a case with the same content, None if it must run."""
        if planned.level is Level.GPU:
            return None  # it also depends on the GPUs and the user-mode driver, which are unknown before the case runs
        contents = self._installed(planned.cell.base)
        if contents is None:
            return None
        case = on_python(self._catalog, planned, contents.minor)
        try:
            parts = filter(None, (case, case.writer))
            specs = [spec for part in parts for spec in overlay_specs(part, contents, self._settings)]
            digests = map(overlay_digest, specs)
            failure = self._catalog.failure(case.failure)
            content = case_key(case, failure, contents, digests, self._site, contents.image)
            record = self._history.cached(content)
        except MatrixError:  # of a source, which the case reports when it runs, or of the history, as the report will
            return None
        if record is None or record.key != case.key:
            return None
        line = reproduce_line(case, with_site(self._environ, *self._catalog.site))
        return replace(record, planned=case, run=self._run, reproduce=line)
