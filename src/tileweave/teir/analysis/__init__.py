"""What a program does: invocations, races, bounds, coverage, lowering, cost, and the interpreter."""
