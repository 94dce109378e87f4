"""A process that runs a user's code ends as any program does, whatever that code has left in it."""

from __future__ import annotations

import subprocess
import sys

from tests.tools import ROOT

ENDS = """
import atexit, concurrent.futures, multiprocessing, os, sys, threading, time, weakref
from workers.runtime import last_words
from workers.runtime.last_words import run_to_end

def late(): time.sleep(0.1); sys.stdout.write("thread\\n")
def returns(): atexit.register(print, "handler"); threading.Thread(target=late).start()
def exits(): sys.exit(7)
def says(): sys.exit("the reason")
def breaks(): raise ValueError("broken")
def pools():
    pool = concurrent.futures.ThreadPoolExecutor()
    pool.submit(time.sleep, 0.1)
    pool.submit(late)

for_ever = threading.Event().wait
def leaves(*made):
    atexit.register(print, "handler")
    for one in made: one.start()
    sys.exit(7)
def left_thread(): leaves(threading.Thread(target=for_ever, name="lasting"))
def left_threads(): leaves(*(threading.Thread(target=late) for _ in "ab"), threading.Thread(target=for_ever))
def left_work(): concurrent.futures.ThreadPoolExecutor().submit(for_ever); leaves()
def left_child(): leaves(multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)))
def lasting_handler(): atexit.register(for_ever); sys.exit(7)
def broken_handler(): atexit.register(breaks); leaves()
def ending_handler(): atexit.register(exits); leaves()
def unregisters(): print("unregistered")
unregisters.__module__ = "torch.library"
def finalizers():
    for function in (lambda: print("finalizer"), unregisters): weakref.finalize(leaves, function)

other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
other.start()
whole = returns, exits, says, breaks, pools, finalizers
cut = left_thread, left_threads, left_work, lasting_handler
for command in (*whole, left_child, broken_handler, ending_handler, *cut):
    last_words._THREAD_SECONDS = last_words._HANDLER_SECONDS = 0.3 if command in cut else 60
    print(f"; {command.__name__}:", flush=True)
    if not (pid := os.fork()):
        run_to_end(command)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print("; other:", other.is_alive())
other.kill()
"""


def test_it_waits_for_threads_and_handlers_and_for_none_that_never_ends() -> None:
    """Its code is the program's, what was said is written, and processes of the one that it was forked from live."""
    done = subprocess.run([sys.executable, "-c", ENDS], cwd=ROOT, capture_output=True, text=True, check=True)
    found = (part.split() for part in done.stdout.split(";")[1:])
    assert {name.removesuffix(":"): said for name, *said in found} == {
        "returns": ["thread", "handler", "0"],
        "exits": ["7"],
        "says": ["1"],
        "breaks": ["1"],
        "pools": ["thread", "0"],
        "finalizers": ["finalizer", "0"],
        "left_child": ["handler", "7"],
        "broken_handler": ["handler", "7"],
        "ending_handler": ["handler", "7"],
        "left_thread": ["handler", "7"],
        "left_threads": ["thread", "thread", "handler", "7"],
        "left_work": ["handler", "7"],
        "lasting_handler": ["7"],
        "other": ["True"],
    }
    assert "the reason\n" in done.stderr
    assert "ValueError: broken\n" in done.stderr
    assert "names=lasting" in done.stderr
