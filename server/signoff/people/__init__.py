"""Tenants, users, groups, roles, sessions, tokens and audit."""
