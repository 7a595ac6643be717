"""Threads that run machine code without Python.

The pool's threads are native: they look for work for a fraction of a millisecond, then sleep on a condition variable.
Who wakes them lets go of the mutex first, or they would wait for it at once; a thread that was about to sleep is asleep
by then, or has seen the loop. One parallel loop runs at a time; a caller that finds the pool busy runs its own loop
alone, so nothing can deadlock and no result depends on who ran what. Each thread has a range of the tasks, the same in
every loop of so many, so that it meets what it read and wrote the time before in its own cache; it claims them one by
one from the range's counter, then those that are left of other ranges, which balances them.

A thread keeps off the processor of whoever calls it: a scheduler that packs threads, or that has no idle processor when
a sleeper is woken, puts both on one, where the sleeper waits until the loop is over, call after call. So it takes that
processor out of its affinity before it sleeps, and where it finds itself beside the caller all the same. An affinity
that somebody else gave it in the meantime is the one that it starts from.

The pool is never taken down: its memory and code stay for the life of the process. After a fork the child begins anew.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import threading
from typing import Any

from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import host
from tileweave.kept import lock_of_process

# The pool's memory, in bytes from its start. `word` holds generation << 20 | open << 16 | limit << 8 | inside.
_LOCK, _WORD, _FUNCTION, _CONTEXT, _TASKS, _PLACE, _SLEEPERS, _MUTEX, _CONDITION, _NEXT = (
    0,
    64,
    192,
    200,
    208,
    216,
    256,
    320,
    576,
    1024,
)
_SIZE = 1024 + 256 * 64  # a line of the cache for the counter of each range
_SPINS = 10_000
"""How often a thread without work looks for some before it sleeps: some 0.3 ms in all, since to be woken takes longer
than the threads of a loop, or two calls, are apart."""
_POLITE = 2048
"""After so many it offers its processor to whoever wants it, now and then."""
_MOST_THREADS = 255
"""The word that threads share has 8 bits for how many may join a loop, and 8 for how many have."""

_PLACES = """
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal i32 @place() nounwind alwaysinline {
  %place = call i32 @sched_getcpu()
  ret i32 %place
}

; state: the processors that this thread gave itself, all that it may have, and the one that it left out
define internal void @apart(ptr %state, i32 %place) nounwind noinline {
entry:
  %found = alloca i1024, align 8
  %known = icmp sge i32 %place, 0
  br i1 %known, label %ask, label %done
ask:
  %refused = call i32 @sched_getaffinity(i32 0, i64 128, ptr %found)
  %fails = icmp ne i32 %refused, 0
  br i1 %fails, label %done, label %asked
asked:
  %at.whole = getelementptr i8, ptr %state, i64 128
  %at.left = getelementptr i8, ptr %state, i64 256
  store i32 %place, ptr %at.left, align 8
  %now = load i1024, ptr %found, align 8
  %own = load i1024, ptr %state, align 8
  %before = load i1024, ptr %at.whole, align 8
  %mine = icmp eq i1024 %now, %own
  %whole = select i1 %mine, i1024 %before, i1024 %now
  %number = zext i32 %place to i1024
  %bit = shl i1024 1, %number
  %others = xor i1024 %bit, -1
  %rest = and i1024 %whole, %others
  %some = icmp ne i1024 %rest, 0
  %new = icmp ne i1024 %rest, %now
  %wanted = and i1 %some, %new
  br i1 %wanted, label %move, label %done
move:
  store i1024 %rest, ptr %state, align 8
  store i1024 %whole, ptr %at.whole, align 8
  %moved = call i32 @sched_setaffinity(i32 0, i64 128, ptr %state)
  br label %done
done:
  ret void
}
"""
_NO_PLACES = """
define internal i32 @place() nounwind alwaysinline {
  ret i32 -1
}

define internal void @apart(ptr %state, i32 %place) nounwind alwaysinline {
  ret void
}
"""
"""For systems that do not let a thread choose its processor."""

_SOURCE = """
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.smin.i64(i64, i64)
declare void PAUSE_TYPE

