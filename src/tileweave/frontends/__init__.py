"""Models from elsewhere as tensor programs."""
