"""A process that owns a supervisor, for tests that kill or interrupt it: python owner.py BODY LOG_DIR [PRELOAD...].

It has no `if __name__ == "__main__"` on purpose: a rank that imports its owner's main module would run it again.
Prints the outcome's kind, or "interrupted". At SIGUSR2 a thread beside the main one receives SIGINT.
"""

import signal
import sys
import threading
from pathlib import Path

from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.supervisor import Supervisor
from tests.unit.prove.execution.ranks import marks  # noqa: F401  (so that the ranks keep the mark)

_, body, log_dir, fresh, *preload = sys.argv


def interrupt_this_thread() -> None:
    signal.sigwait([signal.SIGUSR2])
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
threading.Thread(target=interrupt_this_thread, daemon=True).start()
with Supervisor(preload=preload) as supervisor:
    try:
        outcome = supervisor.run(
            RankJob(
                target=f"tests.unit.prove.execution.ranks.bodies:{body}",
                kwargs={},
                world_size=2,
                path=(),
                env={},
                deadline_s=3600.0,  # longer than any test waits, so that a lost Ctrl-C is seen
                log_dir=Path(log_dir),
                fresh=fresh == "fresh",
            )
        )
    except KeyboardInterrupt:
        sys.stdout.write("interrupted\n")
    else:
        sys.stdout.write(f"{outcome.kind.value}\n")
