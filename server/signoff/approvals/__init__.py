"""People's side of a run: rules, the one gate `decide()`, deadlines and the ledger."""
