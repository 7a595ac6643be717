"""Sweeps: steps of stencils that go together over the rows of their fields, panel after panel.

A step that reads a neighbourhood of each element needs only some rows ahead of those that it makes. So while the first
step of a sweep makes a panel of rows, the second follows some rows behind it, the third behind that: a panel passes
through all steps while it is in the caches, and of a field that only steps of the sweep read, only the rows lie in
memory that somebody still needs. They lie in a window that moves over the field (`fields.Track`). A row has its place
there, whichever field it is of: so a field is written where a field before it is no longer needed, and whatever a panel
reads is a slice.

    rows ->   [ panel 0 ][ panel 1 ][ panel 2 ]
    step 1    |----------|
    step 2    |---------|                          wave 0: every step as far as the one before it allows
    step 1               |----------|
    step 2              |----------|               wave 1

Fields that others read lie whole, as without sweeps.

Source: own; time skewing is Wonnacott, "Achieving scalable locality with time skewing", 2002.
"""
