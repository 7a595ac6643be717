"""What a backend executes of a program: loops and operations merged as far as the value allows."""
