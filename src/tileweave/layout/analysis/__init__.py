"""What a layout costs: vector width, bank conflicts, data movement, and pictures."""
