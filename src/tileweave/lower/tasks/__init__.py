"""The tasks of an executable in columns: who reads what, where blocks lie, and addresses of tasks that are alike."""
