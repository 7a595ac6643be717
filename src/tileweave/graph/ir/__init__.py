"""The nodes of a graph, their types, selectors, text and documents."""
