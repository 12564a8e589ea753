"""Long-running work that people have a say in: durable workflows in plain Python, approvals in the browser."""
