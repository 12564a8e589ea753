"""Pure replay: deterministic loop, step context, and the program that turns recorded outcomes into commands."""
