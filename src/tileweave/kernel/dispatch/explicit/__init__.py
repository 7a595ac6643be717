"""From operators to explicit statements: staged products, rows in parts, results that leave through shared memory."""