define internal void @tasks(ptr %pool, ptr %function, ptr %context, i64 %count, i64 %threads, i64 %thread) nounwind {
entry:
  %next = getelementptr i8, ptr %pool, i64 NEXT
  %ranges = call i64 @llvm.smin.i64(i64 %count, i64 %threads)
  %own = urem i64 %thread, %ranges
  br label %range
range:
  %range.number = phi i64 [ %own, %entry ], [ %following, %leave ]
  %left = phi i64 [ %ranges, %entry ], [ %fewer, %leave ]
  %after = add i64 %range.number, 1
  %before.end = mul i64 %after, %count
  %end = udiv i64 %before.end, %ranges
  %counter = getelementptr [8 x i64], ptr %next, i64 %range.number
  br label %look
look:
  %seen = load atomic i64, ptr %counter monotonic, align 8
  %some = icmp slt i64 %seen, %end
  br i1 %some, label %claim, label %leave
claim:
  %task = atomicrmw add ptr %counter, i64 1 seq_cst
  %more = icmp slt i64 %task, %end
  br i1 %more, label %run, label %leave
run:
  call void %function(ptr %context, i64 %task, i64 %thread)
  br label %look
leave:
  %last = icmp eq i64 %after, %ranges
  %following = select i1 %last, i64 0, i64 %after
  %fewer = sub i64 %left, 1
  %again = icmp sgt i64 %fewer, 0
  br i1 %again, label %range, label %done
done:
  ret void
}

define void @run(ptr %pool, ptr %function, ptr %context, i64 %count, i64 %threads, i64 %thread) nounwind {
entry:
  %lock = getelementptr i8, ptr %pool, i64 LOCK
  %word = getelementptr i8, ptr %pool, i64 WORD
  %next = getelementptr i8, ptr %pool, i64 NEXT
  %few = icmp slt i64 %threads, 2
  %one = icmp slt i64 %count, 2
  %alone = or i1 %few, %one
  br i1 %alone, label %serial, label %try
try:
  %pair = cmpxchg ptr %lock, i64 0, i64 1 seq_cst seq_cst
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %begin, label %serial
serial:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %each, label %end
each:
  %i = phi i64 [ 0, %serial ], [ %j, %each ]
  call void %function(ptr %context, i64 %i, i64 %thread)
  %j = add i64 %i, 1
  %again = icmp slt i64 %j, %count
  br i1 %again, label %each, label %end
end:
  ret void
begin:
  %at.function = getelementptr i8, ptr %pool, i64 FUNCTION
  %at.context = getelementptr i8, ptr %pool, i64 CONTEXT
  %at.tasks = getelementptr i8, ptr %pool, i64 TASKS
  store ptr %function, ptr %at.function, align 8
  store ptr %context, ptr %at.context, align 8
  store i64 %count, ptr %at.tasks, align 8
  %at.place = getelementptr i8, ptr %pool, i64 PLACE
  %place = call i32 @place()
  store atomic i32 %place, ptr %at.place monotonic, align 8
  %ranges = call i64 @llvm.smin.i64(i64 %count, i64 %threads)
  br label %share
share:
  %range.number = phi i64 [ 0, %begin ], [ %following, %share ]
  %before = mul i64 %range.number, %count
  %first = udiv i64 %before, %ranges
  %counter = getelementptr [8 x i64], ptr %next, i64 %range.number
  store atomic i64 %first, ptr %counter monotonic, align 8
  %following = add i64 %range.number, 1
  %shared = icmp slt i64 %following, %ranges
  br i1 %shared, label %share, label %open
open:
  %old = load atomic i64, ptr %word seq_cst, align 8
  %generation = lshr i64 %old, 20
  %newer = add i64 %generation, 1
  %high = shl i64 %newer, 20
  %limit = shl i64 %threads, 8
  %opened = or i64 %high, 65536
  %fresh = or i64 %opened, %limit
  store atomic i64 %fresh, ptr %word seq_cst, align 8
  %at.sleepers = getelementptr i8, ptr %pool, i64 SLEEPERS
  %sleepers = load atomic i64, ptr %at.sleepers seq_cst, align 8
  %asleep = icmp sgt i64 %sleepers, 0
  br i1 %asleep, label %wake, label %work
wake:
  %mutex = getelementptr i8, ptr %pool, i64 MUTEX
  %condition = getelementptr i8, ptr %pool, i64 CONDITION
  %w0 = call i32 @pthread_mutex_lock(ptr %mutex)
  %w1 = call i32 @pthread_mutex_unlock(ptr %mutex)
  %w2 = call i32 @pthread_cond_broadcast(ptr %condition)
  br label %work
work:
  call void @tasks(ptr %pool, ptr %function, ptr %context, i64 %count, i64 %threads, i64 0)
  %closed = atomicrmw and ptr %word, i64 -65537 seq_cst
  br label %wait
wait:
  %turn = phi i64 [ 0, %work ], [ %turned, %rest ]
  %now = load atomic i64, ptr %word seq_cst, align 8
  %inside = and i64 %now, 255
  %busy = icmp ne i64 %inside, 0
  br i1 %busy, label %still, label %finish
still:
  call void PAUSE
  %turned = add i64 %turn, 1
  %long = icmp sgt i64 %turn, 2000
  br i1 %long, label %yield, label %rest
yield:
  %y = call i32 @sched_yield()
  br label %rest
rest:
  br label %wait
finish:
  store atomic i64 0, ptr %lock seq_cst, align 8
  ret void
}

