"""Plans bound again: what a run of a plan does, for a graph that differs from a known one in extents alone.

`form` says what a graph is whatever its extents. `outline` keeps of a bound plan what does not depend on them: which
kernels read what, and which blocks share memory. `bound` computes the rest of the extents of another graph, without
making its fused graph, its steps or its tasks. What is not covered, and every decision that would fall otherwise, is
said by None: then the plan is made and bound as if nothing were known.

Source: own.
"""
