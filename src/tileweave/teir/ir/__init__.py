"""The TEIR program: values, operations, rules of well-formedness, text and documents."""
