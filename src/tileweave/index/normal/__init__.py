"""The normal form: polynomials over atoms, what is known of the atoms, and every proof."""
