"""Signals are answered at once, even while the main thread is inside a long call that is no Python."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

BUSY = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'a', b'b', 2_000_000_000)"
CODE = f"""
from odin_jax.interrupt import Interrupt
with Interrupt(quiet=QUIET) as interrupt:
    print("ready", flush=True)
    {BUSY}
"""


def busy(quiet: bool) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", CODE.replace("QUIET", str(quiet))], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_told_of_and_the_second_ends_the_process(number):
    process = busy(quiet=False)
    process.send_signal(number)
    assert process.stderr and process.stderr.readline() == "\n"
    assert "once more to stop at once" in process.stderr.readline()
    assert process.poll() is None
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number and "Traceback" not in errors


def test_a_rank_that_does_not_lead_says_nothing():
    process = busy(quiet=True)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM) and errors == ""


SWALLOWED = """
import os, signal, time
from odin_jax import cli
class Callback:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass
def dispatch(argv):
    call = Callback()
    del call
    time.sleep(60)
cli.dispatch = dispatch
cli.main([])
"""


def test_an_interrupt_inside_a_callback_is_not_lost():
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
