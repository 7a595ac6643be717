"""Native text that Python calls: rows of calls, and one call on array objects, with no Python between.

It reads what objects of NumPy and ctypes hold at fixed places (`OBJECT_DATA`); `calls.py` looks whether this
interpreter lays them out so, and writes the tables (``%head``) that it reads.
"""

from __future__ import annotations

import functools

from tileweave.backends.calls import Outcome
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import host
from tileweave.backends.host import OBJECT_DATA

_CALL = """\
  %call = getelementptr { ptr, ptr, ptr, ptr }, ptr %calls, i64 %k
  %function = load ptr, ptr %call
  %env.at = getelementptr ptr, ptr %call, i64 1
  %env = load ptr, ptr %env.at
  %named.at = getelementptr ptr, ptr %call, i64 2
  %named = load ptr, ptr %named.at
  %own.at = getelementptr ptr, ptr %call, i64 3
  %own = load ptr, ptr %own.at
  call void @name(ptr %env, ptr %named, ptr %own)
  call void %function(ptr %env)
"""
"""The k-th call of a row: function, environment, where that names operands (count, places; or nothing), addresses."""
_SOURCE = f"""
; %head: array type, wanted: count, rows, points: count, rows, calls: count, rows, spans, busy, arguments,
; PyEval_SaveThread, PyEval_RestoreThread, PyLong_FromLong, faults: count, rows
define ptr @call(ptr %self, ptr %objects, i64 %count) nounwind {{
  %result = call ptr @told(ptr %self, ptr %objects, i64 %count, i1 false)
  ret ptr %result
}}
define ptr @again(ptr %self, ptr %objects, i64 %count) nounwind {{
  %result = call ptr @told(ptr %self, ptr %objects, i64 %count, i1 true)
  ret ptr %result
}}
define internal ptr @told(ptr %self, ptr %objects, i64 %count, i1 %asked) nounwind {{
  %head.at = getelementptr i8, ptr %self, i64 {OBJECT_DATA}
  %head = load ptr, ptr %head.at
  %said = call i64 @guarded(ptr %head, ptr %objects, i64 %count, i1 %asked)
  %integer.at = getelementptr i64, ptr %head, i64 12
  %integer = load ptr, ptr %integer.at
  %result = call ptr %integer(i64 %said)
  ret ptr %result
}}

; the objects of a dict and what is given for the result, or a new one for None, run; the result, or None where that is
; no `Outcome` of DONE
; %head: head of @call, keys: count, rows, what makes the new one, None, Py_IncRef, Py_DecRef, PyDict_Size,
; PyDict_GetItem, PyObject_CallNoArgs; of an array that NumPy makes: type, rank (or -1), extents, PyArray_Empty; dict
define ptr @keyed(ptr %self, ptr %arguments, i64 %given) nounwind {{
entry:
  %head.at = getelementptr i8, ptr %self, i64 {OBJECT_DATA}
  %head = load ptr, ptr %head.at
  %row = load ptr, ptr %head
  %count.at = getelementptr i64, ptr %head, i64 1
  %count = load i64, ptr %count.at
  %keys.at = getelementptr i64, ptr %head, i64 2
  %keys = load ptr, ptr %keys.at
  %none.at = getelementptr i64, ptr %head, i64 4
  %none = load ptr, ptr %none.at
  %keep.at = getelementptr i64, ptr %head, i64 5
  %keep = load ptr, ptr %keep.at
  %drop.at = getelementptr i64, ptr %head, i64 6
  %drop = load ptr, ptr %drop.at
  %get.at = getelementptr i64, ptr %head, i64 8
  %get = load ptr, ptr %get.at
  %all = add i64 %count, 1
  %objects = alloca ptr, i64 %all
  %new.place = getelementptr ptr, ptr %objects, i64 %count
  %both = icmp eq i64 %given, 2
  br i1 %both, label %measure, label %refuse
measure:
  %dict = load ptr, ptr %arguments
  %out.at = getelementptr ptr, ptr %arguments, i64 1
  %out = load ptr, ptr %out.at
  %asked = icmp ne ptr %out, %none
  %dict.type.at = getelementptr i8, ptr %dict, i64 {OBJECT_DATA - 8}
  %dict.type = load i64, ptr %dict.type.at
  %wanted.type.at = getelementptr i64, ptr %head, i64 14
  %wanted.type = load i64, ptr %wanted.type.at
  %is.dict = icmp eq i64 %dict.type, %wanted.type
  br i1 %is.dict, label %sized, label %refuse
sized:
  %size.at = getelementptr i64, ptr %head, i64 7
  %size = load ptr, ptr %size.at
  %held = call i64 %size(ptr %dict)
  %complete = icmp eq i64 %held, %count
  br i1 %complete, label %each, label %refuse
each:
  %k = phi i64 [ 0, %sized ], [ %k.next, %found ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %take
one:
  %key.at = getelementptr ptr, ptr %keys, i64 %k
  %key = load ptr, ptr %key.at
  %object = call ptr %get(ptr %dict, ptr %key)
  %missing = icmp eq ptr %object, null
  br i1 %missing, label %give, label %found
found:
  call void %keep(ptr %object)  ; another thread may change the dict while the kernels run
  %object.at = getelementptr ptr, ptr %objects, i64 %k
  store ptr %object, ptr %object.at
  %k.next = add i64 %k, 1
  br label %each
take:
  br i1 %asked, label %write, label %make
write:
  call void %keep(ptr %out)
  br label %work
make:
  %make.at = getelementptr i64, ptr %head, i64 3
  %maker = load ptr, ptr %make.at
  %call.at = getelementptr i64, ptr %head, i64 9
  %call = load ptr, ptr %call.at
  %rank.at = getelementptr i64, ptr %head, i64 11
  %rank = load i64, ptr %rank.at
  %plain = icmp sge i64 %rank, 0
  br i1 %plain, label %allocate, label %ask
allocate:
  %kind.at = getelementptr i64, ptr %head, i64 10
  %kind = load ptr, ptr %kind.at
  %dims.at = getelementptr i64, ptr %head, i64 12
  %dims = load ptr, ptr %dims.at
  %empty.at = getelementptr i64, ptr %head, i64 13
  %empty = load ptr, ptr %empty.at
  %rank.narrow = trunc i64 %rank to i32
  call void %keep(ptr %kind)  ; for the new array
  %allocated = call ptr %empty(i32 %rank.narrow, ptr %dims, ptr %kind, i32 0)
  br label %made.new
ask:
  %asked.for = call ptr %call(ptr %maker)
  br label %made.new
made.new:
  %made = phi ptr [ %allocated, %allocate ], [ %asked.for, %ask ]
  %raised = icmp eq ptr %made, null
  br i1 %raised, label %give, label %work
work:
  %new = phi ptr [ %out, %write ], [ %made, %made.new ]
  store ptr %new, ptr %new.place
  %outcome = call i64 @guarded(ptr %row, ptr %objects, i64 %all, i1 %asked)
  %done = icmp eq i64 %outcome, {Outcome.DONE}
  br i1 %done, label %give, label %undo
undo:
  call void %drop(ptr %new)
  br label %give
give:
  %taken = phi i64 [ %k, %one ], [ %count, %made.new ], [ %count, %work ], [ %count, %undo ]
  %result = phi ptr [ %none, %one ], [ null, %made.new ], [ %new, %work ], [ %none, %undo ]
  br label %drops
drops:
  %d = phi i64 [ 0, %give ], [ %d.next, %dropped ]
  %d.more = icmp slt i64 %d, %taken
  br i1 %d.more, label %dropped, label %answer
dropped:
  %drop.place = getelementptr ptr, ptr %objects, i64 %d
  %drop.object = load ptr, ptr %drop.place
  call void %drop(ptr %drop.object)
  %d.next = add i64 %d, 1
  br label %drops
answer:
  %is.none = icmp eq ptr %result, %none
  br i1 %is.none, label %refuse, label %return
return:
  ret ptr %result
refuse:
  call void %keep(ptr %none)
  ret ptr %none
}}

; whether the objects fit, and apart where that is asked, and then the calls; an `Outcome`
define internal i64 @guarded(ptr %head, ptr %objects, i64 %count, i1 %asked) nounwind {{
entry:
  %busy = getelementptr i64, ptr %head, i64 8
  %arguments.at = getelementptr i64, ptr %head, i64 9
  %arguments = load i64, ptr %arguments.at
  %complete = icmp eq i64 %count, %arguments
  br i1 %complete, label %take, label %answer
take:
  %pair = cmpxchg ptr %busy, i64 0, i64 1 acq_rel monotonic
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %look, label %answer
look:
  %looked = call i64 @looked(ptr %head, ptr %objects)
  %fits = icmp eq i64 %looked, 0
  %compares = and i1 %fits, %asked
  br i1 %compares, label %compare, label %found
compare:
  %compared = call i64 @apart(ptr %head, ptr %objects)
  br label %found
found:
  %outcome = phi i64 [ %looked, %look ], [ %compared, %compare ]
  %ready = icmp eq i64 %outcome, 0
  br i1 %ready, label %work, label %give
work:
  call void @pointed(ptr %head, ptr %objects)
  %save.at = getelementptr i64, ptr %head, i64 10
  %save = load ptr, ptr %save.at
  %thread = call ptr %save()
  call void @run(ptr %head)
  %restore.at = getelementptr i64, ptr %head, i64 11
  %restore = load ptr, ptr %restore.at
  call void %restore(ptr %thread)
  %faulted = call i64 @faulted(ptr %head)
  br label %give
give:
  %became = phi i64 [ %outcome, %found ], [ %faulted, %work ]
  store atomic i64 0, ptr %busy release, align 8
  br label %answer
answer:
  %said = phi i64 [ {Outcome.MISFIT}, %entry ], [ {Outcome.MISFIT}, %take ], [ %became, %give ]
  ret i64 %said
}}

; keeps all but the caller from running these calls; whether nobody ran them
define i64 @claim(ptr %head) nounwind {{
  %busy = getelementptr i64, ptr %head, i64 8
  %pair = cmpxchg ptr %busy, i64 0, i64 1 acq_rel monotonic
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  %said = zext i1 %mine to i64
  ret i64 %said
}}

; whether a call has noted a fault, which is taken back; an Outcome
define i64 @faulted(ptr %head) nounwind {{
entry:
  %count.at = getelementptr i64, ptr %head, i64 13
  %count = load i64, ptr %count.at
  %rows.at = getelementptr i64, ptr %head, i64 14
  %rows = load ptr, ptr %rows.at
  br label %each
each:
  %k = phi i64 [ 0, %entry ], [ %k.next, %one ]
  %found = phi i64 [ 0, %entry ], [ %found.next, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %done
one:
  %at.at = getelementptr ptr, ptr %rows, i64 %k
  %at = load ptr, ptr %at.at
  %fault = load i64, ptr %at
  store i64 0, ptr %at
  %found.next = or i64 %found, %fault
  %k.next = add i64 %k, 1
  br label %each
done:
  %none = icmp eq i64 %found, 0
  %outcome = select i1 %none, i64 {Outcome.DONE}, i64 {Outcome.FAULT}
  ret i64 %outcome
}}

; whether the objects are what is wanted; an Outcome
define internal i64 @looked(ptr %head, ptr %objects) nounwind {{
entry:
  %type = load i64, ptr %head
  %wanted.count.at = getelementptr i64, ptr %head, i64 1
  %wanted.count = load i64, ptr %wanted.count.at
  %wanted.at = getelementptr i64, ptr %head, i64 2
  %wanted = load ptr, ptr %wanted.at
  br label %looks
looks:
  %w = phi i64 [ 0, %entry ], [ %w.next, %looked ]
  %w.more = icmp slt i64 %w, %wanted.count
  br i1 %w.more, label %look, label %done
look:
  %row = getelementptr {{ i64, i64, i64, ptr, i64 }}, ptr %wanted, i64 %w
  %number = load i64, ptr %row
  %object.at = getelementptr ptr, ptr %objects, i64 %number
  %object = load ptr, ptr %object.at
  %own.type.at = getelementptr i8, ptr %object, i64 {OBJECT_DATA - 8}
  %own.type = load i64, ptr %own.type.at
  %is.array = icmp eq i64 %own.type, %type
  br i1 %is.array, label %array, label %misfit
array:
  %rank.at = getelementptr i8, ptr %object, i64 {OBJECT_DATA + 8}
  %rank.narrow = load i32, ptr %rank.at
  %rank = sext i32 %rank.narrow to i64
  %own.dims.at = getelementptr i8, ptr %object, i64 {OBJECT_DATA + 16}
  %own.dims = load ptr, ptr %own.dims.at
  %own.strides.at = getelementptr i8, ptr %object, i64 {OBJECT_DATA + 24}
  %own.strides = load ptr, ptr %own.strides.at
  %own.kind.at = getelementptr i8, ptr %object, i64 {OBJECT_DATA + 40}
  %own.kind = load i64, ptr %own.kind.at
  %own.flags.at = getelementptr i8, ptr %object, i64 {OBJECT_DATA + 48}
  %own.flags = load i32, ptr %own.flags.at
  %kind.at = getelementptr i64, ptr %row, i64 1
  %kind = load i64, ptr %kind.at
  %wanted.rank.at = getelementptr i64, ptr %row, i64 2
  %wanted.rank = load i64, ptr %wanted.rank.at
  %dims.at = getelementptr i64, ptr %row, i64 3
  %dims = load ptr, ptr %dims.at
  %flags.at = getelementptr i64, ptr %row, i64 4
  %flags.wide = load i64, ptr %flags.at
  %flags = trunc i64 %flags.wide to i32
  %has.flags = and i32 %own.flags, %flags
  %flags.fit = icmp eq i32 %has.flags, %flags
  %kind.fits = icmp eq i64 %kind, %own.kind
  %rank.fits = icmp eq i64 %rank, %wanted.rank
  %some.fit = and i1 %flags.fit, %kind.fits
  %fits = and i1 %some.fit, %rank.fits
  br i1 %fits, label %extents, label %misfit
extents:
  %d = phi i64 [ 0, %array ], [ %d.next, %extent.fits ]
  %d.more = icmp slt i64 %d, %rank
  br i1 %d.more, label %extent, label %looked
extent:
  %own.dim.at = getelementptr i64, ptr %own.dims, i64 %d
  %own.dim = load i64, ptr %own.dim.at
  %own.stride.at = getelementptr i64, ptr %own.strides, i64 %d
  %own.stride = load i64, ptr %own.stride.at
  %dim.at = getelementptr {{ i64, i64 }}, ptr %dims, i64 %d
  %dim = load i64, ptr %dim.at
  %stride.at = getelementptr i64, ptr %dim.at, i64 1
  %stride = load i64, ptr %stride.at
  %dim.fits = icmp eq i64 %dim, %own.dim
  %stride.fits = icmp eq i64 %stride, %own.stride
  %both.fit = and i1 %dim.fits, %stride.fits
  br i1 %both.fit, label %extent.fits, label %misfit
extent.fits:
  %d.next = add i64 %d, 1
  br label %extents
looked:
  %w.next = add i64 %w, 1
  br label %looks
done:
  ret i64 {Outcome.DONE}
misfit:
  ret i64 {Outcome.MISFIT}
}}

; has the environments name the operands that lie in objects
define internal void @pointed(ptr %head, ptr %objects) nounwind {{
entry:
  %points.count.at = getelementptr i64, ptr %head, i64 3
  %points.count = load i64, ptr %points.count.at
  %points.at = getelementptr i64, ptr %head, i64 4
  %points = load ptr, ptr %points.at
  br label %points.loop
points.loop:
  %p = phi i64 [ 0, %entry ], [ %p.next, %point ]
  %p.more = icmp slt i64 %p, %points.count
  br i1 %p.more, label %point, label %done
point:
  %point.row = getelementptr {{ i64, i64, ptr }}, ptr %points, i64 %p
  %from = load i64, ptr %point.row
  %from.object.at = getelementptr ptr, ptr %objects, i64 %from
  %from.object = load ptr, ptr %from.object.at
  %data.at = getelementptr i8, ptr %from.object, i64 {OBJECT_DATA}
  %data = load i64, ptr %data.at
  %offset.at = getelementptr i64, ptr %point.row, i64 1
  %offset = load i64, ptr %offset.at
  %word.at = getelementptr i64, ptr %point.row, i64 2
  %word = load ptr, ptr %word.at
  %address = add i64 %data, %offset
  store i64 %address, ptr %word
  %p.next = add i64 %p, 1
  br label %points.loop
done:
  ret void
}}

; whether results lie apart from each other and from what is read, but for what they may be written over; an Outcome
; %spans: objects: count, rows, results: count, all: count, first bytes, lengths, what may be written over
define internal i64 @apart(ptr %head, ptr %objects) nounwind {{
entry:
  %spans.at = getelementptr i64, ptr %head, i64 7
  %spans = load ptr, ptr %spans.at
  %moving = load i64, ptr %spans
  %rows.at = getelementptr i64, ptr %spans, i64 1
  %rows = load ptr, ptr %rows.at
  %results.at = getelementptr i64, ptr %spans, i64 2
  %results = load i64, ptr %results.at
  %all.at = getelementptr i64, ptr %spans, i64 3
  %all = load i64, ptr %all.at
  %starts.at = getelementptr i64, ptr %spans, i64 4
  %starts = load ptr, ptr %starts.at
  %lengths.at = getelementptr i64, ptr %spans, i64 5
  %lengths = load ptr, ptr %lengths.at
  %over.at = getelementptr i64, ptr %spans, i64 6
  %over = load ptr, ptr %over.at
  br label %objects.loop
objects.loop:
  %o = phi i64 [ 0, %entry ], [ %o.next, %object ]
  %o.more = icmp slt i64 %o, %moving
  br i1 %o.more, label %object, label %results.loop
object:
  %row = getelementptr {{ i64, i64, i64 }}, ptr %rows, i64 %o
  %place = load i64, ptr %row
  %number.at = getelementptr i64, ptr %row, i64 1
  %number = load i64, ptr %number.at
  %low.at = getelementptr i64, ptr %row, i64 2
  %low = load i64, ptr %low.at
  %own.at = getelementptr ptr, ptr %objects, i64 %number
  %own = load ptr, ptr %own.at
  %data.at = getelementptr i8, ptr %own, i64 {OBJECT_DATA}
  %data = load i64, ptr %data.at
  %first = add i64 %data, %low
  %first.at = getelementptr i64, ptr %starts, i64 %place
  store i64 %first, ptr %first.at
  %o.next = add i64 %o, 1
  br label %objects.loop
results.loop:
  %r = phi i64 [ 0, %objects.loop ], [ %r.next, %others ]
  %r.more = icmp slt i64 %r, %results
  br i1 %r.more, label %result, label %done
result:
  %r.start.at = getelementptr i64, ptr %starts, i64 %r
  %r.start = load i64, ptr %r.start.at
  %r.length.at = getelementptr i64, ptr %lengths, i64 %r
  %r.length = load i64, ptr %r.length.at
  %r.stop = add i64 %r.start, %r.length
  %r.over = mul i64 %r, %all
  %r.next = add i64 %r, 1
  br label %others
others:
  %s = phi i64 [ %r.next, %result ], [ %s.next, %passed ]
  %s.more = icmp slt i64 %s, %all
  br i1 %s.more, label %other, label %results.loop
other:
  %s.start.at = getelementptr i64, ptr %starts, i64 %s
  %s.start = load i64, ptr %s.start.at
  %s.length.at = getelementptr i64, ptr %lengths, i64 %s
  %s.length = load i64, ptr %s.length.at
  %s.stop = add i64 %s.start, %s.length
  %begins = icmp slt i64 %r.start, %s.stop
  %ends = icmp slt i64 %s.start, %r.stop
  %meets = and i1 %begins, %ends
  br i1 %meets, label %met, label %passed
met:
  %over.number = add i64 %r.over, %s
  %allowed.at = getelementptr i8, ptr %over, i64 %over.number
  %allowed = load i8, ptr %allowed.at
  %may = icmp ne i8 %allowed, 0
  %same = icmp eq i64 %r.start, %s.start
  %passes = and i1 %may, %same
  br i1 %passes, label %passed, label %shared
passed:
  %s.next = add i64 %s, 1
  br label %others
done:
  ret i64 {Outcome.DONE}
shared:
  ret i64 {Outcome.SHARED}
}}

define internal void @name(ptr %env, ptr %named, ptr %own) nounwind {{
entry:
  %shared = icmp ne ptr %named, null
  br i1 %shared, label %some, label %done
some:
  %count = load i64, ptr %named
  br label %each
each:
  %k = phi i64 [ 0, %some ], [ %k.next, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %done
one:
  %k.next = add i64 %k, 1
  %place.at = getelementptr i64, ptr %named, i64 %k.next
  %place = load i64, ptr %place.at
  %to = getelementptr i8, ptr %env, i64 %place
  %from = getelementptr i64, ptr %own, i64 %k
  %address = load i64, ptr %from
  store i64 %address, ptr %to, align 1
  br label %each
done:
  ret void
}}

define void @run(ptr %head) nounwind {{
entry:
  %count.at = getelementptr i64, ptr %head, i64 5
  %count = load i64, ptr %count.at
  %calls.at = getelementptr i64, ptr %head, i64 6
  %calls = load ptr, ptr %calls.at
  br label %each
each:
  %k = phi i64 [ 0, %entry ], [ %k.next, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %done
one:
{_CALL}  %k.next = add i64 %k, 1
  br label %each
done:
  ret void
}}

; some of the calls, a look at the clock after each: seconds and nanoseconds
define void @timed(ptr %head, i64 %low, i64 %high, ptr %clock, i32 %which, ptr %times) nounwind {{
entry:
  %calls.at = getelementptr i64, ptr %head, i64 6
  %calls = load ptr, ptr %calls.at
  br label %each
each:
  %k = phi i64 [ %low, %entry ], [ %k.next, %one ]
  %more = icmp slt i64 %k, %high
  br i1 %more, label %one, label %done
one:
{_CALL}  %place = sub i64 %k, %low
  %time = getelementptr {{ i64, i64 }}, ptr %times, i64 %place
  %failed = call i32 %clock(i32 %which, ptr %time)
  %k.next = add i64 %k, 1
  br label %each
done:
  ret void
}}
"""
_DIRECT = f"""
; %head: where busy is, objects wanted, where they are named, environment, function, PyEval_SaveThread,
; PyEval_RestoreThread, PyLong_FromLong, what the objects have to be as the first words of a head of @call, or 0.
; 1: it ran; 0: it did not.
define ptr @direct(ptr %self, ptr %objects, i64 %count) nounwind {{
entry:
  %head.at = getelementptr i8, ptr %self, i64 {OBJECT_DATA}
  %head = load ptr, ptr %head.at
  %wanted.at = getelementptr i64, ptr %head, i64 1
  %wanted = load i64, ptr %wanted.at
  %complete = icmp eq i64 %count, %wanted
  br i1 %complete, label %look, label %answer
look:
  %looks.at = getelementptr i64, ptr %head, i64 8
  %looks = load ptr, ptr %looks.at
  %unasked = icmp eq ptr %looks, null
  br i1 %unasked, label %take, label %ask
ask:
  %looked = call i64 @looked(ptr %looks, ptr %objects)
  %fits = icmp eq i64 %looked, 0
  br i1 %fits, label %take, label %answer
take:
  %busy = load ptr, ptr %head
  %pair = cmpxchg ptr %busy, i64 0, i64 1 acq_rel monotonic
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %name, label %answer
name:
  %names.at = getelementptr i64, ptr %head, i64 2
  %names = load ptr, ptr %names.at
  %bytes = shl i64 %count, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %names, ptr %objects, i64 %bytes, i1 false)
  %env.at = getelementptr i64, ptr %head, i64 3
  %env = load ptr, ptr %env.at
  %function.at = getelementptr i64, ptr %head, i64 4
  %function = load ptr, ptr %function.at
  %save.at = getelementptr i64, ptr %head, i64 5
  %save = load ptr, ptr %save.at
  %thread = call ptr %save()
  %clash = call i64 %function(ptr %env)
  %restore.at = getelementptr i64, ptr %head, i64 6
  %restore = load ptr, ptr %restore.at
  call void %restore(ptr %thread)
  store atomic i64 0, ptr %busy release, align 8
  %ran = icmp eq i64 %clash, 0
  %ran.wide = zext i1 %ran to i64
  br label %answer
answer:
  %said = phi i64 [ 0, %entry ], [ 0, %ask ], [ 0, %take ], [ %ran.wide, %name ]
  %integer.at = getelementptr i64, ptr %head, i64 7
  %integer = load ptr, ptr %integer.at
  %result = call ptr %integer(i64 %said)
  ret ptr %result
}}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


@functools.cache
def code() -> Code:
    """The text, compiled once."""
    return compile_ir(
        _SOURCE + _DIRECT, ("run", "timed", "call", "again", "keyed", "direct", "faulted", "claim"), host()
    )
