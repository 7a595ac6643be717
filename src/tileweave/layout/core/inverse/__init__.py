"""Complement, inverses, divide and product, each with its post-condition as the definition."""
