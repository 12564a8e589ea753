"""What authors import: definitions, events, asks and rules as plain values, retry, errors, registry."""
