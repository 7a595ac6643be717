"""The processor: its features, compiled code, threads, memory, settings."""
