"""Reading and writing layouts as text, in every notation."""
