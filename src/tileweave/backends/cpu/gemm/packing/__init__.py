"""What surrounds the packing of panels: tables of places, planes that are transposed, and what is prefetched."""
