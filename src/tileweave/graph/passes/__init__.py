"""Functions from graphs to graphs: evaluate, rewrite, shard, coalesce, differentiate."""
