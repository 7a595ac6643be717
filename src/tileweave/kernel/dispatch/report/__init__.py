"""What dispatch says of its choices: reasons, resources, pictures."""
