"""Tables, transactions, committer, notifications and the two database dialects."""
