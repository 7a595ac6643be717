"""Operators without programs, by one piece of code each for any sizes: elements at places, orders, searches."""
