"""The layout value and its exact algebra."""
