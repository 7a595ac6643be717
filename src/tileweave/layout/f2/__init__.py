"""Linear maps over F2, and swizzles."""
