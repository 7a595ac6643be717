"""Sources and sinks: what a file format stores and how a region of it is read or written."""