define ptr @worker(ptr %argument) nounwind {
entry:
  %pool = load ptr, ptr %argument, align 8
  %at.thread = getelementptr i8, ptr %argument, i64 8
  %thread = load i64, ptr %at.thread, align 8
  %word = getelementptr i8, ptr %pool, i64 WORD
  %at.sleepers = getelementptr i8, ptr %pool, i64 SLEEPERS
  %mutex = getelementptr i8, ptr %pool, i64 MUTEX
  %condition = getelementptr i8, ptr %pool, i64 CONDITION
  %at.place = getelementptr i8, ptr %pool, i64 PLACE
  %state = alloca [264 x i8], align 8
  %at.left = getelementptr i8, ptr %state, i64 256
  call void @llvm.memset.p0.i64(ptr %state, i8 0, i64 256, i1 false)
  store i32 -1, ptr %at.left, align 8
  br label %idle
idle:
  %last = phi i64 [ 0, %entry ], [ %seen, %skip ], [ %seen, %ran ]
  %first = phi i64 [ 0, %entry ], [ %patience, %skip ], [ 0, %ran ]
  br label %spin
spin:
  %turn = phi i64 [ %first, %idle ], [ %turned, %pause ], [ %turned, %offer ]
  %now = load atomic i64, ptr %word seq_cst, align 8
  %generation = lshr i64 %now, 20
  %new = icmp ne i64 %generation, %last
  br i1 %new, label %found, label %pause.or.sleep
pause.or.sleep:
  %long = icmp sgt i64 %turn, SPINS
  br i1 %long, label %sleep, label %pause
pause:
  call void PAUSE
  %turned = add i64 %turn, 1
  %of.128 = and i64 %turned, 127
  %due = icmp eq i64 %of.128, 0
  %late = icmp sgt i64 %turned, POLITE
  %polite = and i1 %due, %late
  br i1 %polite, label %offer, label %spin
offer:
  %s5 = call i32 @sched_yield()
  br label %spin
sleep:
  %place.then = load atomic i32, ptr %at.place monotonic, align 8
  %left.out = load i32, ptr %at.left, align 8
  %met = icmp ne i32 %place.then, %left.out
  br i1 %met, label %part, label %lie
part:
  call void @apart(ptr %state, i32 %place.then)
  br label %lie
lie:
  %s0 = call i32 @pthread_mutex_lock(ptr %mutex)
  %s1 = atomicrmw add ptr %at.sleepers, i64 1 seq_cst
  br label %check
check:
  %then = load atomic i64, ptr %word seq_cst, align 8
  %then.generation = lshr i64 %then, 20
  %same = icmp eq i64 %then.generation, %last
  br i1 %same, label %doze, label %awake
doze:
  %s2 = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %check
awake:
  %s3 = atomicrmw sub ptr %at.sleepers, i64 1 seq_cst
  %s4 = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %found
found:
  %seen.word = phi i64 [ %now, %spin ], [ %then, %awake ]
  %place.caller = load atomic i32, ptr %at.place monotonic, align 8
  %place.own = call i32 @place()
  %beside = icmp eq i32 %place.caller, %place.own
  br i1 %beside, label %move, label %join
move:
  call void @apart(ptr %state, i32 %place.own)
  br label %join
join:
  %expected = phi i64 [ %seen.word, %found ], [ %seen.word, %move ], [ %actual, %retry ]
  %seen = lshr i64 %expected, 20
  %open.bit = and i64 %expected, 65536
  %open = icmp ne i64 %open.bit, 0
  %limit.high = lshr i64 %expected, 8
  %limit = and i64 %limit.high, 255
  %allowed = icmp slt i64 %thread, %limit
  %wanted = and i1 %open, %allowed
  br i1 %wanted, label %enter, label %skip
skip:
  %patience = select i1 %allowed, i64 0, i64 ENOUGH
  br label %idle
enter:
  %one.more = add i64 %expected, 1
  %pair = cmpxchg ptr %word, i64 %expected, i64 %one.more seq_cst seq_cst
  %actual = extractvalue { i64, i1 } %pair, 0
  %joined = extractvalue { i64, i1 } %pair, 1
  br i1 %joined, label %ran, label %retry
retry:
  br label %join
ran:
  %at.function = getelementptr i8, ptr %pool, i64 FUNCTION
  %at.context = getelementptr i8, ptr %pool, i64 CONTEXT
  %at.tasks = getelementptr i8, ptr %pool, i64 TASKS
  %function = load ptr, ptr %at.function, align 8
  %context = load ptr, ptr %at.context, align 8
  %count = load i64, ptr %at.tasks, align 8
  call void @tasks(ptr %pool, ptr %function, ptr %context, i64 %count, i64 %limit, i64 %thread)
  %left = atomicrmw sub ptr %word, i64 1 seq_cst
  br label %idle
}
"""


@functools.cache
def _code() -> Code:
    target = host()
    if target.has("sse2"):
        pause, pause_type = "@llvm.x86.sse2.pause()", "@llvm.x86.sse2.pause()"
    elif target.has("neon"):
        pause, pause_type = "@llvm.aarch64.hint(i32 1)", "@llvm.aarch64.hint(i32)"
    else:
        pause, pause_type = "@llvm.donothing()", "@llvm.donothing()"
    names = {
        "FUNCTION": _FUNCTION,
        "CONDITION": _CONDITION,
        "CONTEXT": _CONTEXT,
        "SLEEPERS": _SLEEPERS,
        "MUTEX": _MUTEX,
        "PLACE": _PLACE,
        "TASKS": _TASKS,
        "LOCK": _LOCK,
        "WORD": _WORD,
        "NEXT": _NEXT,
        "SPINS": _SPINS,
        "ENOUGH": _SPINS + 1,
        "POLITE": _POLITE,
    }
    source = (_PLACES if hasattr(os, "sched_setaffinity") else _NO_PLACES) + _SOURCE
    for name, offset in names.items():
        source = source.replace(f"i64 {name}\n", f"i64 {offset}\n").replace(f", {name}\n", f", {offset}\n")
    source = source.replace("PAUSE_TYPE", pause_type)
    return compile_ir(source.replace("PAUSE", pause), ("run", "worker"), target)


class Pool:
    """Native threads that share the tasks of one parallel loop at a time.

    ``address`` is what machine code passes to ``run``; ``run`` is the address of that function.
    """

    def __init__(self) -> None:
        code = _code().addresses  # the code itself is never dropped: its threads run for the life of the process
        self.run = code["run"]
        self._worker = code["worker"]
        self._lock = threading.Lock()
        self._threads = 1
        self._memory = ctypes.create_string_buffer(_SIZE + 64)
        self._keep(self._memory)
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        try:
            process = ctypes.CDLL(None)
            self._create: Any = process.pthread_create
            process.pthread_mutex_init(ctypes.c_void_p(self.address + _MUTEX), None)
            process.pthread_cond_init(ctypes.c_void_p(self.address + _CONDITION), None)
        except (OSError, AttributeError, TypeError):
            self._create = None  # no POSIX threads here: every loop runs alone

    @staticmethod
    def _keep(memory: Any) -> None:
        """Threads may touch it until the process ends, which may be after Python has freed everything."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))

    def ensure(self, threads: int) -> None:
        """Have so many threads, the caller's own among them."""
        if threads <= self._threads or self._create is None:
            return
        with self._lock:
            masked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                while self._threads < min(threads, _MOST_THREADS):
                    argument = (ctypes.c_int64 * 2)(self.address, self._threads)
                    self._keep(argument)
                    handle = ctypes.c_void_p()
                    if self._create(ctypes.byref(handle), None, ctypes.c_void_p(self._worker), argument):
                        return  # the system allows no more: fewer threads, same values
                    self._threads += 1
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, masked)


_POOL: list[Pool] = []
_POOL_LOCK = lock_of_process()


def pool(threads: int = 1) -> Pool:
    """The pool of this process, with at least so many threads."""
    if not _POOL:
        with _POOL_LOCK:
            if not _POOL:
                _POOL.append(Pool())
    _POOL[0].ensure(threads)
    return _POOL[0]


def _after_fork() -> None:
    _POOL.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
