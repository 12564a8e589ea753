"""Threads that begin together while something traces them all run."""

from __future__ import annotations

import sys
import textwrap
from subprocess import run

SCRIPT = textwrap.dedent("""
    import sys, threading
    from tests.support.tracing import trace_threads_one_at_a_time

    def audit(event, args):
        sum(range(50)) if event == "sys.settrace" else None

    def trace(frame, event, arg):
        sys.settrace(None)
        return None

    trace_threads_one_at_a_time()
    sys.addaudithook(audit)
    sys.setswitchinterval(1e-6)
    threading.settrace(trace)
    ran = []
    for _ in range(300):
        threads = [threading.Thread(target=ran.append, args=(1,)) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(len(ran))
""")


def test_threads_that_begin_together_under_tracing_all_run() -> None:
    done = run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("3000", "")
